package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"mlsd/events"
	"mlsd/internal/node"
	"mlsd/internal/pgpool"
	"mlsd/internal/sessions"
)

// connectTimeout is how long a command waits for the database.
const connectTimeout = 30 * time.Second

// restoredCommand returns the command "restored".
func restoredCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name: "restored",
		Usage: "say that the database was restored to an earlier state, before nodes use it: begins a generation of the " +
			"event stream",
		Action: node.WithConfig(0, func(ctx context.Context, cfg node.Config, _ *cli.Command) error {
			return node.WithDatabase(ctx, cfg, stderr, func(url string) error { return restored(ctx, url, stdout) })
		}),
	}
}

func restored(ctx context.Context, url string, stdout io.Writer) error {
	return withConnection(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		id, after, err := events.Restored(ctx, conn)
		if err != nil {
			return err
		}
		if err := sessions.Restored(ctx, conn); err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, `generation %d of the event stream begins after event %d
A subscriber that has later events gets OutdatedCursor and reads its convos again. All others go on where they are.
All sessions have ended: clients buy new ones.
`, id, after)
		return err
	})
}

// withConnection runs do with a connection to the database, for at most connectTimeout.
func withConnection(ctx context.Context, url string, do func(context.Context, *pgx.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("MLSD_DATABASE_URL: %w", err)
	}
	conn, err := pgpool.Connect(ctx, cfg.ConnConfig)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return do(ctx, conn)
}
