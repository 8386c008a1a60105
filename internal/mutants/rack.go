package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// rackLimit is how long clientsim torture may look for a bug.
	rackLimit = 5 * time.Minute
	// rackRun is how long clients write during one run of clientsim torture.
	rackRun = 45 * time.Second
	// rackLongest bounds one run, including its checks.
	rackLongest = 4 * time.Minute
)

// judgeRack puts each bug into a server, and has clientsim torture look for it. The bugs are tried
// one after another, because each run needs the whole machine. seed is the first seed. The error
// lists the bugs that were not found.
func judgeRack(ctx context.Context, root string, chosen []mutant, seed uint64, out io.Writer) (err error) {
	s, err := readSource(root)
	if err != nil {
		return err
	}
	changed, err := s.applyAll(chosen)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clientsim := filepath.Join(dir, "clientsim")
	if err := goBuild(ctx, root, clientsim, "./cmd/clientsim"); err != nil {
		return err
	}
	var missed []string
	for i, m := range chosen {
		overlay, _, err := writeOverlay(dir, changed[i])
		if err != nil {
			return err
		}
		server := filepath.Join(dir, "server")
		if err := goBuild(ctx, root, server, "./cmd/mlsd", "-overlay="+overlay); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		begun, why, verdict := time.Now(), "", "FOUND"
		for next := seed; why == "" && time.Since(begun) < rackLimit-rackRun; next++ {
			if why, err = torture(ctx, clientsim, server, next); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
		if why == "" {
			verdict, missed = "MISSED", append(missed, m.name)
		}
		_, err = fmt.Fprintf(out, "%-6s  %-58s  %4.0fs  %s\n", verdict, m.name, time.Since(begun).Seconds(), why)
		if err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("clientsim torture does not find: %s", strings.Join(missed, ", "))
	}
	return nil
}

// torture makes one run against a server, and returns the first violation that it found, or "".
func torture(ctx context.Context, clientsim, server string, seed uint64) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, rackLongest)
	defer cancel()
	cmd := exec.CommandContext(ctx, clientsim, "torture", "--mlsd", server,
		"--for", rackRun.String(), "--seed", strconv.FormatUint(seed, 10))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	raw, err := cmd.CombinedOutput()
	if err == nil {
		return "", nil
	}
	if why = violation(string(raw)); why == "" {
		return "", fmt.Errorf("clientsim torture did not judge: %w\n%s", err, raw)
	}
	return why, nil
}

// violation returns how many promises are broken according to a report, with the first of them, or
// "".
func violation(report string) string {
	_, found, judged := strings.Cut(report, "\nlost ")
	counts, list, _ := strings.Cut(found, "\n")
	if !judged || counts == "0, doubled 0, broken 0" {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(list), "\n")
	return fmt.Sprintf("lost %s: %.160s", counts, first)
}

// goBuild builds a program of the module.
func goBuild(ctx context.Context, root, to, program string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", to}, flags...), program)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}
