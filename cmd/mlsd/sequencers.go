package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"

	"mlsd/events"
)

const (
	// sequencersTimeout is how long "sequencers" waits until a node has changed the number.
	sequencersTimeout = 30 * time.Second
	sequencersPoll    = 100 * time.Millisecond // how often it looks
)

// sequencersCommand returns the command "sequencers".
func sequencersCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "sequencers",
		Usage:     "print how many sequencers the event stream has, or change it while nodes run",
		ArgsUsage: "[1 to 16]",
		Action: withConfig(1, func(ctx context.Context, cfg Config, cmd *cli.Command) error {
			var wanted int
			if text := cmd.Args().First(); text != "" {
				var err error
				if wanted, err = strconv.Atoi(text); err != nil {
					return fmt.Errorf("%q is not a number of sequencers", text)
				}
			}
			return withDatabase(ctx, cfg, stderr, func(url string) error { return sequencers(ctx, url, cmd.Args().Present(), wanted, stdout) })
		}),
	}
}

// sequencers prints the number of sequencers, which it changes before if change says so.
func sequencers(ctx context.Context, url string, change bool, wanted int, stdout io.Writer) error {
	return withConnection(ctx, url, sequencersTimeout, func(ctx context.Context, conn *pgx.Conn) error {
		if change {
			if err := events.WantSequencers(ctx, conn, wanted); err != nil {
				return err
			}
		}
		number, asked, err := events.Sequencers(ctx, conn)
		for err == nil && change && number != wanted {
			select {
			case <-ctx.Done():
				return errors.New("no node has changed the number yet: the leader of sequencer 0 will, if no node of an older version is live; its log says why not")
			case <-time.After(sequencersPoll):
			}
			number, asked, err = events.Sequencers(ctx, conn)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "%d\n", number)
		if err == nil && asked != number {
			_, err = fmt.Fprintf(stdout, "asked for: %d\n", asked)
		}
		return err
	})
}
