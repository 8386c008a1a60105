package requests

import (
	"context"
	"log/slog"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

// flushRows writes the access lines and rows. Rows that cannot be written are dropped; their lines
// are in the log.
func (r *Recorder) flushRows(ctx context.Context) error {
	r.mu.Lock()
	p := r.pending
	r.pending = pending{}
	r.mu.Unlock()
	r.log(ctx, p)
	if len(p.known) == 0 {
		return nil
	}
	err := pgx.BeginFunc(ctx, r.cfg.DB, func(tx pgx.Tx) error { return r.insert(ctx, tx, p.known) })
	return errs.Wrap(err, "%d requests leave no row", len(p.known))
}

// log writes the access lines. An error of the log has nowhere to go.
func (r *Recorder) log(ctx context.Context, p pending) {
	handler := r.cfg.Log.Handler()
	if !handler.Enabled(ctx, slog.LevelInfo) {
		return
	}
	for _, some := range [][]Request{p.known, p.others} {
		for i := range some {
			_ = handler.Handle(ctx, r.line(&some[i]))
		}
	}
	if p.leftOut > 0 {
		r.cfg.Log.InfoContext(ctx, "access", "left_out", p.leftOut)
	}
}

// line is the access line of a request. It names the caller only by a hash.
func (r *Recorder) line(q *Request) slog.Record {
	line := slog.NewRecord(q.At, slog.LevelInfo, "access", 0)
	line.AddAttrs(slog.String("request", q.ID), slog.String("nsid", q.NSID), slog.Int("status", q.Status))
	if q.Error != "" {
		line.AddAttrs(slog.String("error", q.Error))
	}
	line.AddAttrs(slog.Float64("ms", float64(q.Took.Microseconds())/1000), slog.Int64("bytes", q.Bytes))
	if q.Caller != "" {
		line.AddAttrs(slog.String("caller", r.Hash(q.Caller)))
	}
	if q.Trace != "" {
		line.AddAttrs(slog.String("trace", q.Trace))
	}
	return line
}

// insert writes rows. Their time is by the database's clock.
func (r *Recorder) insert(ctx context.Context, tx pgx.Tx, all []Request) error {
	b, now := &pgx.Batch{}, r.cfg.Now()
	b.Queue(`SELECT set_config('mlsd.maintenance', 'on', true)`)
	for i := range all {
		q := &all[i]
		b.Queue(`
			INSERT INTO requests (node, at, request_id, nsid, status, error, message, detail, caller_did, key, convo_id,
				replayed, expired, seconds)
			VALUES ($1, clock_timestamp() - $2::float8 * interval '1 second', $3, $4, $5, $6, $7, $8, $9, $10, $11,
				$12, $13, $14)`,
			r.cfg.Node, now.Sub(q.At).Seconds(), q.ID, q.NSID, q.Status, q.Error,
			pgpool.Storable(q.Message[:min(len(q.Message), maxMessage)]), q.Detail, q.Caller, q.Key,
			uuid.NullUUID{UUID: q.Convo, Valid: q.Convo != uuid.Nil}, q.Replayed, q.Expired, q.Took.Seconds())
	}
	return tx.SendBatch(ctx, b).Close()
}

// maxRows bounds the table, whatever Config.Keep says: the newest rows are kept.
const maxRows = 1_000_000

// Sweep deletes rows that are too old, and the oldest rows beyond maxRows. Ids are in the order of
// time, to within the interval of the writers.
func (r *Recorder) Sweep() worker.Sweep {
	return worker.Statement(r.cfg.DB, "requests", `
		DELETE FROM requests WHERE id IN (
			SELECT r.id FROM (SELECT id FROM requests ORDER BY id LIMIT $1) oldest JOIN requests r USING (id)
			WHERE r.at < now() - $2::interval OR r.id <= (SELECT max(id) FROM requests) - $3
			FOR UPDATE OF r SKIP LOCKED)`, r.cfg.Keep, maxRows)
}

// Erase deletes from a part of the table the requests of an account, and requests of others whose
// row names the account. The transaction must be one of maintenance.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM requests
		WHERE ctid >= $1::tid AND ctid < $2::tid
			AND (caller_did = $3 OR strpos(message, $3) > 0 OR strpos(key, $3) > 0 OR strpos(request_id, $3) > 0 OR
				strpos(detail::text, $3) > 0)`,
		b.From, b.To, p.DID.String())
	return tag.RowsAffected(), errs.Wrap(err, "erase requests")
}
