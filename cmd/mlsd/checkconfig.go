package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"
)

// checkConfigCommand returns the command "check-config".
func checkConfigCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name: "check-config", Usage: "check the settings as a start does before it needs the database, and print those that are set",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "database", Usage: "reach the database of MLSD_DATABASE_URL too, and the standby of MLSD_READ_DATABASE_URL"}},
		Action: withConfig(0, func(ctx context.Context, cfg Config, cmd *cli.Command) error {
			if _, err := cfg.check(logger(cfg, stderr)); err != nil {
				return err
			}
			if cmd.Bool("database") && cfg.DatabaseURL != "" {
				if err := reach(ctx, cfg.DatabaseURL, reachTimeout); err != nil {
					return err
				}
				if err := reachStandby(ctx, cfg); err != nil {
					return err
				}
			}
			return writeSettings(stdout, cmd)
		}),
	}
}

// writeSettings writes the settings that are not the default ones. Secrets are not shown.
func writeSettings(w io.Writer, cmd *cli.Command) error {
	all, err := choose(cmd)
	if err != nil {
		return err
	}
	var out strings.Builder
	table := newTable(&out)
	for _, s := range settings {
		v := all[s.env]
		if !v.set {
			continue
		}
		if s.secret {
			v.value = "(not shown)"
		}
		line(table, s.env, v.value, v.file)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%sthe settings are good; those that are not listed have their defaults\n", out.String())
	return err
}
