package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/urfave/cli/v3"

	"mlsd/migrations"
)

// migrateCommand returns the command "migrate".
func migrateCommand(stdout, stderr io.Writer) *cli.Command {
	up := func(ctx context.Context, cfg Config, _ *cli.Command) error {
		return withDatabase(ctx, cfg, stderr, func(url string) error { return migrations.Up(ctx, url) })
	}
	down := func(ctx context.Context, cfg Config, cmd *cli.Command) error {
		n := 1
		if text := cmd.Args().First(); text != "" {
			var err error
			if n, err = strconv.Atoi(text); err != nil {
				return fmt.Errorf("migrate down: %q is not a number", text)
			}
		}
		return withDatabase(ctx, cfg, stderr, func(url string) error { return migrations.Down(ctx, url, n) })
	}
	version := func(ctx context.Context, cfg Config, _ *cli.Command) error {
		return withDatabase(ctx, cfg, stderr, func(url string) error {
			v, err := migrations.Version(ctx, url)
			if err == nil {
				_, err = fmt.Fprintln(stdout, v)
			}
			return err
		})
	}
	return &cli.Command{Name: "migrate", Usage: "change the database schema", Commands: []*cli.Command{
		{Name: "up", Usage: "apply what is missing", Action: withConfig(0, up)},
		{Name: "down", Usage: "take back the newest migration, or as many as the argument says", ArgsUsage: "[N]", Action: withConfig(1, down)},
		{Name: "version", Usage: "print the schema's version", Action: withConfig(0, version)},
	}}
}
