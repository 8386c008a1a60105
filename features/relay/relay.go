// Package relay follows what the network says about accounts: events #account and #identity of a
// relay, a PDS or a Jetstream.
//
//	relay ──WebSocket──▶ receive (receive.go) ──▶ lead (relay.go) ──▶ PostgreSQL: accounts, cursor
//	                       reads frames (message.go)     └──▶ Config.Forget: keys of accounts
//
// One node follows at a time, in the session that holds an advisory lock. The contents of a frame
// are committed before, or together with, the cursor after the frame. So after a crash some frames
// are read again, and none is skipped.
//
// A relay can claim anything. Its claims have no effect on accounts that this service does not
// know. An account has one row, however much a relay says about it.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
	"mlsd/people/accounts"
)

const (
	electEvery   = 2 * time.Second  // how often another node tries to follow
	idleLimit    = "30s"            // after this time, the database ends the session of a follower that has stopped
	cursorEvery  = time.Second      // how often the cursor is stored
	applyTimeout = 10 * time.Second // time limit of one transaction

	queued     = 1000 // messages that wait for the database
	maxBatch   = 500  // messages in one transaction
	firstDelay = time.Second
	lastDelay  = time.Minute
	// forgetRate and forgetBurst limit how many keys are forgotten, per second and at once, because
	// each forgotten key costs a look-up later. Package serviceauth forgets all keys if more than
	// 4,096 are forgotten in 30 s.
	forgetRate, forgetBurst = 50, 500
	// jetstreamKeeps is how long a Jetstream keeps events by default. A Jetstream does not say when
	// events have been lost.
	jetstreamKeeps = 24 * time.Hour
)

// Config configures a Follower. All fields without a default are required.
type Config struct {
	DB     *pgxpool.Pool
	Source Source
	Store  *accounts.Store
	// Forget drops the keys of an account on every node.
	Forget func(context.Context, syntax.DID) error
	// Stored is called after statuses were stored. It must not block. It can be nil.
	Stored  func()
	Metrics *Metrics
	Log     *slog.Logger
	// Delay is how long to wait before the connection after the attempt-th failure. By default it
	// is random, at first up to a second and later up to a minute.
	Delay func(attempt int) time.Duration
	// ElectEvery is how often a node that does not follow tries to follow. 0 means 2 s.
	ElectEvery time.Duration
	// Now is the clock. nil means time.Now.
	Now func() time.Time
}

// Follower follows a relay. Every node runs a Follower, and one of them follows.
type Follower struct {
	cfg        Config
	forgetting *rate.Limiter
	decoder    *decoder
	stored     int64 // the cursor in the database, as lead has read or written it last
}

// New returns a follower.
func New(c Config) (*Follower, error) {
	if c.Stored == nil {
		c.Stored = func() {}
	}
	if c.Delay == nil {
		c.Delay = backOff
	}
	c.ElectEvery = cmp.Or(c.ElectEvery, electEvery)
	if c.Now == nil {
		c.Now = time.Now
	}
	decoder, err := newDecoder(c.Source.kind, c.Now)
	f := &Follower{cfg: c, forgetting: rate.NewLimiter(forgetRate, forgetBurst), decoder: decoder}
	f.cfg.Metrics.configured.Set(1)
	return f, err
}

// backOff is a random delay, longer after more failures.
func backOff(attempt int) time.Duration {
	longest := min(firstDelay<<min(attempt, 10), lastDelay)
	return longest/4 + rand.N(longest*3/4)
}

// Run follows until ctx ends, or tries to while another node follows. It is not a worker.Every,
// because a round lasts as long as its session.
func (f *Follower) Run(ctx context.Context) {
	if f.cfg.Source.Exposed() {
		f.cfg.Log.WarnContext(ctx, "the relay is asked without TLS: others on the way can state that accounts are deleted",
			"relay", f.cfg.Source.String())
	}
	for ctx.Err() == nil {
		switch err := f.follow(ctx); {
		case errors.Is(err, errMoved):
			f.cfg.Log.InfoContext(ctx, "an operator has set the cursor: the relay is read from there")
		case err != nil && ctx.Err() == nil:
			f.cfg.Log.WarnContext(ctx, "the relay is not followed", "error", err)
		}
		worker.Pause(ctx, f.cfg.ElectEvery)
	}
}

// follow follows if no other node does.
func (f *Follower) follow(ctx context.Context) (err error) {
	conn, err := f.elect(ctx)
	if conn == nil || err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		err = errors.Join(err, conn.Close(closing)) // closing frees the lock
	}()
	f.cfg.Log.InfoContext(ctx, "this node follows the relay", "relay", f.cfg.Source.String())
	f.cfg.Metrics.following.Set(1)
	defer f.cfg.Metrics.following.Set(0)
	return f.lead(ctx, conn)
}

// elect takes the lock if it is free, and returns the session that holds it. It returns nil if
// another node follows. If this process stops without losing its connection, the database ends the
// session.
func (f *Follower) elect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	conn, err := pgpool.LockRelay.Hold(ctx, f.cfg.DB)
	if conn == nil || err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `SELECT set_config('idle_session_timeout', $1, false)`, idleLimit); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// lead stores what the relay says, until ctx ends or the session fails.
func (f *Follower) lead(ctx context.Context, conn *pgx.Conn) error {
	cursor, err := f.readCursor(ctx, conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	in, received := make(chan message, queued), make(chan struct{})
	go func() {
		defer close(received)
		f.receive(ctx, cursor, in)
	}()
	defer func() {
		cancel()
		<-received
	}()
	tick := time.NewTicker(cursorEvery)
	defer tick.Stop()
	f.stored = cursor
	position := cursor // everything up to this cursor has been stored
	for {
		select {
		case m := <-in:
			if position, err = f.apply(ctx, conn, position, collect(m, in)); err != nil {
				return err
			}
		case <-tick.C:
			if err := f.writeCursor(ctx, conn, position); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// collect returns the first message and the messages that have arrived meanwhile.
func collect(first message, in <-chan message) []message {
	all := []message{first}
	for len(all) < maxBatch {
		select {
		case m := <-in:
			all = append(all, m)
		default:
			return all
		}
	}
	return all
}

// apply stores the contents of messages, and returns the cursor after them. If it fails, the
// messages are read again.
func (f *Follower) apply(ctx context.Context, conn *pgx.Conn, position int64, all []message) (int64, error) {
	changes, identities := map[syntax.DID]accounts.Change{}, map[syntax.DID]bool{}
	for _, m := range all {
		switch {
		case m.reset:
			position = 0
		case m.kind == kindAccount:
			changes[m.change.DID] = m.change // the last change of each account counts
		case m.kind == kindIdentity:
			identities[m.identity] = true
		}
		if m.cursor > 0 {
			position = m.cursor
		}
	}
	if len(changes)+len(identities) == 0 {
		return position, nil
	}
	if err := f.forgetKnown(ctx, conn, identities); err != nil {
		return position, err
	}
	return position, f.setStatus(ctx, conn, position, changes)
}

// forgetKnown forgets the keys of the accounts that this service knows.
func (f *Follower) forgetKnown(ctx context.Context, conn *pgx.Conn, identities map[syntax.DID]bool) error {
	if len(identities) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	known, err := f.cfg.Store.Known(limited, conn, slices.Collect(maps.Keys(identities)))
	if err != nil {
		return err
	}
	for _, did := range known {
		if err := f.forgetting.Wait(ctx); err != nil {
			return err
		}
		forgetting, cancel := context.WithTimeout(ctx, applyTimeout)
		err := f.cfg.Forget(forgetting, did)
		cancel()
		if err != nil {
			return fmt.Errorf("forget the keys of an account: %w", err)
		}
		f.cfg.Metrics.forgotten.Inc()
	}
	return nil
}

// setStatus stores changes, and the cursor after them, in one transaction.
func (f *Follower) setStatus(ctx context.Context, conn *pgx.Conn, position int64,
	changes map[syntax.DID]accounts.Change) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	var stored []accounts.Change
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
		if len(changes) > 0 {
			all := slices.Collect(maps.Values(changes))
			if stored, err = f.cfg.Store.SetStatus(ctx, tx, f.cfg.Source.String(), all); err != nil {
				return err
			}
		}
		return f.storeCursor(ctx, tx, position)
	})
	if err != nil {
		return err
	}
	for _, c := range stored {
		f.cfg.Metrics.statuses.WithLabelValues(string(c.Status)).Inc()
		f.cfg.Log.InfoContext(ctx, "the network states the state of an account", "did", c.DID, "status", c.Status,
			"seq", c.Seq)
	}
	if len(stored) > 0 {
		f.cfg.Stored()
	}
	return nil
}

// readCursor returns the cursor to continue from. 0 means that only new events are read.
func (f *Follower) readCursor(ctx context.Context, conn *pgx.Conn) (cursor int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	var age time.Duration
	err = conn.QueryRow(ctx, `SELECT cursor, clock_timestamp() - updated_at FROM relay_cursors WHERE source = $1`,
		f.cfg.Source.String()).
		Scan(&cursor, &age)
	if errors.Is(err, pgx.ErrNoRows) {
		f.cfg.Log.InfoContext(ctx, "the relay is followed for the first time: what it said before is not known", "relay",
			f.cfg.Source.String())
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the cursor: %w", err)
	}
	if f.cfg.Source.kind == Jetstream && age > jetstreamKeeps {
		f.gap(ctx, "the Jetstream was not followed for longer than it keeps events", cursor)
	}
	return cursor, nil
}

// writeCursor stores the cursor. It also shows the database that the session is alive.
func (f *Follower) writeCursor(ctx context.Context, conn *pgx.Conn, cursor int64) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	return f.storeCursor(ctx, conn, cursor)
}

// storeCursor stores the cursor, unless the relay has sent none yet. Error: errMoved.
func (f *Follower) storeCursor(ctx context.Context, db pgpool.DB, cursor int64) error {
	tag, err := db.Exec(ctx, `
		INSERT INTO relay_cursors AS r (source, cursor, updated_at)
		SELECT $1::text, $2::bigint, clock_timestamp() WHERE $2 > 0
		ON CONFLICT (source) DO UPDATE SET cursor = excluded.cursor, updated_at = excluded.updated_at WHERE r.cursor = $3`,
		f.cfg.Source.String(), cursor, f.stored)
	switch {
	case err != nil:
		return fmt.Errorf("store the cursor: %w", err)
	case cursor == 0:
		return nil
	case tag.RowsAffected() == 0:
		return errMoved
	}
	f.stored = cursor // if db is a transaction that fails, lead ends, and the next one reads the cursor
	return nil
}

// Errors of cursors.
var (
	// ErrNotFollowed refuses Seek.
	ErrNotFollowed = errors.New("this relay was never followed")
	// errMoved ends lead after a Seek, so that the next one begins there.
	errMoved = errors.New("an operator has set the cursor")
)

// Seek sets the cursor of a relay, and returns the cursor before. The node that follows the relay
// notices it when it stores its own cursor, a second later, and reads the events after the new one.
// 0 means that only new events are read. Error: ErrNotFollowed.
func Seek(ctx context.Context, tx pgx.Tx, s Source, cursor int64) (was int64, err error) {
	err = tx.QueryRow(ctx, `
		WITH before AS (SELECT source, cursor FROM relay_cursors WHERE source = $1 FOR UPDATE)
		UPDATE relay_cursors r SET cursor = $2 FROM before WHERE r.source = before.source RETURNING before.cursor`,
		s.String(), cursor).Scan(&was)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrNotFollowed
	}
	return was, errs.Wrap(err, "set the cursor of a relay")
}

// gap reports that events of the relay are lost. Their statements about accounts remain unknown
// until the relay repeats them.
func (f *Follower) gap(ctx context.Context, why string, cursor int64) {
	f.cfg.Metrics.gaps.Inc()
	f.cfg.Log.ErrorContext(ctx, "events of the relay are lost", "why", why, "cursor", cursor)
}
