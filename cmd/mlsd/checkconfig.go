package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/node"
	"mlsd/operator"
)

// checkConfigCommand returns the command "check-config".
func checkConfigCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name: "check-config", Usage: "check the settings as a start does before it needs the database, and print those " +
			"that are not the default ones",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "database",
			Usage: "reach the database too, and the standby of MLSD_READ_DATABASE_URL"}},
		Action: node.AsService(0, func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
			if _, err := cfg.Check(cfg.Logger(stderr)); err != nil {
				return err
			}
			doubts := cfg.Doubts()
			if cmd.Bool("database") {
				more, err := cfg.Reach(ctx, stderr)
				if err != nil {
					return err
				}
				doubts = append(doubts, more...)
			}
			return writeSettings(stdout, cfg, doubts, cmd)
		}),
	}
}

// writeSettings writes the settings that differ from their defaults, and the doubts.
func writeSettings(w io.Writer, cfg node.Config, doubts []string, cmd *cli.Command) error {
	changed, err := node.Changed(cmd)
	if err != nil {
		return err
	}
	var out strings.Builder
	table := operator.NewTable(&out)
	for _, s := range changed {
		operator.Line(table, s.Variable, s.Value, s.File)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	verdict := "good"
	if len(doubts) > 0 {
		verdict = "usable, with warnings"
	}
	for _, doubt := range doubts {
		fmt.Fprintf(&out, "warning: %s\n", doubt)
	}
	_, err = fmt.Fprintf(w, "%sthe settings are %s; those that are not listed have their defaults (read from %s)\n",
		out.String(), verdict, cfg.Sources())
	return err
}
