// Command mutants shows that the tests named after known bugs (see api/idempotency_test.go) would notice them: it puts each bug
// back into a copy of the source, one at a time, and runs the test that carries its name. A test that still passes is a defect,
// and so is an entry of the table whose text is no longer in the source.
//
//	go run ./internal/mutants [name …]
//
// The source itself is not touched: the copy reaches the compiler through go test's -overlay.
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
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run judges the mutants with these names, or all of them. The error says which ones survived.
func run(ctx context.Context, names []string, out io.Writer) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool {
		return len(names) > 0 && !slices.Contains(names, m.name)
	})
	if len(chosen) == 0 {
		return fmt.Errorf("no mutant is called %s", strings.Join(names, " or "))
	}
	if err := control(ctx, root, chosen); err != nil {
		return err
	}
	var survivors []string
	for _, m := range chosen {
		begun := time.Now()
		why, err := m.try(ctx, root)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		verdict := "caught"
		if why == "" {
			verdict = "SURVIVED"
			survivors = append(survivors, m.name)
		}
		if _, err := fmt.Fprintf(out, "%-8s  %-29s  %-29s  %4.1fs  %s\n", verdict, m.name, m.test, time.Since(begun).Seconds(), why); err != nil {
			return err
		}
	}
	if len(survivors) > 0 {
		return fmt.Errorf("%d of %d survived: %s", len(survivors), len(chosen), strings.Join(survivors, ", "))
	}
	_, err = fmt.Fprintf(out, "%d of %d caught\n", len(chosen), len(chosen))
	return err
}

// control runs the tests on the source as it is: one that fails anyway catches nothing.
func control(ctx context.Context, root string, chosen []mutant) error {
	var tests []string
	for _, m := range chosen {
		tests = append(tests, m.test)
	}
	if out, err := test(ctx, root, "", strings.Join(tests, "|")); err != nil {
		return fmt.Errorf("the tests do not pass without a mutant: %w\n%s", err, out)
	}
	return nil
}

// try returns what m's test says when it notices m, and "" if it does not.
func (m mutant) try(ctx context.Context, root string) (why string, err error) {
	mutated, err := m.apply(root)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	overlay, err := writeOverlay(dir, mutated)
	if err != nil {
		return "", err
	}
	out, err := test(ctx, root, overlay, m.test)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case !errors.As(err, &exit) || ctx.Err() != nil:
		return "", err
	case !bytes.Contains(out, []byte("--- FAIL: "+m.test)): // it did not compile, or something else broke
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

// apply returns the mutated files by their absolute names.
func (m mutant) apply(root string) (map[string]string, error) {
	mutated := map[string]string{}
	for _, e := range m.edits {
		path := filepath.Join(root, filepath.FromSlash(e.file))
		text, edited := mutated[path]
		if !edited {
			raw, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("%s holds this text %d times instead of once; bring the mutant up to date:\n%s", e.file, n, e.old)
		}
		mutated[path] = strings.Replace(text, e.old, e.new, 1)
	}
	return mutated, nil
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

// test runs the tests of packages api and push whose names are names.
func test(ctx context.Context, root, overlay, names string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-count=1", "-timeout=90s", "-vet=off", "-run=^("+names+")$", "./api", "./push")
	cmd.Dir = root
	return cmd.CombinedOutput()
}

// moduleRoot finds the directory of go.mod at or above the current one.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return "", errors.New("no go.mod here or above")
	}
}
