package requests_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/requests"
	"mlsd/internal/pgtest"
)

// first is a write of a caller under a new key.
func first(did string, took time.Duration) requests.Request {
	return requests.Request{Caller: did, Admitted: true, NSID: "sendMessage", Key: "k", KeyUsed: true, Took: took}
}

// callerCount is a row of caller_counts. DID "" stands for all callers without a row.
type callerCount struct {
	Kind, DID, NSID string
	N               int64
	Seconds         float64
}

func callerCounts(t *testing.T, db *pgxpool.Pool) []callerCount {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT kind, caller_did, nsid, sum(n)::bigint, sum(seconds) FROM caller_counts GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[callerCount])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// sumOf adds the counts up, and returns how many callers have rows.
func sumOf(found []callerCount) (n int64, seconds float64, named int) {
	for _, c := range found {
		n, seconds = n+c.N, seconds+c.Seconds
		if c.DID != "" {
			named++
		}
	}
	return n, seconds, named
}

// Finding S3: what became of requests is counted by caller and method, with the time that they
// took. Nodes add up.
func TestCallers(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	a, b := newCounter(db), newCounter(db)
	of := func(did string, took time.Duration, change func(*requests.Request)) requests.Request {
		r := requests.Request{Caller: did, Admitted: true, NSID: "createConvo", Key: "k", KeyUsed: true, Took: took}
		change(&r)
		return r
	}
	for _, node := range []*requests.Recorder{a, b} {
		node.Add(of("did:plc:a", time.Second, func(*requests.Request) {}))
		node.Add(of("did:plc:a", time.Second/2, func(r *requests.Request) { r.Replayed = true }))
		node.Add(of("did:plc:a", time.Second,
			func(r *requests.Request) { r.Expired, r.Error, r.Conflict = true, "EpochMismatch", true }))
		node.Add(of("did:plc:a", time.Second, func(r *requests.Request) { r.Expired = true }))
		node.Add(of("did:plc:b", time.Second, func(r *requests.Request) { r.Error = "NotMember" }))
		node.Add(of("did:plc:b", time.Second, func(r *requests.Request) { r.Key, r.KeyUsed, r.NSID = "", false, "getEpoch" }))
		node.Add(refused("IdempotencyConflict", "addMembers"))
	}
	flush(t, a, b, a)
	want := []callerCount{
		{"EpochMismatch", "did:plc:a", "createConvo", 2, 2},
		{"IdempotencyConflict", "did:plc:alice", "addMembers", 2, 2},
		{"expired", "did:plc:a", "createConvo", 2, 2},
		{"first", "did:plc:a", "createConvo", 2, 2},
		{"other", "did:plc:b", "createConvo", 2, 2},
		{"other", "did:plc:b", "getEpoch", 2, 2},
		{"replay", "did:plc:a", "createConvo", 2, 1},
	}
	if diff := cmp.Diff(want, callerCounts(t, db)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Finding S3: many callers do not fill the memory or the table, and do not hide the one who sends
// more than each of them. All requests are counted.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	const rounds, outsiders = 6, 1500
	var sent int64
	for round := range rounds {
		for n := range outsiders {
			c.Add(first(fmt.Sprintf("did:plc:%d-%d", round, n), time.Second))
			sent++
			if n%50 == 0 { // in small portions: 2 % of all
				c.Add(first("did:plc:busy", time.Second))
				sent++
			}
		}
		flush(t, c)
		found := callerCounts(t, db)
		n, seconds, named := sumOf(found)
		if n != sent || seconds != float64(sent) || named > requests.Listed {
			t.Fatalf("after round %d: %d requests of %d, %v seconds, %d callers with rows", round, n, sent, seconds, named)
		}
		var busy int64
		for _, c := range found {
			if c.DID == "did:plc:busy" {
				busy = c.N
			}
		}
		if want := int64((round + 1) * outsiders / 50); busy != want {
			t.Fatalf("after round %d: %d requests of the busy caller, want %d", round, busy, want)
		}
	}
}

// A caller that sends a little in every portion is not hidden by many that send more, once.
func TestSteadyCaller(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	const rounds, begins, others = 80, 10, 40
	for round := range rounds {
		for n := range others {
			for range 2 {
				c.Add(first(fmt.Sprintf("did:plc:%d-%d", round, n), 0))
			}
		}
		if round >= begins { // all rows are in use
			c.Add(first("did:plc:steady", 0))
		}
		flush(t, c)
	}
	for _, found := range callerCounts(t, db) {
		if found.DID == "did:plc:steady" && found.N > (rounds-begins)/2 {
			return
		}
	}
	t.Error("the steady caller was given up")
}

// A node counts a bounded number of callers by name between two writes.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	for n := range 10 * requests.Tracked {
		c.Add(first(fmt.Sprintf("did:plc:%d", n), 0))
	}
	if n := c.Named(); n != requests.Tracked {
		t.Errorf("%d callers have entries, want %d", n, requests.Tracked)
	}
}

// Counts of callers are kept for a week. Sessions of callers do not see them.
func TestCallersAreKeptForAWeek(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	r := refused("", "addMembers")
	r.Conflict = false
	c.Add(r)
	flush(t, c)
	pgtest.Age(t, db, "caller_counts", 6*24*time.Hour)
	flush(t, c)
	if n, _, _ := sumOf(callerCounts(t, db)); n != 1 {
		t.Errorf("after 6 days: %d", n)
	}
	var visible int
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(),
			`SELECT set_config('role', 'mlsd_app', true), set_config('mlsd.caller', 'did:plc:alice', true)`); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), `SELECT count(*) FROM caller_counts`).Scan(&visible)
	})
	if err != nil || visible != 0 {
		t.Errorf("a caller's session sees %d rows, %v", visible, err)
	}
	pgtest.Age(t, db, "caller_counts", 2*24*time.Hour)
	flush(t, c)
	if n, _, _ := sumOf(callerCounts(t, db)); n != 0 {
		t.Errorf("after 8 days: %d", n)
	}
}

// Finding S4: the audit log gets the first conflict of a caller and method in an hour, with the
// key, and at most 100 rows of a node.
func TestConflictsAreAudited(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	reused := func(did, key string) { c.Add(conflict(did, "IdempotencyConflict", "createConvo", key)) }
	audited := func() (lines []string) {
		t.Helper()
		rows, err := db.Query(t.Context(), `
			SELECT format('%s %s: %s to %s, %s, %s', entity, entity_id, from_state, to_state, actor, version) FROM audit_log
				ORDER BY id`)
		if err == nil {
			lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	reused("did:plc:a", "k1")
	reused("did:plc:a", "k2")
	c.Add(refused("EpochMismatch", "createConvo")) // is no use of a key for another request
	flush(t, c)
	reused("did:plc:a", "k3")
	flush(t, c)
	if diff := cmp.Diff([]string{"record createConvo k2: completed to conflict, did:plc:a, 2"}, audited()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for n := range 300 {
		reused(fmt.Sprintf("did:plc:%d", n), "k")
		if n%100 == 0 {
			flush(t, c)
		}
	}
	flush(t, c)
	if n := len(audited()); n != requests.AuditedPerHour {
		t.Errorf("%d rows of the audit log, want %d", n, requests.AuditedPerHour)
	}
}

// Counts are written and trimmed also if row-level security applies to the server's account.
func TestUnderRowSecurity(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	c := newCounter(pgtest.Connect(t, url, pgtest.Role("mlsd_app")))
	for n := range 2 * requests.Listed {
		c.Add(refused("IdempotencyConflict", fmt.Sprintf("method%d", n)))
	}
	flush(t, c)
	if n, _, named := sumOf(callerCounts(t, pgtest.Connect(t, url))); n != 2*requests.Listed || named != requests.Listed {
		t.Errorf("%d requests, %d callers with rows", n, named)
	}
}
