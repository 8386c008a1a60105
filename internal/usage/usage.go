// Package usage keeps statistics of requests by the hour, for all nodes together and across
// restarts: how many were refused because of another request (table conflict_counts), and which
// callers sent the most (table caller_counts). Such a request leaves no other row.
//
// Requests are counted in memory and written in the background, never by a request. If a write
// fails, its counts are dropped, because the database possibly has them. So a failed write can lose
// counts, and no request counts twice.
//
// Anybody can have any number of DIDs. So a node counts at most 500 callers of each kind by name,
// and the database keeps at most 100 of an hour and kind. The counts of the others are in one row.
// See top.
package usage

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

const (
	// tracked is how many callers a node counts by name between two writes, for each kind. A caller
	// counts once for each of its methods.
	tracked = 500
	// listed is how many callers of an hour the database keeps by name, for each kind.
	listed = 100
	// auditedPerHour bounds the rows that a node writes into the audit log in an hour.
	auditedPerHour = 100
	// keepConflicts and keepCallers are how long the counts of an hour are kept.
	keepConflicts = 30 * 24 * time.Hour
	keepCallers   = 7 * 24 * time.Hour
	// deleteBatch bounds the rows of one table that one Flush deletes.
	deleteBatch = 1000
)

// Kinds of requests. The other kinds are the names of the errors of conflicts.
const (
	First   = "first"   // a write under a new idempotency key took effect
	Replay  = "replay"  // the answer was the first one of its key
	Expired = "expired" // the key was used anew after its record's lifetime
	Other   = "other"   // every other request, such as one without a key
)

// Request is one request of a verified caller, after its answer.
type Request struct {
	Caller   string
	NSID     string
	Key      string // the idempotency key of the write; "": none
	Replayed bool   // the answer was the first one of its key
	Expired  bool   // the lifetime of the key's record was over
	Failed   bool   // the answer was an error
	// Conflict is the name of the answer's error if the request was refused because of another one.
	// "": it was not.
	Conflict string
	Took     time.Duration
}

// kind is what became of the request.
func (r *Request) kind() string {
	switch {
	case r.Expired:
		return Expired
	case r.Conflict != "":
		return r.Conflict
	case r.Replayed:
		return Replay
	case r.Key != "" && !r.Failed:
		return First
	}
	return Other
}

// conflict is what has a count of its own: an error of a method.
type conflict struct{ name, nsid string }

// counts are the requests since the last Flush.
type counts struct {
	conflicts map[conflict]int64 // as many entries as there are errors and methods
	callers   map[string]*top    // by kind
}

func newCounts() counts { return counts{map[conflict]int64{}, map[string]*top{}} }

// Counter counts requests. Methods are safe for concurrent use.
type Counter struct {
	db          *pgxpool.Pool
	log         *slog.Logger
	keyConflict string // the name of the error that the audit log records

	mu sync.Mutex // guards counts
	counts

	flushing sync.Mutex      // held during a Flush; guards the fields below
	hour     time.Time       // of the last Flush
	audited  map[caller]bool // in that hour; at most auditedPerHour
}

// New returns a counter that writes to db. keyConflict is the name of the error that says that a
// key was used for another request. The audit log gets the first such request of a caller, method
// and hour, at most 100 rows in an hour.
func New(db *pgxpool.Pool, log *slog.Logger, keyConflict string) *Counter {
	return &Counter{db: db, log: log, keyConflict: keyConflict, counts: newCounts(), audited: map[caller]bool{}}
}

// Add counts one request.
func (c *Counter) Add(r Request) {
	kind := r.kind()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Conflict != "" {
		c.conflicts[conflict{r.Conflict, r.NSID}]++
	}
	t := c.callers[kind]
	if t == nil {
		t = newTop(tracked)
		c.callers[kind] = t
	}
	key := ""
	if kind == c.keyConflict { // the audit log records it
		key = r.Key
	}
	t.add(caller{r.Caller, r.NSID}, r.Took, key)
}

// Run flushes after every interval until ctx ends, and then once more.
func (c *Counter) Run(ctx context.Context, rounds *worker.Rounds, interval time.Duration) {
	rounds.Every("usage counter", interval, c.log, c.Flush, worker.AfterInterval(), worker.AtEnd(c.Flush)).Run(ctx)
}

var (
	// writeCallers adds the counts of callers to an hour.
	//
	//go:embed write_callers.sql
	writeCallers string
	// trimCallers moves the counts of the callers that are not among the first $2 of an hour into
	// the row of all others.
	//
	//go:embed trim_callers.sql
	trimCallers string
)

// Flush adds the counts to the current hour of the database's clock, and deletes hours that are too
// old. It is one transaction, and one node at a time makes it.
func (c *Counter) Flush(ctx context.Context) error {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	c.mu.Lock()
	counts := c.counts
	c.counts = newCounts()
	c.mu.Unlock()
	err := pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) error {
		if err := pgpool.LockUsage.Wait(ctx, tx, ""); err != nil {
			return err
		}
		var hour time.Time
		err := tx.QueryRow(ctx, `
			SELECT date_trunc('hour', clock_timestamp(), 'UTC') FROM set_config('mlsd.maintenance', 'on', true)`).Scan(&hour)
		if err != nil {
			return err
		}
		return tx.SendBatch(ctx, c.writes(counts, hour)).Close()
	})
	if err != nil {
		return fmt.Errorf("requests since the last write are not counted: %w", err)
	}
	return nil
}

// writes returns the statements of one Flush.
func (c *Counter) writes(counts counts, hour time.Time) *pgx.Batch {
	b := &pgx.Batch{}
	if len(counts.conflicts) > 0 {
		names, nsids, ns := conflictColumns(counts.conflicts)
		b.Queue(`
			INSERT INTO conflict_counts AS c (hour, kind, nsid, n)
			SELECT $1, * FROM unnest($2::text[], $3::text[], $4::bigint[])
			ON CONFLICT (hour, kind, nsid) DO UPDATE SET n = c.n + excluded.n`, hour, names, nsids, ns)
	}
	if len(counts.callers) > 0 {
		rows := callerColumns(counts.callers)
		b.Queue(writeCallers, hour, rows.kinds, rows.dids, rows.nsids, rows.ns, rows.seconds)
		b.Queue(trimCallers, hour, listed)
	}
	if audits := c.newConflicts(counts.callers[c.keyConflict], hour); len(audits.ids) > 0 {
		b.Queue(`
			INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
			SELECT 'record', id, did, 'completed', 'conflict', 'used for another request', n
			FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (id, did, n)`, audits.ids, audits.dids, audits.ns)
	}
	b.Queue(`
		DELETE FROM conflict_counts
		WHERE (hour, kind, nsid) IN (
			SELECT hour, kind, nsid FROM conflict_counts WHERE hour <= now() - $1::interval
			ORDER BY hour LIMIT $2 FOR UPDATE SKIP LOCKED)`, keepConflicts, deleteBatch)
	b.Queue(`
		DELETE FROM caller_counts
		WHERE (hour, kind, caller_did, nsid) IN (
			SELECT hour, kind, caller_did, nsid FROM caller_counts WHERE hour <= now() - $1::interval
			ORDER BY hour LIMIT $2)`, keepCallers, deleteBatch)
	return b
}

// conflictColumns returns the counts as arrays. Every node sorts them in the same order, so that
// two nodes cannot deadlock.
func conflictColumns(counts map[conflict]int64) (names, nsids []string, ns []int64) {
	all := make([]conflict, 0, len(counts))
	for c := range counts {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b conflict) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.nsid, b.nsid)) })
	for _, c := range all {
		names, nsids, ns = append(names, c.name), append(nsids, c.nsid), append(ns, counts[c])
	}
	return names, nsids, ns
}

// callerRows are the columns of caller_counts.
type callerRows struct {
	kinds, dids, nsids []string
	ns                 []int64
	seconds            []float64
}

func callerColumns(callers map[string]*top) (rows callerRows) {
	add := func(kind, did, nsid string, s sum) {
		rows.kinds, rows.dids, rows.nsids = append(rows.kinds, kind), append(rows.dids, did), append(rows.nsids, nsid)
		rows.ns, rows.seconds = append(rows.ns, s.n), append(rows.seconds, s.took.Seconds())
	}
	for kind, t := range callers {
		for _, e := range t.entries {
			add(kind, e.did, e.nsid, e.sum)
		}
		for nsid, s := range t.others {
			add(kind, "", nsid, s)
		}
	}
	return rows
}

// conflictAudits are columns of rows of the audit log.
type conflictAudits struct {
	ids, dids []string
	ns        []int64
}

// newConflicts returns the conflicts that are the first ones of their caller and method in the
// hour, the most frequent first.
func (c *Counter) newConflicts(t *top, hour time.Time) (audits conflictAudits) {
	if !hour.Equal(c.hour) {
		c.hour = hour
		clear(c.audited)
	}
	if t == nil {
		return audits
	}
	for _, e := range t.sorted() {
		if c.audited[e.caller] || len(c.audited) == auditedPerHour {
			continue
		}
		c.audited[e.caller] = true
		audits.ids, audits.dids, audits.ns = append(audits.ids, e.nsid+" "+e.key), append(audits.dids, e.did), append(audits.ns, e.n)
	}
	return audits
}
