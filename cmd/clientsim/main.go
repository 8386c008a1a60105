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
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/clientsim/scenario"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// errBroken ends a run whose report names the broken promises.
var errBroken = errors.New("promises were broken")

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
	return &cli.Command{
		Name:      "clientsim",
		Usage:     "play simulated MLS clients against mlsd and check its promises",
		Writer:    out,
		ErrWriter: progress,
		// The caller prints the error and exits.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "server", Usage: "`URL` of a running server; default: one is started"},
			&cli.StringFlag{Name: "service-did", Value: xrpc.DefaultServiceDID,
				Usage: "the server's `DID`, the audience of the tokens"},
			&cli.StringFlag{Name: "plc-listen", Value: "127.0.0.1:0",
				Usage: "`ADDR` of the simulator's PLC directory; the server must use it (MLSD_PLC_URL)"},
			&cli.StringFlag{Name: "mlsd",
				Usage: "`PATH` of the server to start; default: the one beside clientsim, else one is built"},
			&cli.StringFlag{Name: "scenario", Usage: "`NAME[,NAME]` of the scenarios to play; default: all"},
			&cli.Uint64Flag{Name: "seed", Usage: "random seed `NUMBER`; default: a random one, which is printed"},
			&cli.IntFlag{Name: "clients", Value: 8, Usage: "phones in the long conversation"},
			&cli.IntFlag{Name: "messages", Value: 200, Usage: "messages in the long conversation"},
			&cli.IntFlag{Name: "epochs", Value: 20, Usage: "commits in contended-commits"},
			&cli.IntFlag{Name: "members", Value: 40, Usage: "devices in large-library-group"},
			&cli.IntFlag{Name: "claims", Value: 400, Usage: "claims in claims-two-servers"},
			&cli.IntFlag{Name: "writers", Value: 4, Usage: "accounts that write at once in live"},
			&cli.IntFlag{Name: "convos", Value: 20, Usage: "convos in live"},
			&cli.IntFlag{Name: "subscribers", Value: 12, Usage: "subscribers in live"},
			&cli.DurationFlag{Name: "for", Value: 5 * time.Second,
				Usage: "how long live and network go on, and a turn of network-growth"},
			&cli.IntFlag{Name: "rate",
				Usage: "messages a second in live, and steps in network; default: as many as possible, and 20"},
			&cli.BoolFlag{Name: "calm", Usage: "live without faults and roster changes, to measure"},
			&cli.IntFlag{Name: "uploads", Value: 60, Usage: "uploads in attachments"},
			&cli.IntFlag{Name: "people", Value: 60, Usage: "people in network"},
			&cli.FloatSliceFlag{Name: "cores",
				Usage: "`DATABASE,SERVER`: the cores of each database and of each server in network-growth, such as 0.4,0.1"},
			&cli.StringFlag{Name: "agents", Usage: "`FOLDER` with agents of other MLS libraries, for mls-libraries"},
			&cli.StringFlag{Name: "upgrade",
				Usage: "`PATH[,PATH]` of the servers that replace --mlsd in rolling-upgrade, one after the other"},
			&cli.IntFlag{Name: "failovers", Value: 2,
				Usage: "how often the primary fails in failover and failover-async, and each fault happens in patroni"},
			&cli.StringFlag{Name: "patroni", Usage: "`FOLDER` of the files with which patroni is configured, for patroni"},
			&cli.StringFlag{Name: "fault", Usage: "`NAME[,NAME]` of the faults in patroni; default: all"},
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
			return play(ctx, c, out, progress)
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

func play(ctx context.Context, c *cli.Command, out, progress io.Writer) error {
	config := scenario.Config{
		Options: testbed.Options{
			Seed: seedOf(c), Clients: c.Int("clients"), Messages: c.Int("messages"),
			Epochs: c.Int("epochs"), Members: c.Int("members"), Claims: c.Int("claims"),
			Writers: c.Int("writers"), Convos: c.Int("convos"), Subscribers: c.Int("subscribers"), For: c.Duration("for"),
			Rate: c.Int("rate"), Calm: c.Bool("calm"),
			Uploads: c.Int("uploads"), People: c.Int("people"), Agents: c.String("agents"), Failovers: c.Int("failovers"),
			Patroni: c.String("patroni"), Cores: c.FloatSlice("cores"),
		},
		Server: c.String("server"), ServiceDID: c.String("service-did"),
		PLCListen: c.String("plc-listen"), Binary: c.String("mlsd"), Progress: progress,
	}
	if names := c.String("fault"); names != "" {
		config.Faulty = strings.Split(names, ",")
	}
	if paths := c.String("upgrade"); paths != "" {
		config.Upgrade = strings.Split(paths, ",")
	}
	if names := c.String("scenario"); names != "" {
		config.Scenarios = strings.Split(names, ",")
	}
	report, err := scenario.Run(ctx, config)
	if report != nil {
		write := report.WriteTable
		if c.Bool("json") {
			write = report.WriteJSON
		}
		err = errors.Join(err, write(out))
	}
	if err == nil && !report.Kept() {
		return errBroken
	}
	return err
}

// seedOf returns the given seed, or a random seed.
func seedOf(c *cli.Command) uint64 {
	if c.IsSet("seed") {
		return c.Uint64("seed")
	}
	return uint64(rand.Uint32())
}
