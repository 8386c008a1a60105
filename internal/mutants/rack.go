package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
// one after another, because each run needs the whole machine. seed is the first seed.
func judgeRack(ctx context.Context, root string, chosen []mutant, seed uint64, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clientsim, server := filepath.Join(dir, "clientsim"), filepath.Join(dir, "server")
	if _, err := command(ctx, root, "go", "build", "-o", clientsim, "./cmd/clientsim"); err != nil {
		return err
	}
	return judge(ctx, root, chosen, 1, func(ctx context.Context, _ mutant, overlay string) (why string, err error) {
		if _, err := command(ctx, root, "go", "build", "-o", server, "-overlay="+overlay, "./cmd/mlsd"); err != nil {
			return "", err
		}
		begun := time.Now()
		for next := seed; why == "" && err == nil && time.Since(begun) < rackLimit-rackRun; next++ {
			why, err = torture(ctx, clientsim, server, next)
		}
		return why, err
	}, out)
}

// torture makes one run against a server, and returns the first violation that it found, or "".
func torture(ctx context.Context, clientsim, server string, seed uint64) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, rackLongest)
	defer cancel()
	report, err := command(ctx, "", clientsim, "torture", "--mlsd", server,
		"--for", rackRun.String(), "--seed", strconv.FormatUint(seed, 10))
	if err == nil {
		return "", nil
	}
	if why = violation(string(report)); why == "" {
		return "", fmt.Errorf("clientsim torture did not judge: %w", err)
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
