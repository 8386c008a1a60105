package requests

import (
	"cmp"
	"context"
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

const (
	// CountsInterval is how often the counts are written.
	CountsInterval = 10 * time.Second
	// tracked is how many callers of each kind a node counts by name between two writes. A caller
	// counts once for each of its methods. At a write, the callers with the most requests are written
	// by name. The number written bounds them.
	tracked, written = 5000, 500
	// listed is how many callers of each kind the database keeps by name for an hour.
	listed = 100
	// auditedPerHour bounds the rows that a node writes into the audit log in an hour.
	auditedPerHour = 100
	// keepCallers is how long the counts of an hour are kept. keepConflicts is how long counts of
	// conflicts are kept, without their callers.
	keepCallers   = 7 * 24 * time.Hour
	keepConflicts = 30 * 24 * time.Hour
	// forgetBatch bounds the rows that one write deletes because they are old.
	forgetBatch = 1000
)

// Kinds of requests. All other kinds are the names of conflict errors.
const (
	First   = "first"   // a write under a new idempotency key took effect
	Replay  = "replay"  // the answer was the first answer of its key
	Expired = "expired" // the key was used again after its record's lifetime
	Other   = "other"   // any other request, for example a request without a key
)

// kind returns the kind of the request.
func (q *Request) kind() string {
	switch {
	case q.Conflict:
		return q.Error
	case q.Expired:
		return Expired
	case q.Replayed:
		return Replay
	case q.KeyUsed && q.Error == "":
		return First
	}
	return Other
}

// counter counts requests by caller, kind and hour, for all nodes together and across restarts. It
// shows which callers sent the most requests. It also shows how many conflicts there were, because
// conflicts leave no other row.
//
// Requests are counted in memory and written in the background, never by a request. If a write
// fails, its counts are dropped, because the database may have them already. So a failed write can
// lose counts, but no request counts twice.
//
// Anybody can have any number of DIDs. So a node counts at most 500 callers of each kind by name,
// and the database keeps at most 100 for each hour and kind. The counts of all other callers are in
// one row. See top.
type counter struct {
	db          *pgxpool.Pool
	keyConflict string // the name of the error that the audit log records

	mu      sync.Mutex      // guards the fields below
	callers map[string]*top // counts since the last flush, by kind

	flushing sync.Mutex      // held during a flush; guards the fields below
	hour     time.Time       // hour of the last flush
	audited  map[caller]bool // callers that the audit log has for this hour; at most auditedPerHour
}

func newCounter(db *pgxpool.Pool, keyConflict string) *counter {
	return &counter{db: db, keyConflict: keyConflict, callers: map[string]*top{}, audited: map[caller]bool{}}
}

// add counts one request.
func (c *counter) add(q *Request) {
	kind := q.kind()
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.callers[kind]
	if t == nil {
		t = newTop(tracked)
		c.callers[kind] = t
	}
	key := ""
	if kind == c.keyConflict { // the audit log records the key
		key = q.Key
	}
	t.add(caller{q.Caller, q.NSID}, q.Took, key)
}

var (
	// writeCallers adds the counts of callers to an hour.
	//
	//go:embed write_callers.sql
	writeCallers string
	// trimCallers moves the counts of callers that are not among the first $2 of an hour into the
	// row of all other callers.
	//
	//go:embed trim_callers.sql
	trimCallers string
	// forgetCallers deletes counts that are too old.
	//
	//go:embed forget_callers.sql
	forgetCallers string
)

// flush adds the counts to the current hour of the database's clock, and deletes hours that are too
// old. A flush is one transaction, and only one node at a time runs it.
func (c *counter) flush(ctx context.Context) error {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	c.mu.Lock()
	callers := c.callers
	c.callers = map[string]*top{}
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
		return tx.SendBatch(ctx, c.writes(callers, hour)).Close()
	})
	return errs.Wrap(err, "requests since the last write are not counted")
}

// writes returns the statements of one flush.
func (c *counter) writes(callers map[string]*top, hour time.Time) *pgx.Batch {
	b := &pgx.Batch{}
	if len(callers) > 0 {
		rows := callerColumns(callers)
		b.Queue(writeCallers, pgx.NamedArgs{"hour": hour, "kinds": rows.kinds, "dids": rows.dids, "nsids": rows.nsids,
			"counts": rows.ns, "seconds": rows.seconds})
		b.Queue(trimCallers, hour, listed)
	}
	c.newConflicts(b, callers[c.keyConflict], hour)
	b.Queue(forgetCallers, keepCallers, keepConflicts, forgetBatch)
	return b
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
		all := t.sorted()
		for _, e := range all[min(written, len(all)):] {
			t.others[e.nsid] = t.others[e.nsid].plus(e.sum)
		}
		for _, e := range all[:min(written, len(all))] {
			add(kind, e.did, e.nsid, e.sum)
		}
		for nsid, s := range t.others {
			add(kind, "", nsid, s)
		}
	}
	return rows
}

// newConflicts queues rows of the audit log for conflicts, the most frequent first. It queues a row
// only for the first conflict of a caller and method in the hour.
func (c *counter) newConflicts(b *pgx.Batch, t *top, hour time.Time) {
	if !hour.Equal(c.hour) {
		c.hour = hour
		clear(c.audited)
	}
	if t == nil {
		return
	}
	for _, e := range t.sorted() {
		if c.audited[e.caller] || len(c.audited) == auditedPerHour {
			continue
		}
		c.audited[e.caller] = true
		b.Queue(`
			INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
			VALUES ('record', $1, $2, 'completed', 'conflict', 'used for another request', $3)`, e.nsid+" "+e.key, e.did, e.n)
	}
}

// EraseCounts moves the counts of a caller into the rows of all other callers, and returns how many
// rows it has deleted. The transaction must be one of maintenance.
func EraseCounts(ctx context.Context, tx pgx.Tx, p tombstone.Person) (int64, error) {
	// A flush holds this lock too, because it writes many rows.
	if err := pgpool.LockUsage.Wait(ctx, tx, ""); err != nil {
		return 0, err
	}
	var n int64
	err := tx.QueryRow(ctx, `
		WITH gone AS (
			DELETE FROM caller_counts WHERE caller_did = $1 RETURNING hour, kind, nsid, n, seconds
		), moved AS (
			INSERT INTO caller_counts AS c (hour, kind, caller_did, nsid, n, seconds, weight)
			SELECT hour, kind, '', nsid, n, seconds, 0 FROM gone
			ON CONFLICT (hour, kind, caller_did, nsid) DO UPDATE SET n = c.n + excluded.n, seconds = c.seconds + excluded.seconds
		)
		SELECT count(*) FROM gone`, p.DID).Scan(&n)
	return n, errs.Wrap(err, "erase a caller's counts")
}

// caller is one caller of one method.
type caller struct{ did, nsid string }

// sum is a number of requests and their total time.
type sum struct {
	n    int64
	took time.Duration
}

func (s sum) plus(o sum) sum { return sum{s.n + o.n, s.took + o.took} }

// entry is a caller that is counted by name.
type entry struct {
	caller
	sum
	key string // key passed to the last call of add
}

// top counts requests by caller in bounded memory. It counts the first limit callers by name, and
// all other callers together. Every request is counted once. A caller with many requests is usually
// among the first callers, because counting starts again after each write.
type top struct {
	limit   int
	entries map[caller]*entry
	others  map[string]sum // by method
}

func newTop(limit int) *top {
	return &top{limit: limit, entries: map[caller]*entry{}, others: map[string]sum{}}
}

// add counts a request of c. The entry remembers key, which can be "".
func (t *top) add(c caller, took time.Duration, key string) {
	e := t.entries[c]
	switch {
	case e != nil:
	case len(t.entries) < t.limit:
		c.did = strings.Clone(c.did) // does not keep the rest of the request in memory
		e = &entry{caller: c}
		t.entries[c] = e
	default:
		t.others[c.nsid] = t.others[c.nsid].plus(sum{1, took})
		return
	}
	e.sum = e.plus(sum{1, took})
	e.key = strings.Clone(key)
}

// sorted returns the entries. Entries with the most requests come first.
func (t *top) sorted() []*entry {
	return slices.SortedFunc(maps.Values(t.entries), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.did, b.did), cmp.Compare(a.nsid, b.nsid))
	})
}

// RecordExport adds a row to the audit log: an account is about to read all data about it. It adds
// at most one row in an hour, because an export has many pages.
func RecordExport(ctx context.Context, db *pgxpool.Pool, caller syntax.DID, nsid string) error {
	_, err := db.Exec(ctx, `
		INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
		SELECT 'account', $1, $1, 'held', 'exported', $2, 0
		WHERE NOT EXISTS (
			SELECT FROM audit_log
			WHERE entity = 'account' AND entity_id = $1 AND at > clock_timestamp() - interval '1 hour'
				AND to_state = 'exported' AND reason = $2)`, caller, nsid)
	return errs.Wrap(err, "record an export")
}
