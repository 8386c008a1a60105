// Command mlsd is the delivery service. Without a subcommand it serves.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/urfave/cli/v3"

	"mlsd/migrations"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly end. After it signals do what they do by default, so that a second one is an end at once.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args, os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mlsd:", err)
		os.Exit(1)
	}
}

// run is main with everything it touches passed in. It returns nil once ctx has ended and the server has shut down in order.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	env, err := environment(environ)
	if err != nil {
		return err
	}
	// withConfig makes an action of do, for a command with at most so many arguments.
	withConfig := func(arguments int, do func(ctx context.Context, cfg Config, cmd *cli.Command) error) cli.ActionFunc {
		return func(ctx context.Context, cmd *cli.Command) error {
			if cmd.Args().Len() > arguments {
				return fmt.Errorf("%s: unknown command or argument %q", cmd.FullName(), cmd.Args().Get(arguments))
			}
			cfg, err := configure(cmd)
			if err != nil {
				return err
			}
			return do(ctx, cfg, cmd)
		}
	}
	serveAction := withConfig(0, func(ctx context.Context, cfg Config, _ *cli.Command) error {
		return serve(ctx, cfg, stdout, stderr)
	})
	app := &cli.Command{
		Name:      "mlsd",
		Usage:     "the delivery service for MLS groups of AT Protocol clients",
		Version:   version(),
		Writer:    stdout,
		ErrWriter: stderr,
		Flags:     flags(env),
		Action:    serveAction,
		// main prints the error and says how to exit.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Commands: []*cli.Command{
			{Name: "serve", Usage: "serve (the default)", Action: serveAction},
			{Name: "migrate", Usage: "change the database schema", Commands: []*cli.Command{
				{Name: "up", Usage: "apply what is missing", Action: withConfig(0, func(ctx context.Context, cfg Config, _ *cli.Command) error {
					return onDatabase(ctx, cfg, stderr, func(url string) error { return migrations.Up(ctx, url) })
				})},
				{Name: "down", Usage: "take back the newest migration, or as many as the argument says", ArgsUsage: "[N]",
					Action: withConfig(1, func(ctx context.Context, cfg Config, cmd *cli.Command) error {
						n := 1
						if text := cmd.Args().First(); text != "" {
							var err error
							if n, err = strconv.Atoi(text); err != nil {
								return fmt.Errorf("migrate down: %q is not a number", text)
							}
						}
						return onDatabase(ctx, cfg, stderr, func(url string) error { return migrations.Down(ctx, url, n) })
					})},
				{Name: "version", Usage: "print the schema's version", Action: withConfig(0, func(ctx context.Context, cfg Config, _ *cli.Command) error {
					return onDatabase(ctx, cfg, stderr, func(url string) error {
						v, err := migrations.Version(ctx, url)
						if err == nil {
							_, err = fmt.Fprintln(stdout, v)
						}
						return err
					})
				})},
			}},
			inspectCommand(stdout, withConfig),
		},
	}
	return app.Run(ctx, args)
}

// onDatabase calls do with the database that cfg names, and stops it afterwards if it is mlsd's own.
func onDatabase(ctx context.Context, cfg Config, stderr io.Writer, do func(url string) error) (err error) {
	url, own, err := database(ctx, cfg, logger(cfg, stderr))
	if err != nil {
		return err
	}
	if own != nil {
		defer func() {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			err = errors.Join(err, own.Stop(stop))
		}()
	}
	return do(url)
}

// version is what the build knows of itself.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return revision
}
