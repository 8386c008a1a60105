package events

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// EraseSessions deletes the tickets of an account and the rows about its connections. It returns
// the number of deleted rows.
func EraseSessions(ctx context.Context, tx pgx.Tx, p tombstone.Person) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		WITH tickets AS (
			DELETE FROM subscription_tickets WHERE did = $1 RETURNING did
		), connections AS (
			DELETE FROM presence WHERE did = $1 RETURNING did
		)
		SELECT (SELECT count(*) FROM tickets) + (SELECT count(*) FROM connections)`, p.DID).Scan(&n)
	return n, errs.Wrap(err, "erase sessions")
}

// Waiting returns the number of events that name a person and are not in the stream yet.
func Waiting(ctx context.Context, tx pgx.Tx, p tombstone.Person) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		SELECT count(*) FROM outbox WHERE did = $1 OR strpos(detail::text, $1) > 0 AND detail::text ~ $2`, p.DID.String(),
		p.Pattern()).Scan(&n)
	return n, errs.Wrap(err, "look for waiting events")
}

// Erase puts the tombstone of a person into a part of the stream: blocks of one partition of
// events. The partition's name is data here. In events for the person alone, Erase also removes the
// names of devices.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	rows := pgpool.Rows(ctx, tx, `
		SELECT stream_seq, day, coalesce(convo_id, '00000000-0000-0000-0000-000000000000') FROM `+
		pgx.Identifier{b.Table}.Sanitize()+`
		WHERE ctid >= $1::tid AND ctid < $2::tid AND (did = $3 OR strpos(detail::text, $3) > 0 AND detail::text ~ $4)
		ORDER BY stream_seq`, b.From, b.To, p.DID.String(), p.Pattern())
	var seqs []int64
	var days []time.Time
	var stones []string
	var seq int64
	var day time.Time
	var convo uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&seq, &day, &convo}, func() error {
		stone := p.Anywhere()
		if convo != uuid.Nil {
			stone = p.In(convo)
		}
		seqs, days, stones = append(seqs, seq), append(days, day), append(stones, stone.String())
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("look for events: %w", err)
	}
	tag, err := tx.Exec(ctx, `
		UPDATE events e
		SET did = CASE e.did WHEN $4 THEN u.stone ELSE e.did END,
			detail = regexp_replace(
				CASE WHEN e.kind IN (5, 6, 10) AND e.did = $4 THEN e.detail - 'deviceId' - 'keyPackageRef' ELSE e.detail END::text,
				$5, u.stone, 'g')::jsonb
		FROM unnest($1::bigint[], $2::date[], $3::text[]) AS u (stream_seq, day, stone)
		WHERE e.stream_seq = u.stream_seq AND e.day = u.day`, seqs, days, stones, p.DID.String(), p.Pattern())
	return tag.RowsAffected(), errs.Wrap(err, "erase a name from events")
}
