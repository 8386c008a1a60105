package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"

	"mlsd/events"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/node"
	"mlsd/people/sessions"
)

// connectTimeout is how long a command waits for the database.
const connectTimeout = 30 * time.Second

// restoredCommand returns the command "restored".
func restoredCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name: "restored",
		Usage: "say that the database was restored to an earlier state, before nodes use it: begins a generation of the " +
			"event stream",
		Action: node.AsService(0, func(ctx context.Context, cfg node.Config, _ *cli.Command) error {
			return node.WithDatabase(ctx, cfg, stderr, func(url string) error { return restored(ctx, url, stdout) })
		}),
	}
}

func restored(ctx context.Context, url string, stdout io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := connect(ctx, url, map[string]string{"application_name": "mlsd restored"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
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
}

// connect connects to the database within connectTimeout, with the given settings of the session.
func connect(ctx context.Context, url string, settings map[string]string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgpool.ConnectFor(ctx, url, settings)
	return conn, errs.Wrap(err, "reach the database")
}
