package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// result is what came of one mutant.
type result struct {
	why  string // the test fails; empty: it passes
	took time.Duration
	err  error
}

// judge runs the test of each mutant and prints the verdicts in the order of chosen. The error says
// which ones survived. With again, it also runs those that the cache knows.
func judge(ctx context.Context, root string, chosen []mutant, again bool, out io.Writer) error {
	s, err := readSource(root)
	if err != nil {
		return err
	}
	changed, err := s.applyAll(chosen)
	if err != nil {
		return err
	}
	if err := control(ctx, root, chosen); err != nil {
		return err
	}
	known, err := newCache(ctx, root, chosen)
	if err != nil {
		return err
	}
	results := make([]chan result, len(chosen))
	for i := range results {
		results[i] = make(chan result, 1)
	}
	go func() {
		var group errgroup.Group
		group.SetLimit(runtime.GOMAXPROCS(0))
		for i, m := range chosen {
			group.Go(func() error {
				results[i] <- m.judge(ctx, root, changed[i], known, again)
				return nil
			})
		}
	}()
	return report(ctx, chosen, results, out)
}

// report prints the results as they come, in the order of chosen.
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
		if _, err := fmt.Fprintf(out, "%-8s  %-29s  %-29s  %4.1fs  %s\n", verdict, m.name, m.test, r.took.Seconds(), r.why); err != nil {
			return err
		}
	}
	if len(survivors) > 0 {
		broken = append(broken, fmt.Errorf("%d of %d survived: %s", len(survivors), len(chosen), strings.Join(survivors, ", ")))
	}
	if len(broken) > 0 {
		return errors.Join(broken...)
	}
	_, err := fmt.Fprintf(out, "%d of %d caught\n", len(chosen), len(chosen))
	return err
}

// judge is try, unless the cache knows the verdict.
func (m mutant) judge(ctx context.Context, root string, changed map[string]string, known *cache, again bool) result {
	if why := known.get(m, changed); why != "" && !again {
		return result{why: why + " (cached)"}
	}
	begun := time.Now()
	why, err := m.try(ctx, root, changed)
	if err == nil && why != "" {
		err = known.put(m, changed, why)
	}
	return result{why, time.Since(begun), err}
}

// control runs the tests on the source as it is: one that fails anyway catches nothing. Go
// remembers which have passed.
func control(ctx context.Context, root string, chosen []mutant) error {
	tests := map[string][]string{}
	for _, m := range chosen {
		pkg, name := m.place()
		tests[pkg] = append(tests[pkg], name)
	}
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for pkg, names := range tests {
		group.Go(func() error {
			if out, err := test(ctx, root, pkg, strings.Join(names, "|")); err != nil {
				return fmt.Errorf("the tests do not pass without a mutant: %w\n%s", err, out)
			}
			return nil
		})
	}
	return group.Wait()
}

// try returns what m's test says when it notices m, and "" if it does not. changed is what m makes
// of the source.
func (m mutant) try(ctx context.Context, root string, changed map[string]string) (why string, err error) {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	overlay, err := writeOverlay(dir, changed)
	if err != nil {
		return "", err
	}
	pkg, name := m.place()
	out, err := test(ctx, root, pkg, name, "-overlay="+overlay, "-count=3", "-failfast") // some bugs need a meeting of two requests
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case !errors.As(err, &exit) || ctx.Err() != nil:
		return "", err
	case !bytes.Contains(out, []byte("--- FAIL: "+name)): // it did not compile, or something else broke
		return "", fmt.Errorf("the test was not judged:\n%s", out)
	}
	return complaint(out), nil
}

// complaint finds the line in which a test says first what is wrong.
func complaint(out []byte) string {
	for line := range strings.Lines(string(out)) {
		place, text, found := strings.Cut(strings.TrimSpace(line), ": ")
		if found && strings.Contains(place, "_test.go:") && !strings.Contains(text, "level=") {
			return fmt.Sprintf("%.110s", place+": "+text)
		}
	}
	return "it fails"
}

// writeOverlay writes the files into dir and what tells go where they are.
func writeOverlay(dir string, files map[string]string) (string, error) {
	replace := map[string]string{}
	for path, text := range files {
		copied := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[path] = copied
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o600)
}

// test runs the tests of a package whose names are names.
func test(ctx context.Context, root, pkg, names string, flags ...string) ([]byte, error) {
	args := append([]string{"test", "-timeout=3m", "-vet=off", "-run=^(" + names + ")$"}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = root
	return cmd.CombinedOutput()
}
