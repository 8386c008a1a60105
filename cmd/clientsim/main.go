// Command clientsim plays simulated MLS clients against mlsd, with faults, and
// checks that every promise is kept. With no arguments it starts a server of
// its own and plays every scenario. The subcommand tour serves the README's tour, and bench measures.
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

	"mlsd/clientsim"
)

// errBroken ends a run whose report has said everything already.
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

// run is main with everything it touches handed in.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	return command(out, progress).Run(ctx, args)
}

func command(out, progress io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "clientsim",
		Usage:     "play simulated MLS clients against mlsd and check its promises",
		Writer:    out,
		ErrWriter: progress,
		// An error is the caller's to print and to exit with.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "server", Usage: "`URL` of a running server; without it, one is started"},
			&cli.StringFlag{Name: "service-did", Value: clientsim.DefaultServiceDID, Usage: "the `DID` that tokens are made out to"},
			&cli.StringFlag{Name: "plc-listen", Value: "127.0.0.1:0", Usage: "`ADDR` of the simulator's PLC directory, which the server has to use (MLSD_PLC_URL)"},
			&cli.StringFlag{Name: "mlsd", Usage: "`PATH` of the server to start; without it, the one beside clientsim, or one that is built"},
			&cli.StringFlag{Name: "scenario", Usage: "`NAME[,NAME]` of the scenarios to play; without it, all"},
			&cli.Uint64Flag{Name: "seed", Usage: "`NUMBER` that all chance follows from; without it, a random one, which is printed"},
			&cli.IntFlag{Name: "clients", Value: 8, Usage: "phones in the long conversation"},
			&cli.IntFlag{Name: "messages", Value: 200, Usage: "messages in the long conversation"},
			&cli.IntFlag{Name: "epochs", Value: 20, Usage: "commits in contended-commits"},
			&cli.IntFlag{Name: "members", Value: 40, Usage: "members in big-group"},
			&cli.IntFlag{Name: "claims", Value: 400, Usage: "claims in claims-two-servers"},
			&cli.IntFlag{Name: "writers", Value: 4, Usage: "who write at once in live"},
			&cli.IntFlag{Name: "convos", Value: 20, Usage: "convos in live"},
			&cli.IntFlag{Name: "subscribers", Value: 12, Usage: "who listen in live"},
			&cli.DurationFlag{Name: "for", Value: 5 * time.Second, Usage: "how long they write in live"},
			&cli.IntFlag{Name: "rate", Usage: "messages a second in live; without it, as many as go"},
			&cli.BoolFlag{Name: "calm", Usage: "live without faults and changes, to measure"},
			&cli.IntFlag{Name: "idle", Value: 200, Usage: "who listen to nothing in live-idle"},
			&cli.IntFlag{Name: "audience", Value: 100, Usage: "who listen to one message in live-idle"},
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
		Commands: []*cli.Command{tour(out), measure(out, progress)},
	}
}

func tour(out io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "tour",
		Usage: "serve two made-up people, and the PLC directory that knows them, to a person with curl (see the README)",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "service-did", Value: clientsim.DefaultServiceDID, Usage: "the `DID` that tokens are made out to"},
			&cli.StringFlag{Name: "plc-listen", Value: "127.0.0.1:2582", Usage: "`ADDR`, on loopback, to serve at; the server has to use it (MLSD_PLC_URL)"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return fmt.Errorf("unexpected argument %q", c.Args().First())
			}
			return clientsim.ServeTour(ctx, c.String("plc-listen"), c.String("service-did"), out)
		},
	}
}

func list(out io.Writer) error {
	for _, s := range clientsim.Scenarios() {
		if _, err := fmt.Fprintf(out, "%-24s %s\n", s.Name, s.About); err != nil {
			return err
		}
	}
	return nil
}

func play(ctx context.Context, c *cli.Command, out, progress io.Writer) error {
	config := clientsim.Config{
		Options: clientsim.Options{
			Seed: c.Uint64("seed"), Clients: c.Int("clients"), Messages: c.Int("messages"),
			Epochs: c.Int("epochs"), Members: c.Int("members"), Claims: c.Int("claims"),
			Writers: c.Int("writers"), Convos: c.Int("convos"), Subscribers: c.Int("subscribers"), For: c.Duration("for"),
			Rate: c.Int("rate"), Calm: c.Bool("calm"), Idle: c.Int("idle"), Audience: c.Int("audience"),
		},
		Server: c.String("server"), ServiceDID: c.String("service-did"),
		PLCListen: c.String("plc-listen"), Binary: c.String("mlsd"), Progress: progress,
	}
	if !c.IsSet("seed") {
		config.Seed = uint64(rand.Uint32())
	}
	if names := c.String("scenario"); names != "" {
		config.Scenarios = strings.Split(names, ",")
	}
	report, err := clientsim.Run(ctx, config)
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
