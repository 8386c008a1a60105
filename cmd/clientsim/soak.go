package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/soak"
	. "mlsd/clientsim/steps"
	"mlsd/internal/terminal"
)

// soaks is the subcommand soak.
func soaks(out, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "soak",
		Usage: "run everything for hours at a moderate load, and look for what grows",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "for", Value: 8 * time.Hour, Usage: "how long the load goes on"},
			&cli.IntFlag{Name: "rate", Value: 20, Usage: "messages a second"},
			&cli.DurationFlag{Name: "every", Value: 10 * time.Second, Usage: "time between two samples"},
			&cli.DurationFlag{Name: "keep", Value: 10 * time.Minute,
				Usage: "time after which rows are made old, so that the server deletes them"},
			&cli.Uint64Flag{Name: "seed", Usage: "random seed `NUMBER`; default: a random one, which is printed"},
			&cli.StringFlag{Name: "mlsd",
				Usage: "`PATH` of the server to start; default: the one beside clientsim, else one is built"},
			&cli.StringFlag{Name: "samples", Value: "soak.jsonl", Usage: "`FILE` that each sample is appended to"},
			&cli.BoolFlag{Name: "judge", Usage: "run nothing; report what is in --samples"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return fmt.Errorf("unexpected argument %q", c.Args().First())
			}
			var err error
			if !c.Bool("judge") {
				err = runSoak(ctx, c, stderr)
			}
			return errors.Join(err, reportSoak(c, out))
		},
	}
}

// errGrew ends a run in which a measure grew.
var errGrew = errors.New("something grew")

func runSoak(ctx context.Context, c *cli.Command, stderr io.Writer) error {
	lines := terminal.New(stderr)
	config := soak.Config{
		For: c.Duration("for"), Rate: c.Int("rate"), Every: c.Duration("every"), Keep: c.Duration("keep"),
		Seed: seedOf(c), Binary: c.String("mlsd"),
		Samples: c.String("samples"), Progress: func(now string) { lines.Now("soak: %s", now) },
	}
	lines.Line("seed %d", config.Seed)
	// The first signal ends the load. The run is then judged and reported as usual.
	err := soak.Run(context.WithoutCancel(ctx), ctx, config)
	lines.Clear()
	return err
}

// reportSoak prints the result of the samples, in Markdown.
func reportSoak(c *cli.Command, out io.Writer) (err error) {
	defer Catch(&err)
	file := Must(os.Open(c.String("samples")))
	run, err := soak.Read(file)
	Check(errors.Join(err, file.Close()))
	err = run.WriteMarkdown(out)
	switch {
	case run.End != nil && len(run.End.Broken) > 0:
		err = errors.Join(err, errBroken)
	case !run.Kept():
		err = errors.Join(err, errGrew)
	}
	return err
}
