package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/attack"
)

// errNotWithstood ends a run in which an attack has harmed honest users.
var errNotWithstood = errors.New("a server did not withstand an attack")

// attacks is the subcommand attack.
func attacks(out, progress io.Writer) *cli.Command {
	usual := attack.Default()
	return &cli.Command{
		Name:      "attack",
		Usage:     "attack a mlsd on this machine, and measure what honest users notice",
		ArgsUsage: "NAME [NAME]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list the attacks and exit"},
			&cli.StringSliceFlag{Name: "mlsd",
				Usage: "`PATH` of the server to start, or NAME=PATH[,NAME=PATH] of servers to compare; default: one is found or " +
					"built"},
			&cli.DurationFlag{Name: "calm", Value: usual.Spans.Calm, Usage: "time before the attack"},
			&cli.DurationFlag{Name: "for", Value: usual.Spans.Attack, Usage: "length of the attack"},
			&cli.DurationFlag{Name: "after", Value: usual.Spans.After, Usage: "time after the attack"},
			&cli.FloatFlag{Name: "rate", Usage: "small messages of honest users per second; default: 20, and 500 for together"},
			&cli.IntFlag{Name: "leaves", Value: usual.Leaves, Usage: "leaves of a costly GroupInfo"},
			&cli.Int64Flag{Name: "fill", Usage: "`MIB` that the attacks on the disk send beforehand, to reach a quota"},
			&cli.FloatFlag{Name: "times", Value: usual.Bounds.Times,
				Usage: "greatest p99 during an attack, as a multiple of the calm one"},
			&cli.FloatFlag{Name: "floor", Value: usual.Bounds.Floor, Usage: "least calm p99 that counts, in `MILLISECONDS`"},
			&cli.Int64Flag{Name: "memory", Value: usual.Bounds.Memory >> 20, Usage: "greatest memory of the server, in `MIB`"},
			&cli.StringFlag{Name: "json", Usage: "`FILE` for the report as JSON"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Bool("list") {
				return listAttacks(out)
			}
			return runAttacks(ctx, c, out, progress)
		},
	}
}

func listAttacks(out io.Writer) error {
	for _, a := range attack.Attacks() {
		if _, err := fmt.Fprintf(out, "%-4s %-20s %s\n", a.Finding, a.Name, a.What); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%-4s %-20s %s\n%-4s %-20s %s\n", "", "all", "all of them, one by one", "", "together",
		"all of them at once")
	return err
}

func runAttacks(ctx context.Context, c *cli.Command, out, progress io.Writer) (err error) {
	config := attack.Default()
	config.Names, config.Command = c.Args().Slice(), "clientsim attack "+strings.Join(c.Args().Slice(), " ")
	config.Spans.Calm, config.Spans.Attack, config.Spans.After = c.Duration("calm"), c.Duration("for"), c.Duration("after")
	config.Rate, config.Leaves, config.Fill = c.Float("rate"), c.Int("leaves"), c.Int64("fill")<<20
	config.Bounds.Times, config.Bounds.Floor, config.Bounds.Memory = c.Float("times"), c.Float("floor"),
		c.Int64("memory")<<20
	config.Progress = func(line string) { _, _ = fmt.Fprintln(progress, line) }
	config.Done = func(r *attack.Result) error { return r.Write(out) }
	config.Binaries = binaries(c.StringSlice("mlsd"))
	report, err := attack.Run(ctx, config)
	if report != nil {
		err = errors.Join(err, report.WriteSummary(out))
		if name := c.String("json"); name != "" {
			err = errors.Join(err, writeFile(name, report.WriteJSON))
		}
	}
	if err == nil && !report.Withstood() {
		return errNotWithstood
	}
	return err
}
