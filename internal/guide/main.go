// Command guide follows pages of the guide for app developers, as a reader would. It writes the
// files of a page, types the commands, and checks that their output is what the page says.
//
//	go run ./internal/guide -folder DIR -server http://127.0.0.1:4711 docs/clients/TYPESCRIPT.md
//
// The first words of a fenced block say what happens to the block:
//
//	sh                runs in the main terminal, and must succeed
//	sh host           the same, on this machine if the main terminal is elsewhere (see -shell)
//	sh server         starts the server, which runs already: it is not run
//	sh NAME           typed in the terminal NAME
//	text NAME         typed into the program that runs in the terminal NAME
//	text NAME shows   each line comes in that terminal, in this order
//	LANGUAGE PATH     a file, in the folder of the main terminal. The text before the block names it
//
// A comment "# → text" in a command that must succeed says what its output contains next. Other
// blocks are only read. The steps of a workflow (.github/workflows) run once the workflow is
// written. The folder at first has one entry, mlsd, which is this checkout. The server's address in
// the page is replaced by the address of -server.
// that of -server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const (
	// address is the address of the server in the pages.
	address = "127.0.0.1:8080"
	// start is the command that starts the server.
	start = "go run ./cmd/mlsd-dev"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "guide:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("guide", flag.ContinueOnError)
	folder := flags.String("folder", "", "where the pages' files go; it is made if there is none")
	server := flags.String("server", "http://"+address, "the address of the server")
	shell := flags.String("shell", "bash", "the command that runs the terminals' shell")
	timeout := flags.Duration("timeout", 2*time.Minute, "how long one block may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *folder == "" || flags.NArg() == 0 {
		return errors.New("usage: guide -folder DIR [flags] PAGE…")
	}
	clone, err := os.Getwd()
	if err != nil {
		return err
	}
	to := strings.TrimPrefix(*server, "http://")
	for _, path := range flags.Args() {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		page := strings.ReplaceAll(string(text), address, to)
		r := reader{folder: *folder, clone: clone, shell: strings.Fields(*shell), timeout: *timeout, out: out}
		if err := r.follow(ctx, page); err != nil {
			return fmt.Errorf("%s%w", path, err)
		}
	}
	return nil
}
