package node

import (
	"context"
	"fmt"
	"time"

	"mlsd/internal/pgpool"
)

// sayStart is how often a line says that the start has not ended, and what it waits for.
const sayStart = 5 * time.Second

// commitLong is how long a COMMIT waits for a standby before a line says so. With a standby that is
// there, each COMMIT waits for milliseconds.
const commitLong = 2 * time.Second

// commitWaits says that a COMMIT of this role waits for a standby, for longer than $1. It waits for
// ever if no standby is there that synchronous_standby_names asks for.
const commitWaits = `
	SELECT count(*) > 0, 'COMMITs wait for a standby: synchronous_standby_names is ' ||
		quote_literal(current_setting('synchronous_standby_names'))
	FROM pg_stat_activity
	WHERE usename = current_user AND wait_event = 'SyncRep' AND query_start < clock_timestamp() - $1::interval`

// standbyAwaited says that COMMITs wait for a standby for long, or "".
func standbyAwaited(ctx context.Context, db pgpool.Queryer) (string, error) {
	var waits bool
	var says string
	if err := db.QueryRow(ctx, commitWaits, commitLong).Scan(&waits, &says); err != nil || !waits {
		return "", err
	}
	return says, nil
}

// watchStart says every few seconds that the start lasts, until announce ends it. The start itself
// cannot, because it waits for PostgreSQL.
func (l *lifecycle) watchStart(ctx context.Context) error {
	begun := time.Now()
	l.startEnds = l.inBackground(ctx, func(ctx context.Context) {
		tick := time.NewTicker(sayStart)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			why, err := l.startWaits(ctx)
			if ctx.Err() == nil {
				l.log.WarnContext(ctx, "the start has not ended yet", "for", time.Since(begun).Round(time.Second), "cause", why,
					"error", err)
			}
		}
	})
	return nil
}

// startWaits says what the start waits for, as far as PostgreSQL shows it.
func (l *lifecycle) startWaits(ctx context.Context) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sayStart)
	defer cancel()
	conn, err := pgpool.ConnectFor(ctx, l.databaseURL, nil)
	if err != nil {
		return "", fmt.Errorf("ask the database what the start waits for: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the answer counts
	if why, err = standbyAwaited(ctx, conn); err != nil || why != "" {
		return why, err
	}
	err = conn.QueryRow(ctx, `
		SELECT coalesce((
			SELECT 'PostgreSQL runs: ' || left(query, 80) FROM pg_stat_activity
			WHERE usename = current_user AND application_name LIKE 'mlsd%' AND state = 'active' AND pid <> pg_backend_pid()
			ORDER BY query_start LIMIT 1), '')`).Scan(&why)
	return why, err
}
