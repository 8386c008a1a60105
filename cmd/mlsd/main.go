// Command mlsd is the delivery service. Without a subcommand it serves.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/urfave/cli/v3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal shuts the server down in order. After it, signals have their default effect:
	// a second one ends the process.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args, os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mlsd:", err)
		os.Exit(1)
	}
}

// run is main with its inputs and outputs as parameters. It returns nil once ctx has ended and the
// server has shut down in order.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	env, err := environment(environ)
	if err != nil {
		return err
	}
	serveAction := withConfig(0, func(ctx context.Context, cfg Config, _ *cli.Command) error {
		return serve(ctx, cfg, stdout, stderr)
	})
	app := &cli.Command{
		Name:      "mlsd",
		Usage:     "the delivery service for MLS groups of AT Protocol clients",
		Version:   built().String(),
		Writer:    stdout,
		ErrWriter: stderr,
		// The hidden command completion prints a script for bash, zsh or fish.
		EnableShellCompletion: true,
		Flags:                 flags(env),
		Action:                serveAction,
		// main prints the error and exits.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Commands: []*cli.Command{
			{Name: "serve", Usage: "serve (the default)", Action: serveAction},
			checkConfigCommand(stdout, stderr),
			migrateCommand(stdout, stderr),
			backupCommand(stdout),
			restoreCommand(stdout, stderr),
			restoredCommand(stdout, stderr),
			inspectCommand(stdout),
			adminCommand(environ, stdout),
			reportKeyCommand(stdout),
			healthCommand(stdout),
			devCommand(stdout, stderr),
			versionCommand(stdout),
		},
	}
	return app.Run(ctx, args)
}

// action is what a command does with its configuration.
type action func(ctx context.Context, cfg Config, cmd *cli.Command) error

// withConfig returns do as a command that takes up to the given number of arguments.
func withConfig(arguments int, do action) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if cmd.Args().Len() > arguments {
			return unknownArgument(cmd, cmd.Args().Get(arguments))
		}
		cfg, err := configure(cmd)
		if err != nil {
			return err
		}
		return do(ctx, cfg, cmd)
	}
}

// unknownArgument refuses an argument.
func unknownArgument(cmd *cli.Command, argument string) error {
	hint := ""
	if _, err := strconv.ParseBool(argument); err == nil {
		hint = " (the value of a switch stands after =: --failpoints=" + argument + ")"
	}
	return fmt.Errorf("%s: unknown command or argument %q%s", cmd.FullName(), argument, hint)
}
