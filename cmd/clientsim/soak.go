package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/scenario"
	"mlsd/clientsim/soak"
)

// soaks is the subcommand soak.
func soaks(out, progress io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "soak",
		Usage: "run everything for hours at a moderate load, and look for what grows",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "for", Value: 8 * time.Hour, Usage: "how long the load goes on"},
			&cli.IntFlag{Name: "rate", Value: 20, Usage: "messages a second"},
			&cli.DurationFlag{Name: "every", Value: 10 * time.Second, Usage: "time between two samples"},
			&cli.DurationFlag{Name: "keep", Value: 10 * time.Minute, Usage: "time after which rows are made old, so that the server deletes them"},
			&cli.Uint64Flag{Name: "seed", Usage: "random seed `NUMBER`; default: a random one, which is printed"},
			&cli.StringFlag{Name: "mlsd", Usage: "`PATH` of the server to start; default: the one beside clientsim, else one is built"},
			&cli.StringFlag{Name: "samples", Value: "soak.jsonl", Usage: "`FILE` that each sample is appended to"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return fmt.Errorf("unexpected argument %q", c.Args().First())
			}
			return runSoak(ctx, c, out, progress)
		},
	}
}

func runSoak(ctx context.Context, c *cli.Command, out, progress io.Writer) error {
	lines := scenario.NewProgress(progress)
	config := soak.Config{
		For: c.Duration("for"), Rate: c.Int("rate"), Every: c.Duration("every"), Keep: c.Duration("keep"), Seed: c.Uint64("seed"), Binary: c.String("mlsd"),
		Samples: c.String("samples"), Progress: func(now string) { lines.Now("soak: %s", now) },
	}
	if !c.IsSet("seed") {
		config.Seed = uint64(rand.Uint32())
	}
	lines.Line("seed %d", config.Seed)
	broken, err := soak.Run(context.WithoutCancel(ctx), ctx, config)
	lines.Clear()
	for _, text := range broken {
		_, printed := fmt.Fprintln(out, "BROKEN:", text)
		err = errors.Join(err, printed)
	}
	if err == nil && len(broken) > 0 {
		return errBroken
	}
	return err
}
