package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/bench"
	"mlsd/clientsim/bench/report"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/internal/terminal"
)

// measure is the subcommand bench.
func measure(out, stderr io.Writer) *cli.Command {
	usual := bench.Default()
	return &cli.Command{
		Name:      "bench",
		Usage:     "measure mlsd under load, and check that everything it acknowledged is stored",
		ArgsUsage: "SCENARIO",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list the scenarios and exit"},
			&cli.IntFlag{Name: "in-flight", Value: usual.InFlight,
				Usage: "unanswered requests at any time; with --rate, at most"},
			&cli.FloatFlag{Name: "rate", Usage: "requests started per second, answered or not; default: as many as possible"},
			&cli.IntFlag{Name: "turns", Value: usual.Turns, Usage: "turns of each variant"},
			&cli.DurationFlag{Name: "for", Value: usual.For, Usage: "length of a turn"},
			&cli.DurationFlag{Name: "warm-up", Value: usual.Warm, Usage: "load before each turn, not counted"},
			&cli.StringFlag{Name: "auth", Value: strings.Join(usual.Auth, ","),
				Usage: "`NAME[,NAME]` of how senders say who they are: service (a token for each request), session, or both by " +
					"turns"},
			&cli.Int64Flag{Name: "messages", Usage: "end after this many acknowledged messages, instead of after the turns"},
			&cli.IntFlag{Name: "convos", Usage: "convos; default: by scenario"},
			&cli.IntFlag{Name: "members", Usage: "members of each convo; default: by scenario"},
			&cli.IntFlag{Name: "senders", Value: usual.Senders, Usage: "accounts that send"},
			&cli.IntFlag{Name: "subscribers", Usage: "streams that are open; default: by scenario"},
			&cli.IntFlag{Name: "servers", Value: usual.Servers, Usage: "mlsd processes on one database"},
			&cli.IntFlag{Name: "body", Value: usual.Body, Usage: "bytes of a ciphertext"},
			&cli.IntSliceFlag{Name: "nodes", Usage: "`N[,N]` servers in scale, by turns; default: 1,2,4,8"},
			&cli.StringFlag{Name: "standby", Value: "off",
				Usage: "whether servers read from a standby in scale: off, on, or both by turns"},
			&cli.BoolFlag{Name: "faults", Usage: "drop answers, send requests twice at once, and kill servers"},
			&cli.DurationFlag{Name: "kill-every", Value: usual.KillEvery,
				Usage: "time under load between two kills; 0: no kills"},
			&cli.StringFlag{Name: "database", Usage: "`URL` of a PostgreSQL; default: a private one is started"},
			&cli.StringSliceFlag{Name: "mlsd",
				Usage: "`PATH` of the server to start, or NAME=PATH[,NAME=PATH] of servers that take turns as variants; " +
					"default: one is found or built"},
			&cli.StringFlag{Name: "pprof", Usage: "`FILE` for a processor profile of the server"},
			&cli.StringFlag{Name: "json", Usage: "`FILE` for the report as JSON; -: print it instead of the table"},
			&cli.Uint64Flag{Name: "seed", Usage: "random seed `NUMBER`; default: a random one"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Bool("list") {
				return listBenchmarks(out)
			}
			if c.Args().Len() != 1 {
				return errors.New("bench takes one scenario; --list names them")
			}
			return runBenchmark(ctx, c, out, stderr)
		},
	}
}

func listBenchmarks(out io.Writer) error {
	for _, s := range bench.Scenarios() {
		if _, err := fmt.Fprintf(out, "%-16s %s\n", s.Name, s.About); err != nil {
			return err
		}
	}
	return nil
}

func runBenchmark(ctx context.Context, c *cli.Command, out, stderr io.Writer) (err error) {
	defer Catch(&err)
	lines := terminal.New(stderr)
	config := bench.Config{
		Scenario: c.Args().First(), Seed: seedOf(c),
		InFlight: c.Int("in-flight"), Rate: c.Float("rate"), Turns: c.Int("turns"), For: c.Duration("for"),
		Warm:      c.Duration("warm-up"),
		WarmStart: bench.Default().WarmStart, Auth: strings.Split(c.String("auth"), ","), Messages: c.Int64("messages"),
		Convos: c.Int("convos"), Members: c.Int("members"), Senders: c.Int("senders"),
		Subscribers: c.Int("subscribers"), Joins: bench.Default().Joins,
		Servers: c.Int("servers"), Body: c.Int("body"),
		Faults: c.Bool("faults"), KillEvery: c.Duration("kill-every"), Database: c.String("database"),
		Binaries: binaries(c.StringSlice("mlsd")),
		Nodes:    c.IntSlice("nodes"),
		Profile:  c.String("pprof"), Progress: func(line string) { lines.Line("%s", line) },
	}
	for _, standby := range strings.Split(c.String("standby"), ",") {
		if standby != "on" && standby != "off" {
			return fmt.Errorf("standby is %q, and has to be of on and off", standby)
		}
		config.Standby = append(config.Standby, standby == "on")
	}
	config.Command = commandLine(c, config.Seed)
	r := Must(bench.Run(ctx, config))
	Check(writeReport(r, c.String("json"), out))
	if !r.Verdict.Kept() {
		return errBroken
	}
	return nil
}

// binaries parses flags of the form PATH or NAME=PATH.
func binaries(flags []string) (found []testbed.Binary) {
	for _, flag := range flags {
		binary := testbed.Binary{Path: flag}
		if name, path, ok := strings.Cut(flag, "="); ok {
			binary = testbed.Binary{Name: name, Path: path}
		}
		found = append(found, binary)
	}
	return found
}

// commandLine returns the command line that makes the same report again. It leaves out the URL of a
// database, which may contain a password.
func commandLine(c *cli.Command, seed uint64) string {
	words := []string{"clientsim", "bench", c.Args().First()}
	for _, name := range slices.Sorted(slices.Values(c.LocalFlagNames())) {
		switch name {
		case "seed", "json", "pprof":
		case "database":
			words = append(words, "--database URL")
		case "mlsd":
			words = append(words, "--mlsd="+strings.Join(c.StringSlice(name), ","))
		case "nodes":
			words = append(words, "--"+name+"="+strings.Trim(strings.ReplaceAll(fmt.Sprint(c.IntSlice(name)), " ", ","), "[]"))
		default:
			words = append(words, fmt.Sprintf("--%s=%v", name, c.Value(name)))
		}
	}
	return strings.Join(append(words, fmt.Sprintf("--seed=%d", seed)), " ")
}

// writeReport writes the requested files, and the table unless the JSON is printed.
func writeReport(r *report.Report, jsonFile string, out io.Writer) error {
	var errs []error
	if jsonFile == "-" {
		errs = append(errs, r.WriteJSON(out))
	} else {
		errs = append(errs, r.WriteTable(out))
		if jsonFile != "" {
			errs = append(errs, writeFile(jsonFile, r.WriteJSON))
		}
	}
	return errors.Join(errs...)
}

func writeFile(name string, write func(io.Writer) error) (err error) {
	defer Catch(&err)
	file := Must(os.Create(name))
	return errors.Join(write(file), file.Close())
}
