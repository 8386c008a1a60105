package requests_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/requests"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

const alice = "did:plc:alice"

// recorder is a recorder, its database and what it logs.
type recorder struct {
	*requests.Recorder
	t   *testing.T
	db  *pgxpool.Pool
	log *bytes.Buffer
	now time.Time
}

func newRecorder(t *testing.T, db *pgxpool.Pool, sample int) *recorder {
	t.Helper()
	r := &recorder{t: t, db: db, log: &bytes.Buffer{}, now: time.Now()}
	r.Recorder = requests.New(requests.Config{
		DB: db, Log: slog.New(slog.NewJSONHandler(r.log, nil)), Node: "a:1", Sample: sample, Keep: 24 * time.Hour,
		Now: func() time.Time { return r.now },
	})
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// refused is a request that was refused now.
func (r *recorder) refused(caller string) requests.Request {
	return requests.Request{
		At: r.now, ID: "r1", NSID: "sendMessage", Status: 409, Error: "EpochMismatch", Message: "epoch 3 is stale",
		Caller: caller, Known: true,
		Took: 5 * time.Millisecond,
	}
}

// served is a request that has succeeded now.
func (r *recorder) served(took time.Duration) requests.Request {
	return requests.Request{At: r.now, ID: "r2", NSID: "getEpoch", Status: 200, Caller: alice, Known: true, Took: took}
}

// flush writes, and returns the access lines and the number of rows since the last time.
func (r *recorder) flush() (lines []map[string]any, rows int) {
	r.t.Helper()
	if err := r.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(r.log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			r.t.Fatal(err)
		}
		lines = append(lines, fields)
	}
	r.log.Reset()
	if err := r.db.QueryRow(r.t.Context(), `SELECT count(*) FROM requests`).Scan(&rows); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.db.Exec(r.t.Context(), `DELETE FROM requests`); err != nil {
		r.t.Fatal(err)
	}
	return lines, rows
}

// A refused request leaves a line that names the caller by its hash alone, and a row that names it.
func TestTrace(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, pgtest.Database(t), 0)
	q := r.refused(alice)
	q.Key, q.Convo, q.Bytes, q.Trace = "k1", uuid.MustParse("0192f3a4-0000-7000-8000-000000000000"), 70,
		"4bf92f3577b34da6a3ce929d0e0e4736"
	q.Detail, q.Message = []byte(`{"currentEpoch": 4}`), "epoch 3 is stale\x00\xff; "+strings.Repeat("x", 1000)
	r.Add(q)
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var row struct {
		ID, Node, NSID, Error, Message, Caller, Key, Convo string
		Epoch                                              int
		Seconds, Age                                       float64
	}
	err := r.db.QueryRow(t.Context(), `
		SELECT request_id, node, nsid, error, left(message, 18), caller_did, key, convo_id::text, (detail ->>
			'currentEpoch')::int, seconds,
			extract(epoch FROM clock_timestamp() - at)
		FROM requests WHERE status = 409 AND length(message) < 500`).
		Scan(&row.ID, &row.Node, &row.NSID, &row.Error, &row.Message, &row.Caller, &row.Key, &row.Convo, &row.Epoch,
			&row.Seconds, &row.Age)
	if err != nil {
		t.Fatal(err)
	}
	if row.Age < 0 || row.Age > 60 {
		t.Errorf("the row is %v s old", row.Age)
	}
	row.Age = 0
	want := row
	want.ID, want.Node, want.NSID, want.Error, want.Message = "r1", "a:1", "sendMessage", "EpochMismatch",
		"epoch 3 is stale\ufffd;"
	want.Caller, want.Key, want.Convo, want.Epoch, want.Seconds = alice, "k1", q.Convo.String(), 4, 0.005
	if diff := cmp.Diff(want, row); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if log := r.log.String(); strings.Contains(log, "did:") || strings.Contains(log, "stale") {
		t.Errorf("the log says too much: %s", log)
	}
	lines, _ := r.flush()
	if len(lines) != 1 {
		t.Fatalf("%d lines", len(lines))
	}
	delete(lines[0], "time")
	if diff := cmp.Diff(map[string]any{
		"level": "INFO", "msg": "access", "request": "r1", "nsid": "sendMessage", "status": 409.0, "error": "EpochMismatch",
		"ms":    5.0,
		"bytes": 70.0, "caller": r.Hash(alice), "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
	}, lines[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// All nodes give a caller the same hash, and another one to another caller.
func TestHash(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	a, b := newRecorder(t, db, 0), newRecorder(t, db, 0)
	if _, err := db.Exec(t.Context(), `UPDATE installation SET hash_key = sha256(hash_key)`); err != nil {
		t.Fatal(err)
	}
	elsewhere := newRecorder(t, db, 0)
	if a.Hash(alice) != b.Hash(alice) || len(a.Hash(alice)) != 12 {
		t.Errorf("two nodes hash to %q and %q", a.Hash(alice), b.Hash(alice))
	}
	if a.Hash(alice) == a.Hash("did:plc:bob") || a.Hash(alice) == elsewhere.Hash(alice) {
		t.Error("the hash says nothing of the caller, or does not depend on the key")
	}
}

// A flood of one caller, or of unauthenticated callers, leaves no more than it may, and nothing
// that others lose by.
func TestFlood(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, pgtest.Database(t), 1)
	for range 1000 {
		r.Add(r.refused(alice))
		outsider := r.refused("")
		outsider.Known = false
		r.Add(outsider)
		r.Add(r.served(time.Millisecond))
	}
	r.Add(r.refused("did:plc:bob"))
	lines, rows := r.flush()
	if rows != 51 || len(lines) != 51+4+1 {
		t.Errorf("%d rows and %d lines; want 50 of alice, one of bob and 4 of outsiders", rows, len(lines))
	}
	if n := lines[len(lines)-1]["left_out"]; n != 3001.0-55 {
		t.Errorf("%v were left out", n)
	}
	r.Add(r.refused(alice))
	if _, rows := r.flush(); rows != 0 {
		t.Error("more than 50 requests of one caller in a minute left a row")
	}
	for range 100 { // an outage
		q := r.refused(uuid.NewString())
		q.Status, q.Error = 503, "ServiceUnavailable"
		r.Add(q)
	}
	if lines, rows := r.flush(); rows != 10 || len(lines) != 11 {
		t.Errorf("an outage left %d rows and %d lines in one second", rows, len(lines))
	}
	r.now = r.now.Add(time.Minute)
	for range 1000 {
		r.Add(r.refused(uuid.NewString()))
	}
	if lines, rows := r.flush(); rows != 200 || len(lines) != 201 {
		t.Errorf("1000 callers in one second left %d rows and %d lines", rows, len(lines))
	}
}

// Of successes a sample is recorded, and every slow one.
func TestSample(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for sample, want := range map[int]int{0: 1, 1: 11, 100: 4} {
		r := newRecorder(t, db, sample)
		for range 300 {
			r.Add(r.served(time.Millisecond))
		}
		r.Add(r.served(requests.Slow))
		if _, rows := r.flush(); rows != want {
			t.Errorf("one in %d: %d of 301 left a row, want %d", sample, rows, want)
		}
	}
}

// Run writes at its end.
func TestLastFlush(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, pgtest.Database(t), 0)
	r.Add(r.refused(alice))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Run(ctx, worker.NewRounds(worker.Clock{}))
	if _, rows := r.flush(); rows != 1 {
		t.Errorf("%d rows", rows)
	}
}

// Rows are kept for as long as the setting says, and the newest million at most.
func TestSweep(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, pgtest.Database(t), 0)
	ids := func() (ids []int64) {
		pgtest.Sweep(t, r.Sweep())
		if err := r.db.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM requests`).Scan(&ids); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	_, err := r.db.Exec(t.Context(), `
		INSERT INTO requests (id, at, request_id, node, nsid, status, error, message, caller_did, key, replayed, expired,
			seconds)
		OVERRIDING SYSTEM VALUE
		SELECT id, now() - age, 'r', 'n', 'x', 500, 'e', 'm', 'did:plc:alice', '', false, false, 1
		FROM (SELECT id, interval '25 hours' FROM generate_series(1, 6000) AS of (id)
			UNION ALL VALUES (6001, interval '23 hours'), (6002, interval '1 hour'), (1006001, interval '0')) AS of (id, age)`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{6002, 1006001}, ids()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var locked int
	err = r.db.QueryRow(t.Context(), `SELECT count(*) FROM requests WHERE xmax <> 0`).Scan(&locked)
	if err != nil || locked > 0 {
		t.Errorf("a sweep has locked %d rows that stay: %v", locked, err)
	}
	pgtest.Age(t, r.db, "requests", 24*time.Hour)
	if got := ids(); got != nil {
		t.Errorf("rows are left: %v", got)
	}
}

// An erasure leaves no row that names the person, and those of others.
func TestErase(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, pgtest.Database(t), 0)
	r.Add(r.refused(alice))
	r.Add(r.refused("did:plc:bob"))
	for _, name := range []func(q *requests.Request){
		func(q *requests.Request) { q.Message = alice + " is a member already" },
		func(q *requests.Request) { q.Key = "invite " + alice },
		func(q *requests.Request) { q.ID = alice },
		func(q *requests.Request) { q.Detail = []byte(`{"did": "did:plc:alice"}`) },
	} {
		q := r.refused("did:plc:carol")
		name(&q)
		r.Add(q)
	}
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var erased int64
	err := pgx.BeginFunc(t.Context(), r.db, func(tx pgx.Tx) error {
		blocks, _, err := pgpool.NextBlocks(t.Context(), tx, "requests", 0, 100)
		if err != nil {
			return err
		}
		erased, err = requests.Erase(t.Context(), tx, tombstone.Person{DID: alice}, blocks)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, rows := r.flush(); erased != 5 || rows != 1 {
		t.Errorf("%d rows were erased and %d are left", erased, rows)
	}
}
