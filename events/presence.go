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

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
	"mlsd/outbox"
)

const (
	// SyncInterval is how often a node renews its lease.
	SyncInterval = 5 * time.Second

	nodeLease     = 15 * time.Second
	keepNode      = time.Minute            // how long a node is kept after its lease has lapsed
	writeDelay    = 100 * time.Millisecond // changes within this time become one write
	removeTimeout = 5 * time.Second        // time limit of the last write, when the server stops
)

// Release is the binary that a node runs.
type Release struct {
	Build  string // the revision that the binary was built from; "" if the node does not say
	Schema uint   // the newest migration that the binary knows; 0 if the node does not say
}

// Presence stores which devices are connected to this node, in the tables nodes and presence.
// Package push reads them, and does not call connected devices.
//
// The rows count until the lease of the node lapses. Rows and lease are written in one transaction,
// so the rows of a node that cannot write soon stop counting.
type Presence struct {
	db  *pgxpool.Pool
	log *slog.Logger
	now func() time.Time

	release Release

	wake worker.Signal // sent when changed has grown
	node uuid.UUID     // id of the node; owned by RunOnce, which changes it under mu
	head func() int64  // the place of the newest event that this node's connections have; nil means 0

	mu      sync.Mutex // guards the fields below, and is never held during a query
	devices map[device]connections
	changed map[device]bool // devices that have changed since the last write
}

type device struct {
	did syntax.DID
	id  string
}

// connections are the connections of one device to this node.
type connections struct {
	all     group
	resumed group // connections that began at a cursor
}

// group is a number of connections.
type group struct {
	n      int
	since  time.Time // the oldest existing connection began then, or earlier
	newest time.Time // when the newest connection began
}

func (g *group) add(now time.Time) {
	g.n, g.newest = g.n+1, now
	if g.n == 1 {
		g.since = now
	}
}

// remove removes a connection, which may be the oldest.
func (g *group) remove() { g.n, g.since = g.n-1, g.newest }

// PresenceOption changes what NewPresence returns.
type PresenceOption func(*Presence)

// Runs says which release the node runs.
func Runs(r Release) PresenceOption { return func(p *Presence) { p.release = r } }

// NewPresence returns the presence of this node. It uses the node's clock only to measure how long
// a connection has lasted.
func NewPresence(db *pgxpool.Pool, log *slog.Logger, options ...PresenceOption) *Presence {
	p := &Presence{
		db: db, log: log, now: time.Now, wake: worker.NewSignal(), node: uuid.New(),
		devices: map[device]connections{}, changed: map[device]bool{},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

// Node returns the id of this node. It changes if the node loses its lease.
func (p *Presence) Node() uuid.UUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node
}

// Connect says that a connection of a device gets every event from now on. resumed says that the
// connection began at a cursor; if it is false, the connection gets no earlier events. If the
// connection dies, the caller must call Disconnect within outbox.DetectWithin. Without a deviceID,
// Connect has no effect. It changes only memory.
func (p *Presence) Connect(did syntax.DID, deviceID string, resumed bool) {
	if deviceID == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d, now := device{did, deviceID}, p.now()
	c := p.devices[d]
	c.all.add(now)
	if resumed {
		c.resumed.add(now)
	}
	if c.all.n == 1 || resumed && c.resumed.n == 1 {
		p.change(d)
	}
	p.devices[d] = c
}

// Disconnect ends what Connect began. It changes only memory.
func (p *Presence) Disconnect(did syntax.DID, deviceID string, resumed bool) {
	if deviceID == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d := device{did, deviceID}
	c := p.devices[d]
	c.all.remove()
	if resumed {
		c.resumed.remove()
	}
	if c.all.n > 0 {
		p.devices[d] = c
	} else {
		delete(p.devices, d)
	}
	p.change(d)
}

// change marks a device to be written. The caller holds p.mu.
func (p *Presence) change(d device) {
	p.changed[d] = true
	p.wake.Send()
}

// Run writes changes, and renews the lease every interval, until ctx ends. Then it deletes the
// node's row. A round may take one interval, because a connection that has become silent must not
// outlast the lease.
func (p *Presence) Run(ctx context.Context, rounds *worker.Rounds, interval time.Duration) {
	rounds.Every("presence writer", interval, p.log, p.RunOnce, worker.Limit(interval), worker.Wake(p.wake, writeDelay),
		worker.AtEnd(p.remove)).Run(ctx)
}

// RunOnce renews the lease and writes what has changed. Only one goroutine may call it.
func (p *Presence) RunOnce(ctx context.Context) error {
	return errs.Wrap(p.sync(ctx), "sync presence")
}

// SweepNodes deletes nodes whose lease has lapsed.
func SweepNodes(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "nodes", `
		DELETE FROM nodes WHERE id IN (
			SELECT id FROM nodes WHERE lease_expires_at <= now() - $2::interval LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepNode)
}

// sync writes in one transaction. It renews the lease before it reads memory, so that what it reads
// is newer than synced_at. After a lost COMMIT it writes the same rows again, which changes
// nothing.
func (p *Presence) sync(ctx context.Context) (err error) {
	var written map[device]bool
	defer func() {
		if err != nil {
			p.markChanged(written)
		}
	}()
	return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		if err := p.renew(ctx, tx); err != nil {
			return err
		}
		var w writes
		w, written = p.takeChanges()
		return w.run(ctx, tx)
	})
}

// renew renews the lease and sets synced_at to the present, but no later than the oldest event that
// this node's connections lack. If the lease has lapsed or the row is missing, other nodes consider
// this node dead, so it starts again under a new id. All its connections then count as begun now,
// because the node may have missed the end of some.
func (p *Presence) renew(ctx context.Context, tx pgx.Tx) error {
	var head int64
	if p.head != nil {
		head = p.head()
	}
	tag, err := tx.Exec(ctx, `
		UPDATE nodes
		SET lease_expires_at = clock_timestamp() + $2::interval, synced_at = least(clock_timestamp(),
			(SELECT min(created_at) FROM (SELECT created_at FROM events WHERE stream_seq > $3 ORDER BY stream_seq LIMIT $4)
				next), (SELECT created_at FROM outbox WHERE id > (SELECT floor FROM stream) ORDER BY id LIMIT 1))
		WHERE id = $1 AND lease_expires_at > clock_timestamp()`, p.node, nodeLease, head, stepLimit)
	if err != nil || tag.RowsAffected() == 1 {
		return err
	}
	p.startAgain()
	_, err = tx.Exec(ctx, `
		INSERT INTO nodes (id, synced_at, lease_expires_at, build, schema_version)
		VALUES ($1, clock_timestamp(), clock_timestamp() + $2::interval, $3, $4)`,
		p.node, nodeLease, p.release.Build, p.release.Schema)
	return err
}

// startAgain gives the node a new id, and marks all its devices to be written.
func (p *Presence) startAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = uuid.New()
	now := p.now()
	for d, c := range p.devices {
		c.all.since, c.all.newest = now, now
		c.resumed.since, c.resumed.newest = now, now
		p.devices[d], p.changed[d] = c, true
	}
}

// writes are the rows of presence to be written and to be deleted.
type writes struct {
	node      uuid.UUID
	connected deviceList
	attached  []time.Duration  // time since connections.all.since, parallel to connected
	resumed   []*time.Duration // time since connections.resumed.since; nil if no connection was resumed
	ended     deviceList
}

// deviceList holds devices in the form of two parallel array parameters.
type deviceList struct {
	dids []syntax.DID
	ids  []string
}

func (l *deviceList) add(d device) { l.dids, l.ids = append(l.dids, d.did), append(l.ids, d.id) }

// takeChanges returns the rows to write, and the devices in them. These devices no longer count as
// changed.
func (p *Presence) takeChanges() (w writes, devices map[device]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.node = p.node
	now := p.now()
	for d := range p.changed {
		if c, here := p.devices[d]; here {
			w.connected.add(d)
			w.attached = append(w.attached, now.Sub(c.all.since))
			var resumed *time.Duration
			if c.resumed.n > 0 {
				resumed = new(now.Sub(c.resumed.since))
			}
			w.resumed = append(w.resumed, resumed)
		} else {
			w.ended.add(d)
		}
	}
	devices, p.changed = p.changed, map[device]bool{}
	return w, devices
}

// markChanged marks devices to be written again.
func (p *Presence) markChanged(devices map[device]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d := range devices {
		p.changed[d] = true
	}
}

// run writes the rows of presence, under the lock of the node's row in nodes.
func (w writes) run(ctx context.Context, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	var deleted deviceList
	if len(w.connected.ids) > 0 {
		batch.Queue(`
			INSERT INTO presence (did, device_id, node, since, attached_since)
			SELECT did, device_id, $1, coalesce(clock_timestamp() - resumed, 'infinity'), clock_timestamp() - attached
			FROM unnest($2::text[], $3::text[], $4::interval[], $5::interval[]) AS d (did, device_id, resumed, attached)
			ON CONFLICT (did, device_id, node) DO UPDATE SET since = excluded.since, attached_since = excluded.attached_since`,
			w.node, w.connected.dids, w.connected.ids, w.resumed, w.attached)
	}
	if len(w.ended.ids) > 0 {
		batch.Queue(`
			DELETE FROM presence p USING unnest($2::text[], $3::text[]) AS d (did, device_id)
			WHERE p.did = d.did AND p.device_id = d.device_id AND p.node = $1
			RETURNING p.did, p.device_id`, w.node, w.ended.dids, w.ended.ids).
			Query(func(rows pgx.Rows) error {
				var d device
				_, err := pgx.ForEachRow(rows, []any{&d.did, &d.id}, func() error {
					deleted.add(d)
					return nil
				})
				return err
			})
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if len(deleted.ids) == 0 {
		return nil
	}
	return outbox.CallDisconnected(ctx, tx, deleted.dids, deleted.ids)
}

// remove deletes the node's row, and with it the node's presence. Push jobs of its devices stay
// deferred, because most devices soon connect to another node.
func (p *Presence) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	_, err := p.db.Exec(ctx, `DELETE FROM nodes WHERE id = $1`, p.node)
	return err
}

// Node is a node whose lease has not lapsed.
type Node struct {
	ID uuid.UUID
	Release
	RenewedAt time.Time // when the node renewed its lease
}

// LiveNodes returns the nodes that run on a database, or none if the database has no schema. A node
// that was killed counts for up to 15 s.
func LiveNodes(ctx context.Context, db pgpool.Queryer) ([]Node, error) {
	var kept bool
	if err := db.QueryRow(ctx, `SELECT to_regclass('nodes') IS NOT NULL`).Scan(&kept); err != nil {
		return nil, fmt.Errorf("list the live nodes: %w", err)
	}
	if !kept {
		return nil, nil
	}
	rows := pgpool.Rows(ctx, db, `
		SELECT id, build, schema_version, lease_expires_at - $1::interval FROM nodes WHERE lease_expires_at >
			clock_timestamp() ORDER BY id`, nodeLease)
	nodes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n Node, err error) {
		return n, row.Scan(&n.ID, &n.Build, &n.Schema, &n.RenewedAt)
	})
	return nodes, errs.Wrap(err, "list the live nodes")
}
