package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/attack"
)

// errNotWithstood ends a run in which an attack has harmed honest users.
var errNotWithstood = errors.New("the server did not withstand")

// attacks is the subcommand attack.
func attacks(out, progress io.Writer) *cli.Command {
	config := attack.Default()
	var memory int64
	return &cli.Command{
		Name:      "attack",
		Usage:     "attack a mlsd on this machine, and measure what honest users notice",
		ArgsUsage: "NAME [NAME]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list the attacks and exit"},
			&cli.StringFlag{Name: "mlsd", Destination: &config.Binary,
				Usage: "`PATH` of the server to start; default: one is found or built"},
			&cli.DurationFlag{Name: "calm", Value: config.Spans.Calm, Destination: &config.Spans.Calm,
				Usage: "time before the attack"},
			&cli.DurationFlag{Name: "for", Value: config.Spans.Attack, Destination: &config.Spans.Attack,
				Usage: "length of the attack"},
			&cli.DurationFlag{Name: "after", Value: config.Spans.After, Destination: &config.Spans.After,
				Usage: "time after the attack"},
			&cli.FloatFlag{Name: "rate", Destination: &config.Rate,
				Usage: "small messages of honest users per second; default: 20, and 500 for together"},
			&cli.IntFlag{Name: "leaves", Value: config.Leaves, Destination: &config.Leaves,
				Usage: "leaves of a costly GroupInfo"},
			&cli.FloatFlag{Name: "times", Value: config.Bounds.Times, Destination: &config.Bounds.Times,
				Usage: "greatest p99 during an attack, as a multiple of the calm one"},
			&cli.FloatFlag{Name: "floor", Value: config.Bounds.Floor, Destination: &config.Bounds.Floor,
				Usage: "least calm p99 that counts, in `MILLISECONDS`"},
			&cli.Int64Flag{Name: "memory", Value: config.Bounds.Memory >> 20, Destination: &memory,
				Usage: "greatest memory of the server, in `MIB`"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Bool("list") {
				return listAttacks(out)
			}
			config.Names, config.Bounds.Memory = c.Args().Slice(), memory<<20
			config.Progress = func(line string) { _, _ = fmt.Fprintln(progress, line) }
			config.Done = func(r *attack.Result) error { return r.Write(out) }
			results, err := attack.Run(ctx, config)
			for _, r := range results {
				if len(r.Wrong) > 0 {
					err = errors.Join(err, fmt.Errorf("%w: %s", errNotWithstood, r.Attack))
				}
			}
			return err
		},
	}
}

func listAttacks(out io.Writer) error {
	for _, a := range append(attack.Attacks(), attack.Attack{Name: "all", What: "all of them, one by one"},
		attack.Attack{Name: "together", What: "the first attack of each finding, all at once"}) {
		if _, err := fmt.Fprintf(out, "%-4s %-20s %s\n", a.Finding, a.Name, a.What); err != nil {
			return err
		}
	}
	return nil
}
