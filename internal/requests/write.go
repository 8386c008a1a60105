package requests

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
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

// line is the access line of a request. It names the caller by its hash alone.
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

// columns are the columns of the table requests.
type columns struct {
	ids, nsids, errors, messages, dids, keys []string
	statuses                                 []int
	details                                  []*string
	convos                                   []*uuid.UUID
	replayed, expired                        []bool
	ages, seconds                            []float64
}

// insert writes rows. Their time is by the database's clock.
func (r *Recorder) insert(ctx context.Context, tx pgx.Tx, all []Request) error {
	var c columns
	for i, now := 0, r.cfg.Now(); i < len(all); i++ {
		c.add(&all[i], now)
	}
	if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true)`); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO requests (node, at, request_id, nsid, status, error, message, detail, caller_did, key, convo_id, replayed,
			expired, seconds)
		SELECT $1, clock_timestamp() - age * interval '1 second', id, nsid, status, error, message, detail, did, key, convo,
			replayed, expired, seconds
		FROM unnest($2::float8[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::jsonb[], $9::text[],
			$10::text[],
			$11::uuid[], $12::boolean[], $13::boolean[], $14::float8[])
			AS of (age, id, nsid, status, error, message, detail, did, key, convo, replayed, expired, seconds)`,
		r.cfg.Node, c.ages, c.ids, c.nsids, c.statuses, c.errors, c.messages, c.details, c.dids, c.keys, c.convos, c.replayed,
		c.expired, c.seconds)
	return err
}

func (c *columns) add(q *Request, now time.Time) {
	var detail *string
	if q.Detail != nil {
		text := string(q.Detail)
		detail = &text
	}
	var convo *uuid.UUID
	if q.Convo != uuid.Nil {
		convo = &q.Convo
	}
	c.ages, c.ids, c.nsids = append(c.ages, now.Sub(q.At).Seconds()), append(c.ids, q.ID), append(c.nsids, q.NSID)
	c.statuses, c.errors, c.messages = append(c.statuses, q.Status), append(c.errors, q.Error),
		append(c.messages, storable(q.Message))
	c.details, c.dids, c.keys, c.convos = append(c.details, detail), append(c.dids, q.Caller), append(c.keys, q.Key),
		append(c.convos, convo)
	c.replayed, c.expired = append(c.replayed, q.Replayed), append(c.expired, q.Expired)
	c.seconds = append(c.seconds, q.Took.Seconds())
}

// storable returns the beginning of a text, without what PostgreSQL does not store.
func storable(text string) string {
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}
