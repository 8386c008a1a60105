// Command mlsd is the delivery service. Without a subcommand it serves.
package main

import (
	"context"
	"errors"
	"io"

	"github.com/urfave/cli/v3"

	"mlsd/node"
)

func main() { node.Main("mlsd", run) }

// run does what main does, with the given inputs and outputs. It returns nil once ctx has ended and
// the server has shut down in order.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	serve := node.AsService(0, func(ctx context.Context, cfg node.Config, _ *cli.Command) error {
		return node.Serve(ctx, cfg, stdout, stderr)
	})
	return node.Run(ctx, &cli.Command{
		Name:      "mlsd",
		Usage:     "the delivery service for MLS groups of AT Protocol clients",
		Writer:    stdout,
		ErrWriter: stderr,
		Action:    serve,
		Commands: []*cli.Command{
			{Name: "serve", Usage: "serve (the default)", Action: serve},
			checkConfigCommand(stdout, stderr),
			migrateCommand(stdout, stderr),
			backupCommand(stdout),
			restoreCommand(stdout, stderr),
			restoredCommand(stdout, stderr),
			inspectCommand(stdout),
			adminCommand(environ, stdout),
			reportKeyCommand(stdout),
			serviceKeyCommand(stdout, stderr),
			checkCommand(stdout, stderr),
			healthCommand(stdout),
			{Name: "dev", Hidden: true, SkipFlagParsing: true, Action: func(context.Context, *cli.Command) error {
				return errors.New(`unknown command "dev": use the program mlsd-dev (go run ./cmd/mlsd-dev)`)
			}},
		},
	}, args, environ)
}
