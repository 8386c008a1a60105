package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/torture"
	"mlsd/internal/terminal"
)

// tortures is the subcommand torture.
func tortures(out, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "torture",
		Usage: "let connections, servers and PostgreSQL fail all the time, and check every write",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "for", Value: 10 * time.Minute, Usage: "how long clients write"},
			&cli.Uint64Flag{Name: "seed", Usage: "random seed `NUMBER` of the faults; default: a random one, which is printed"},
			&cli.IntFlag{Name: "nodes", Value: 3, Usage: "servers on the database"},
			&cli.StringFlag{Name: "mlsd",
				Usage: "`PATH` of the server to start; default: the one beside clientsim, else one is built"},
			&cli.BoolFlag{Name: "clocks", Usage: "if a server is built, build one whose clock can be wrong"},
			&cli.StringFlag{Name: "pgbouncer", Usage: "`PATH` of a PgBouncer, through which the last server reaches PostgreSQL",
				Sources: cli.EnvVars("MLSD_TEST_PGBOUNCER")},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return fmt.Errorf("unexpected argument %q", c.Args().First())
			}
			return runTorture(ctx, c, out, stderr)
		},
	}
}

func runTorture(ctx context.Context, c *cli.Command, out, stderr io.Writer) error {
	lines := terminal.New(stderr)
	config := torture.Config{
		Seed: seedOf(c), For: c.Duration("for"), Nodes: c.Int("nodes"), Binary: c.String("mlsd"),
		PgBouncer: c.String("pgbouncer"), Clocks: c.Bool("clocks"),
		Progress: func(now string) { lines.Now("torture: %s", now) },
	}
	lines.Line("seed %d", config.Seed)
	report, err := torture.Run(ctx, config)
	lines.Clear()
	if report != nil {
		err = errors.Join(err, report.Write(out))
	}
	if err == nil && len(report.Violations) > 0 {
		return errBroken
	}
	return err
}
