// Command clientsim runs simulated MLS clients against mlsd, with faults, and checks that every
// promise is kept. Without arguments it starts its own server and runs every scenario. The
// subcommand bench measures, attack runs attacks, torture makes everything fail, and soak runs for
// hours.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/scenario"
)

// errBroken ends a run whose report names the broken promises.
var errBroken = errors.New("promises were broken")

// errSkipped ends a run that played nothing. The report says why.
var errSkipped = errors.New("every scenario was skipped")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "clientsim:", err)
		stop()
		os.Exit(1)
	}
}

// run does what main does, with the given arguments and outputs.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	return command(out, progress).Run(ctx, args)
}

func command(out, progress io.Writer) *cli.Command {
	config := scenario.Config{Progress: progress}
	o := &config.Options
	return &cli.Command{
		Name:      "clientsim",
		Usage:     "play simulated MLS clients against mlsd and check its promises",
		Writer:    out,
		ErrWriter: progress,
		// The caller prints the error and exits.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "server", Destination: &config.Server,
				Usage: "`URL` of a running mlsd or mlsd-dev; default: an mlsd is started"},
			&cli.StringFlag{Name: "service-did", Destination: &config.ServiceDID,
				Usage: "the server's `DID`, the audience of the tokens; default: the server is asked"},
			&cli.StringFlag{Name: "plc-listen", Destination: &config.PLCListen,
				Usage: "`ADDR` of the simulator's PLC directory, which a running mlsd must use (MLSD_PLC_URL); default: " +
					scenario.PLCListen + " with --server, else a free port"},
			&cli.StringFlag{Name: "mlsd", Destination: &config.Binary,
				Usage: "`PATH` of the server to start; default: the one beside clientsim, else one is built"},
			&cli.StringSliceFlag{Name: "scenario", Destination: &config.Scenarios,
				Usage: "`NAME[,NAME]` of the scenarios to play; default: all"},
			&cli.Uint64Flag{Name: "seed", Usage: "random seed `NUMBER`; default: a random one, which is printed"},
			&cli.IntFlag{Name: "clients", Value: 8, Destination: &o.Clients, Usage: "phones in the long conversation"},
			&cli.IntFlag{Name: "messages", Value: 200, Destination: &o.Messages, Usage: "messages in the long conversation"},
			&cli.IntFlag{Name: "epochs", Value: 20, Destination: &o.Epochs, Usage: "commits in contended-commits"},
			&cli.IntFlag{Name: "members", Value: 40, Destination: &o.Members, Usage: "devices in large-library-group"},
			&cli.IntFlag{Name: "attacks", Value: 20, Destination: &o.Attacks, Usage: "groups attacked in bad-proposals"},
			&cli.IntFlag{Name: "claims", Value: 400, Destination: &o.Claims, Usage: "claims in claims-two-servers"},
			&cli.IntFlag{Name: "writers", Value: 4, Destination: &o.Writers, Usage: "accounts that write at once in live"},
			&cli.IntFlag{Name: "convos", Value: 20, Destination: &o.Convos, Usage: "convos in live"},
			&cli.IntFlag{Name: "subscribers", Value: 12, Destination: &o.Subscribers, Usage: "subscribers in live"},
			&cli.DurationFlag{Name: "for", Value: 5 * time.Second, Destination: &o.For,
				Usage: "how long live and network go on, and a turn of network-growth"},
			&cli.IntFlag{Name: "rate", Destination: &o.Rate,
				Usage: "messages a second in live, and steps in network; default: as many as possible, and 20"},
			&cli.BoolFlag{Name: "calm", Destination: &o.Calm, Usage: "live without faults and roster changes, to measure"},
			&cli.IntFlag{Name: "uploads", Value: 60, Destination: &o.Uploads, Usage: "uploads in attachments"},
			&cli.IntFlag{Name: "people", Value: 60, Destination: &o.People, Usage: "people in network"},
			&cli.FloatSliceFlag{Name: "cores", Destination: &o.Cores,
				Usage: "`DATABASE,SERVER`: the cores of each database and of each server in network-growth, such as 0.4,0.1"},
			&cli.StringFlag{Name: "agents", Destination: &o.Agents,
				Usage: "`FOLDER` with agents of other MLS libraries, for mls-libraries"},
			&cli.StringSliceFlag{Name: "upgrade", Destination: &o.Upgrade,
				Usage: "`PATH[,PATH]` of the servers that replace --mlsd in rolling-upgrade, one after the other"},
			&cli.IntFlag{Name: "failovers", Value: 2, Destination: &o.Failovers,
				Usage: "how often the primary fails in failover and failover-async, and each fault happens in patroni"},
			&cli.StringFlag{Name: "patroni", Destination: &o.Patroni,
				Usage: "`FOLDER` of the files with which patroni is configured, for patroni"},
			&cli.StringSliceFlag{Name: "fault", Destination: &o.Faulty,
				Usage: "`NAME[,NAME]` of the faults in patroni; default: all"},
			&cli.BoolFlag{Name: "json", Usage: "print the report as JSON"},
			&cli.BoolFlag{Name: "list", Usage: "list the scenarios and exit"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return fmt.Errorf("unexpected argument %q", c.Args().First())
			}
			if c.Bool("list") {
				return list(out)
			}
			config.Seed = seedOf(c)
			return play(ctx, config, c.Bool("json"), out)
		},
		Commands: []*cli.Command{
			measure(out, progress), attacks(out, progress), tortures(out, progress), soaks(out, progress),
		},
	}
}

func list(out io.Writer) error {
	for _, s := range scenario.Scenarios() {
		if _, err := fmt.Fprintf(out, "%-24s %s\n", s.Name, s.About); err != nil {
			return err
		}
	}
	return nil
}

func play(ctx context.Context, config scenario.Config, asJSON bool, out io.Writer) error {
	report, err := scenario.Run(ctx, config)
	if report != nil {
		write := report.WriteTable
		if asJSON {
			write = report.WriteJSON
		}
		err = errors.Join(err, write(out))
	}
	switch {
	case err != nil:
		return err
	case !report.Kept():
		return errBroken
	case !report.Played():
		return errSkipped
	}
	return nil
}

// seedOf returns the given seed, or a random seed.
func seedOf(c *cli.Command) uint64 {
	if c.IsSet("seed") {
		return c.Uint64("seed")
	}
	return uint64(rand.Uint32())
}
