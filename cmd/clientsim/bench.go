package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/bench"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/internal/terminal"
)

// measure is the subcommand bench.
func measure(out, stderr io.Writer) *cli.Command {
	config := bench.Default()
	var auth, mlsd []string
	var standby, jsonFile string
	var lines bool
	var against string
	var times float64
	return &cli.Command{
		Name:      "bench",
		Usage:     "measure mlsd under load, and check that everything it acknowledged is stored",
		ArgsUsage: "SCENARIO",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list the scenarios and exit"},
			&cli.IntFlag{Name: "in-flight", Value: config.InFlight, Destination: &config.InFlight,
				Usage: "unanswered requests at any time; with --rate, at most"},
			&cli.FloatFlag{Name: "rate", Destination: &config.Rate,
				Usage: "requests started per second, answered or not; default: by scenario, or as many as possible"},
			&cli.IntFlag{Name: "turns", Value: config.Turns, Destination: &config.Turns, Usage: "turns of each variant"},
			&cli.DurationFlag{Name: "for", Value: config.For, Destination: &config.For, Usage: "length of a turn"},
			&cli.DurationFlag{Name: "warm-up", Value: config.Warm, Destination: &config.Warm,
				Usage: "load before each turn, not counted"},
			&cli.StringSliceFlag{Name: "auth", Value: config.Auth, Destination: &auth,
				Usage: "`NAME[,NAME]` of how senders say who they are: service (a token for each request), session, or both by " +
					"turns"},
			&cli.Int64Flag{Name: "messages", Destination: &config.Messages,
				Usage: "end the only turn of a variant after this many acknowledged messages"},
			&cli.IntFlag{Name: "convos", Destination: &config.Convos, Usage: "convos; default: by scenario"},
			&cli.IntFlag{Name: "members", Destination: &config.Members, Usage: "members of each convo; default: by scenario"},
			&cli.IntFlag{Name: "senders", Value: config.Senders, Destination: &config.Senders, Usage: "accounts that send"},
			&cli.IntFlag{Name: "subscribers", Destination: &config.Subscribers,
				Usage: "streams that are open; default: by scenario"},
			&cli.IntFlag{Name: "servers", Value: config.Servers, Destination: &config.Servers,
				Usage: "mlsd processes on one database"},
			&cli.IntFlag{Name: "body", Value: config.Body, Destination: &config.Body, Usage: "bytes of a ciphertext"},
			&cli.IntSliceFlag{Name: "nodes", Value: config.Nodes, Destination: &config.Nodes,
				Usage: "`N[,N]` servers in scale, by turns"},
			&cli.IntSliceFlag{Name: "entries", Value: config.Entries, Destination: &config.Entries,
				Usage: "`N[,N]` log entries in growth"},
			&cli.IntSliceFlag{Name: "rosters", Value: config.Rosters, Destination: &config.Rosters,
				Usage: "`N[,N]` members of a convo in growth"},
			&cli.StringFlag{Name: "standby", Value: "off", Destination: &standby,
				Usage: "whether servers read from a standby in scale: off, on, or both by turns"},
			&cli.BoolFlag{Name: "faults", Destination: &config.Faults,
				Usage: "drop answers, send requests twice at once, and kill servers"},
			&cli.DurationFlag{Name: "kill-every", Value: config.KillEvery, Destination: &config.KillEvery,
				Usage: "time under load between two kills; 0: no kills"},
			&cli.StringFlag{Name: "database", Destination: &config.Database,
				Usage: "`URL` of a PostgreSQL; default: a private one is started"},
			&cli.StringSliceFlag{Name: "mlsd", Destination: &mlsd,
				Usage: "`PATH` of the server to start, or NAME=PATH[,NAME=PATH] of servers that take turns as variants; " +
					"default: one is found or built"},
			&cli.StringFlag{Name: "against", Destination: &against,
				Usage: "build mlsd here and from the source in `DIR`, and let the two take turns"},
			&cli.FloatFlag{Name: "times", Value: 1.25, Destination: &times,
				Usage: "with --against, fail if an operation costs the server or the database more than `N` times as much"},
			&cli.BoolFlag{Name: "lines", Destination: &lines,
				Usage: "print a line of a Go benchmark for each turn instead of the table, for benchstat"},
			&cli.StringFlag{Name: "json", Destination: &jsonFile, Usage: "`FILE` for the report as JSON"},
			&cli.Uint64Flag{Name: "seed", Usage: "random seed `NUMBER`; default: a random one"},
		},
		Action: func(ctx context.Context, c *cli.Command) (err error) {
			defer Catch(&err)
			if c.Bool("list") {
				return listBenchmarks(out)
			}
			if c.Args().Len() != 1 {
				return errors.New("bench takes one scenario; --list names them")
			}
			config.Scenario, config.Seed, config.Auth, config.Binaries = c.Args().First(), seedOf(c), auth, binaries(mlsd)
			config.Standby = Must(standbys(standby))
			if against != "" {
				home := Must(os.MkdirTemp("", "clientsim-"))
				defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
				Check(os.Chmod(home, 0o755)) // a server of another user runs from here
				config.Binaries = Must(race(ctx, home, against, mlsd))
			}
			progress := terminal.New(stderr)
			config.Progress = func(line string) { progress.Line("%s", line) }
			r := Must(bench.Run(ctx, config))
			write := r.WriteTable
			if lines {
				write = r.WriteLines
			}
			Check(write(out))
			if jsonFile != "" {
				Check(writeFile(jsonFile, r.WriteJSON))
			}
			if !r.Verdict.Kept() {
				return errBroken
			}
			if against != "" {
				return r.Compare(out, now, before, times)
			}
			return nil
		},
	}
}

// The servers of a race.
const (
	now    = "now"
	before = "before"
)

// race builds the servers that take turns: this one, and the one whose source is in a directory.
func race(ctx context.Context, home, source string, mlsd []string) (_ []testbed.Binary, err error) {
	defer Catch(&err)
	if len(mlsd) > 0 {
		return nil, errors.New("--against builds both servers: leave out --mlsd")
	}
	earlier := Must(testbed.BuildServerFrom(ctx, source, filepath.Join(home, before), "-buildvcs=false"))
	return []testbed.Binary{
		{Name: before, Path: earlier}, {Name: now, Path: Must(testbed.BuildServer(ctx, home, "-buildvcs=false"))},
	}, nil
}

func listBenchmarks(out io.Writer) error {
	for _, s := range bench.Scenarios() {
		if _, err := fmt.Fprintf(out, "%-16s %s\n", s.Name, s.About); err != nil {
			return err
		}
	}
	return nil
}

// standbys parses the flag --standby.
func standbys(flag string) (all []bool, err error) {
	for name := range strings.SplitSeq(flag, ",") {
		if name != "on" && name != "off" {
			return nil, fmt.Errorf("standby is %q, and has to be of on and off", name)
		}
		all = append(all, name == "on")
	}
	return all, nil
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

func writeFile(name string, write func(io.Writer) error) (err error) {
	defer Catch(&err)
	file := Must(os.Create(name))
	return errors.Join(write(file), file.Close())
}
