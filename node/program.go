package node

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

// Main is the main function of a program. run gets the program's inputs and outputs, and a context
// that ends with the first signal.
func Main(name string, run func(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal shuts the server down in order. After it, signals have their default effect:
	// a second one ends the process.
	context.AfterFunc(ctx, stop)
	environ, err := withPackagedSettings(os.Environ())
	if err == nil {
		err = run(ctx, os.Args, environ, os.Stdout, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Run runs a program that has the settings as flags and variables.
func Run(ctx context.Context, app *cli.Command, args, environ []string) error {
	env, err := environment(environ)
	if err != nil {
		return err
	}
	app.Version = built().String()
	// The hidden command completion prints a script for bash, zsh or fish.
	app.EnableShellCompletion = true
	app.Flags = append(flags(env), app.Flags...)
	// Main prints the error and exits.
	app.ExitErrHandler = func(context.Context, *cli.Command, error) {}
	app.Commands = append(app.Commands, versionCommand(app))
	return app.Run(ctx, args)
}

// WithConfig returns do as a command that takes up to the given number of arguments.
func WithConfig(arguments int, do func(ctx context.Context, cfg Config, cmd *cli.Command) error) cli.ActionFunc {
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
