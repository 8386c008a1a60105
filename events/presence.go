package events

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/push"
)

const (
	// SyncInterval is how often a node renews its lease.
	SyncInterval = 5 * time.Second

	nodeLease   = 15 * time.Second
	keepNode    = time.Minute            // after its lease: nobody believes it any more
	gather      = 100 * time.Millisecond // in which what begins and ends becomes one write
	leaveWithin = 5 * time.Second
)

// Presence tells the database which devices are connected to this node. It is what the tables nodes and presence are written by; package
// push reads them, to spare a device the call that it does not need.
//
// What a node says counts as long as its lease does. It is written in the transaction that renews the lease, so a node that cannot
// write it is not believed for longer.
type Presence struct {
	db  *pgxpool.Pool
	log *slog.Logger
	now func() time.Time

	wake chan struct{} // something has changed
	node uuid.UUID     // RunOnce's
	hub  *Hub          // set before anything is connected

	mu      sync.Mutex // guards the rest, and is never held across a query
	devices map[device]connections
	changed map[device]bool // since it was last written
}

type device struct {
	did syntax.DID
	id  string
}

// connections are those of one device to this node.
type connections struct {
	n      int
	since  time.Time // one that is still there began by then
	newest time.Time // began the newest
}

// NewPresence returns the presence of this node. Its clock only measures how long a connection lasts.
func NewPresence(db *pgxpool.Pool, log *slog.Logger) *Presence {
	return &Presence{
		db: db, log: log, now: time.Now, wake: make(chan struct{}, 1), node: uuid.New(),
		devices: map[device]connections{}, changed: map[device]bool{},
	}
}

// follow has the node's word count only up to what the hub has handed out.
func (p *Presence) follow(h *Hub) { p.hub = h }

// Connected says that a connection of a device has caught up, and is told everything as it happens from now on. If it dies, Gone must
// follow within 36 s: push counts on it. A connection that names no device hides none. It touches memory only.
func (p *Presence) Connected(did syntax.DID, deviceID string) {
	if deviceID == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d, now := device{did, deviceID}, p.now()
	c := p.devices[d]
	c.n, c.newest = c.n+1, now
	if c.n == 1 {
		c.since = now
		p.change(d)
	}
	p.devices[d] = c
}

// Gone says that a connection, of which Connected told, has ended. It touches memory only.
func (p *Presence) Gone(did syntax.DID, deviceID string) {
	if deviceID == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d := device{did, deviceID}
	c := p.devices[d]
	if c.n--; c.n > 0 {
		c.since = c.newest // the one that ended may have been the oldest
		p.devices[d] = c
	} else {
		delete(p.devices, d)
	}
	p.change(d)
}

// change notes that a device is to be written. p.mu is held.
func (p *Presence) change(d device) {
	p.changed[d] = true
	select {
	case p.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Run writes what changes, and renews the lease every interval, until ctx ends; then the node's devices are not connected any more.
func (p *Presence) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := p.RunOnce(ctx); err != nil && ctx.Err() == nil {
			p.log.ErrorContext(ctx, "presence could not be written", "error", err)
		}
		select {
		case <-ctx.Done():
			if err := p.leave(ctx); err != nil {
				p.log.ErrorContext(ctx, "presence could not be taken back", "error", err)
			}
			return
		case <-tick.C:
		case <-p.wake:
			select {
			case <-ctx.Done():
			case <-time.After(gather):
			}
		}
	}
}

// RunOnce renews the lease, writes what has changed, and forgets dead nodes. It is for one goroutine.
func (p *Presence) RunOnce(ctx context.Context) error {
	if err := p.sync(ctx); err != nil {
		return fmt.Errorf("sync presence: %w", err)
	}
	_, err := p.db.Exec(ctx, `
		DELETE FROM nodes WHERE id IN (
			SELECT id FROM nodes WHERE lease_expires_at <= now() - $1::interval LIMIT 10 FOR UPDATE SKIP LOCKED)`, keepNode)
	if err != nil {
		return fmt.Errorf("forget dead nodes: %w", err)
	}
	return nil
}

// sync is one transaction. It renews the lease first: what it reads from memory then is newer than synced_at. After an error the
// outcome of the COMMIT does not matter: to write the same again changes nothing.
func (p *Presence) sync(ctx context.Context) (err error) {
	var taken map[device]bool
	defer func() {
		if err != nil {
			p.putBack(taken)
		}
	}()
	return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		if err := p.renew(ctx, tx); err != nil {
			return err
		}
		var w writes
		w, taken = p.take()
		return w.run(ctx, tx)
	})
}

// renew renews the lease, and says up to when all that happened has been handed to the connections. If it has lapsed, or the row is gone, the node was thought dead, and may have slept: it comes back under
// another id, and what it says of its devices, all of which it says anew, counts from now on.
func (p *Presence) renew(ctx context.Context, tx pgx.Tx) error {
	var head int64
	if p.hub != nil {
		head = p.hub.Head()
	}
	tag, err := tx.Exec(ctx, `
		UPDATE nodes
		SET lease_expires_at = clock_timestamp() + $2::interval, synced_at = least(clock_timestamp(),
			(SELECT created_at FROM events WHERE stream_seq = $3 + 1), (SELECT created_at FROM outbox ORDER BY id LIMIT 1))
		WHERE id = $1 AND lease_expires_at > clock_timestamp()`, p.node, nodeLease, head)
	if err != nil || tag.RowsAffected() == 1 {
		return err
	}
	p.comeBack()
	_, err = tx.Exec(ctx, `
		INSERT INTO nodes (id, synced_at, lease_expires_at)
		VALUES ($1, clock_timestamp(), clock_timestamp() + $2::interval)`, p.node, nodeLease)
	return err
}

func (p *Presence) comeBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = uuid.New()
	now := p.now()
	for d, c := range p.devices {
		c.since, c.newest = now, now
		p.devices[d], p.changed[d] = c, true
	}
}

// writes are the rows of presence to be written and to be deleted.
type writes struct {
	node                               uuid.UUID
	dids, deviceIDs, goneDIDs, goneIDs []string
	ages                               []time.Duration // how long ago since is
}

// take takes what has changed.
func (p *Presence) take() (w writes, taken map[device]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.node = p.node
	now := p.now()
	for d := range p.changed {
		if c, here := p.devices[d]; here {
			w.dids, w.deviceIDs, w.ages = append(w.dids, d.did.String()), append(w.deviceIDs, d.id), append(w.ages, now.Sub(c.since))
		} else {
			w.goneDIDs, w.goneIDs = append(w.goneDIDs, d.did.String()), append(w.goneIDs, d.id)
		}
	}
	taken, p.changed = p.changed, map[device]bool{}
	return w, taken
}

// putBack has what was taken and not written be written the next time.
func (p *Presence) putBack(taken map[device]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d := range taken {
		p.changed[d] = true
	}
}

// run writes. Nobody else writes a node's rows while it holds its row of nodes.
func (w writes) run(ctx context.Context, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	if len(w.dids) > 0 {
		batch.Queue(`
			INSERT INTO presence (did, device_id, node, since)
			SELECT did, device_id, $1, clock_timestamp() - age FROM unnest($2::text[], $3::text[], $4::interval[]) AS d (did, device_id, age)
			ON CONFLICT (did, device_id, node) DO UPDATE SET since = excluded.since`, w.node, w.dids, w.deviceIDs, w.ages)
	}
	if len(w.goneDIDs) > 0 {
		batch.Queue(`
			WITH gone AS (
				DELETE FROM presence p USING unnest($2::text[], $3::text[]) AS d (did, device_id)
				WHERE p.did = d.did AND p.device_id = d.device_id AND p.node = $1
				RETURNING p.did, p.device_id, p.node
			)`+push.CallGone, w.node, w.goneDIDs, w.goneIDs)
	}
	return tx.SendBatch(ctx, batch).Close()
}

// leave takes the node's row back, and with it what it said. Deferred jobs of its devices come when they are due: most devices are about to
// connect to another node.
func (p *Presence) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	_, err := p.db.Exec(ctx, `DELETE FROM nodes WHERE id = $1`, p.node)
	return err
}
