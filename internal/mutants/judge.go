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
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// trial looks for a mutant. overlay names the list of the changed files for the go command. why is
// how the mutant was noticed; "" if it was not.
type trial func(ctx context.Context, m mutant, overlay string) (why string, err error)

// judge tries each mutant, atOnce at a time, and prints the verdicts. The error lists the mutants
// that survived.
func judge(ctx context.Context, root string, chosen []mutant, atOnce int, try trial, out io.Writer) error {
	s, err := readSource(root)
	if err != nil {
		return err
	}
	changed, err := s.applyAll(chosen)
	if err != nil {
		return err
	}
	var mu sync.Mutex // guards survivors, broken and out
	var survivors []string
	var broken []error
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, m := range chosen {
		group.Go(func() error {
			begun := time.Now()
			why, err := withOverlay(changed[i], func(overlay string) (string, error) { return try(ctx, m, overlay) })
			mu.Lock()
			defer mu.Unlock()
			verdict := "caught"
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				verdict, broken = "BROKEN", append(broken, fmt.Errorf("%s: %w", m.name, err))
			case why == "":
				verdict, survivors = "SURVIVED", append(survivors, m.name)
			}
			took := time.Since(begun).Seconds()
			_, err = fmt.Fprintf(out, "%-8s  %-29s  %-29s  %4.1fs  %s\n", verdict, m.name, m.test, took, why)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	slices.Sort(survivors)
	if len(survivors) > 0 {
		broken = append(broken,
			fmt.Errorf("%d of %d survived: %s", len(survivors), len(chosen), strings.Join(survivors, ", ")))
	}
	if len(broken) > 0 {
		return errors.Join(broken...)
	}
	_, err = fmt.Fprintf(out, "%d of %d caught\n", len(chosen), len(chosen))
	return err
}

// withOverlay writes the changed files elsewhere, with a list that tells go where they are.
func withOverlay(changed map[string]string, try func(overlay string) (string, error)) (why string, err error) {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copies := map[string]string{}
	for name, text := range changed {
		copies[name] = filepath.Join(dir, fmt.Sprintf("%d_%s", len(copies), filepath.Base(name)))
		if err := os.WriteFile(copies[name], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	raw, err := json.Marshal(map[string]any{"Replace": copies})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, raw, 0o600); err != nil {
		return "", err
	}
	return try(overlay)
}

// judgeTests runs the test of each mutant.
func judgeTests(ctx context.Context, root string, chosen []mutant, out io.Writer) error {
	if err := testsExist(root, chosen); err != nil {
		return err
	}
	if err := control(ctx, root, chosen); err != nil {
		return err
	}
	atOnce := 2 * runtime.GOMAXPROCS(0) // a failing test mostly waits for something that does not come
	return judge(ctx, root, chosen, atOnce, func(ctx context.Context, m mutant, overlay string) (string, error) {
		pkg, name := m.place()
		out, err := goTest(ctx, root, pkg, name, "-overlay="+overlay, "-timeout=10m", "-failfast")
		var exit *exec.ExitError
		switch {
		case err == nil:
			return "", nil
		case !errors.As(err, &exit) || ctx.Err() != nil:
			return "", err
		case !bytes.Contains(out, []byte("--- FAIL: "+name)): // it did not compile, or something else broke
			return "", fmt.Errorf("the test was not judged: %w", err)
		}
		return complaint(out), nil
	}, out)
}

// control runs the tests once on the unchanged source: a test that fails anyway catches nothing.
func control(ctx context.Context, root string, chosen []mutant) error {
	tests := map[string][]string{}
	for _, m := range chosen {
		pkg, name := m.place()
		name, _, _ = strings.Cut(name, "/")
		if !slices.Contains(tests[pkg], name) {
			tests[pkg] = append(tests[pkg], name)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for pkg, names := range tests {
		group.Go(func() error {
			if _, err := goTest(ctx, root, pkg, strings.Join(names, "|"), "-timeout=30m"); err != nil {
				return fmt.Errorf("the tests of %s do not pass without a mutant: %w", pkg, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// goTest runs the tests of a package whose names match the regular expression names.
func goTest(ctx context.Context, root, pkg, names string, flags ...string) ([]byte, error) {
	run := "-run=^(" + strings.ReplaceAll(names, "/", ")$/^(") + ")$"
	args := append([]string{"test", "-count=1", "-vet=off", "-ldflags=-s -w", run}, flags...)
	return command(ctx, root, "go", append(args, "./"+pkg)...)
}

// command runs a command in dir and returns what it prints.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute // for processes that a killed test has left
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s%s", filepath.Base(name), err, out, exit.Stderr)
	}
	return out, err
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
