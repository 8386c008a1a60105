package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// result is the result of one mutant.
type result struct {
	why  string // how the test fails; "" if it passes
	took time.Duration
	err  error
}

// judge runs the test of each mutant and prints the verdicts in the order of chosen. The error
// lists the mutants that survived.
func judge(ctx context.Context, root string, chosen []mutant, out io.Writer) error {
	s, err := readSource(root)
	if err != nil {
		return err
	}
	changed, err := s.applyAll(chosen)
	if err != nil {
		return err
	}
	if err := testsExist(root, chosen); err != nil {
		return err
	}
	b, err := newBuilder(ctx, root, chosen)
	if err != nil {
		return err
	}
	if err := b.control(ctx, chosen); err != nil {
		return err
	}
	results := make([]chan result, len(chosen))
	for i := range results {
		results[i] = make(chan result, 1)
	}
	go func() {
		var group errgroup.Group
		group.SetLimit(2 * runtime.GOMAXPROCS(0)) // a failing test mostly waits for something that does not come
		for i, m := range chosen {
			group.Go(func() error {
				begun := time.Now()
				why, err := b.try(ctx, m, changed[i])
				results[i] <- result{why, time.Since(begun), err}
				return nil
			})
		}
	}()
	return report(ctx, chosen, results, out)
}

// report prints the results as they arrive, in the order of chosen.
func report(ctx context.Context, chosen []mutant, results []chan result, out io.Writer) error {
	var survivors []string
	var broken []error
	for i, m := range chosen {
		r := <-results[i]
		verdict := "caught"
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case r.err != nil:
			verdict = "BROKEN"
			broken = append(broken, fmt.Errorf("%s: %w", m.name, r.err))
		case r.why == "":
			verdict = "SURVIVED"
			survivors = append(survivors, m.name)
		}
		_, err := fmt.Fprintf(out, "%-8s  %-29s  %-29s  %4.1fs  %s\n", verdict, m.name, m.test, r.took.Seconds(), r.why)
		if err != nil {
			return err
		}
	}
	if len(survivors) > 0 {
		broken = append(broken, fmt.Errorf("%d of %d survived: %s",
			len(survivors), len(chosen), strings.Join(survivors, ", ")))
	}
	if len(broken) > 0 {
		return errors.Join(broken...)
	}
	_, err := fmt.Fprintf(out, "%d of %d caught\n", len(chosen), len(chosen))
	return err
}

// control runs the tests once on the unchanged source: a test that fails anyway catches nothing.
func (b *builder) control(ctx context.Context, chosen []mutant) error {
	tests := map[string][]string{}
	for _, m := range chosen {
		pkg, name := m.place()
		name, _, _ = strings.Cut(name, "/")
		if !slices.Contains(tests[pkg], name) {
			tests[pkg] = append(tests[pkg], name)
		}
	}
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for pkg, names := range tests {
		group.Go(func() error {
			if out, err := b.test(ctx, pkg, strings.Join(names, "|"), nil, "-test.timeout=30m"); err != nil {
				return fmt.Errorf("the tests of %s do not pass without a mutant: %w\n%s", pkg, err, out)
			}
			return nil
		})
	}
	return group.Wait()
}

// try returns how m's test fails, and "" if it passes. changed has the new text of the files that m
// changes.
func (b *builder) try(ctx context.Context, m mutant, changed map[string]string) (why string, err error) {
	pkg, name := m.place()
	out, err := b.test(ctx, pkg, name, changed, "-test.timeout=10m", "-test.failfast")
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case !errors.As(err, &exit) || ctx.Err() != nil:
		return "", err
	case !bytes.Contains(out, []byte("--- FAIL: "+name)): // it did not compile, or something else broke
		return "", fmt.Errorf("the test was not judged: %w\n%s", err, out)
	}
	return complaint(out), nil
}

// test builds the tests of a package from a changed source, and runs the tests whose names match
// the regular expression names.
func (b *builder) test(
	ctx context.Context, pkg, names string, changed map[string]string, flags ...string,
) (out []byte, err error) {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary, err := b.build(ctx, dir, pkg, changed)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, append(flags, "-test.run=^("+strings.ReplaceAll(names, "/", ")$/^(")+")$")...)
	cmd.Dir = filepath.Join(b.root, filepath.FromSlash(pkg))
	cmd.WaitDelay = time.Minute // for processes that a killed test has left
	return cmd.CombinedOutput()
}

// complaint returns the first line in which a test says what is wrong.
func complaint(out []byte) string {
	for line := range strings.Lines(string(out)) {
		place, text, found := strings.Cut(strings.TrimSpace(line), ": ")
		if found && strings.Contains(place, "_test.go:") && !strings.Contains(text, "level=") {
			return fmt.Sprintf("%.110s", place+": "+text)
		}
	}
	return "it fails"
}
