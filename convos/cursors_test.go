package convos_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"mlsd/convos"
	"mlsd/internal/batch"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// cursorBench is a convo whose log has 100 entries, with readers 0 to 49 and one who has left, and
// two nodes.
type cursorBench struct {
	*convos.Cursors
	other  *convos.Cursors
	db     *pgxpool.Pool
	faults *failpoint.Set
	convo  uuid.UUID
}

const (
	former   syntax.DID = "did:plc:former"
	outsider syntax.DID = "did:plc:outsider"
)

func init() { // random tests make the same moves each time; -rapid.seed makes others
	_ = flag.Set("rapid.seed", "1")
	_ = flag.Set("rapid.nofailfile", "true")
}

func notShown(uuid.UUID, syntax.DID, convos.Cursor) {}

func newCursorBench(t *testing.T, opts ...pgtest.Option) *cursorBench {
	t.Helper()
	b := &cursorBench{db: pgtest.Database(t, append(opts, pgtest.MaxConns(16))...), faults: failpoint.New(), convo: nth(1)}
	b.Cursors, b.other = convos.NewCursors(b.db, b.faults, notShown), convos.NewCursors(b.db, nil, notShown)
	_, err := b.db.Exec(t.Context(), `
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at) VALUES ($1, 'g', $2, 1, 1,
			100, now())`,
		b.convo, reader(0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		b.join(t, reader(i), false)
	}
	b.join(t, former, true)
	return b
}

func (b *cursorBench) join(t *testing.T, did syntax.DID, left bool) {
	t.Helper()
	_, err := b.db.Exec(t.Context(), `
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq, left_at, left_seq, left_epoch)
		VALUES ($1, $2, 'member', now(), 0, CASE WHEN $3 THEN now() END, CASE WHEN $3 THEN 1 END, CASE WHEN $3 THEN 1 END)`,
		b.convo, did, left)
	if err != nil {
		t.Fatal(err)
	}
}

func (b *cursorBench) cursor(t *testing.T, did syntax.DID) (seq int64) {
	t.Helper()
	err := b.db.QueryRow(t.Context(), `SELECT cursor_seq FROM members WHERE convo_id = $1 AND did = $2`, b.convo,
		did).Scan(&seq)
	if err != nil {
		t.Error(err)
	}
	return seq
}

func (b *cursorBench) delivered(t *testing.T, did syntax.DID) (seq int64) {
	t.Helper()
	err := b.db.QueryRow(t.Context(), `SELECT delivered_seq FROM members WHERE convo_id = $1 AND did = $2`, b.convo,
		did).Scan(&seq)
	if err != nil {
		t.Error(err)
	}
	return seq
}

// TestShownCursors: who shares its cursors is shown once for each move, with where it stands, and
// nobody else is. A request is not shown: others must not learn that it reads.
func TestShownCursors(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	if _, err := b.db.Exec(t.Context(), `
		INSERT INTO policies (did, share_cursors) VALUES ($1, true), ($2, true), ($3, true)`, reader(0), reader(1),
		former); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Exec(t.Context(), `UPDATE members SET requested_at = now() WHERE did = $1`, reader(1)); err != nil {
		t.Fatal(err)
	}
	shown := map[syntax.DID][]convos.Cursor{}
	cursors := convos.NewCursors(b.db, nil, func(convo uuid.UUID, did syntax.DID, at convos.Cursor) {
		if convo != b.convo {
			t.Errorf("shown in %s", convo)
		}
		shown[did] = append(shown[did], at)
	})
	for _, m := range []struct {
		by syntax.DID
		to convos.Cursor
	}{
		{reader(0), convos.Cursor{Read: 0, Delivered: 5}},
		{reader(0), convos.Cursor{Read: 3}},
		{reader(0), convos.Cursor{Read: 3}}, // where it stands
		{reader(0), convos.Cursor{Read: 2, Delivered: 4}},
		{reader(0), convos.Cursor{Read: 9}},
		{reader(1), convos.Cursor{Read: 9}},
		{reader(2), convos.Cursor{Read: 9}},
	} {
		if _, err := cursors.Update(t.Context(), b.convo, m.by, m.to); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cursors.Update(t.Context(), b.convo, former, convos.Cursor{Read: 1}); !errors.Is(err,
		convos.ErrNotMember) {
		t.Errorf("a former member: %v", err)
	}
	want := map[syntax.DID][]convos.Cursor{reader(0): {{Read: 0, Delivered: 5}, {Read: 3, Delivered: 5},
		{Read: 9, Delivered: 9}}}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
}

// TestCursorRefusals: each move is judged by itself, and an outsider gets the answer for a convo
// that does not exist.
func TestCursorRefusals(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	for _, c := range []struct {
		convo uuid.UUID
		by    syntax.DID
		seq   int64
		want  error
	}{
		{b.convo, outsider, 1, convos.ErrNotFound},
		{b.convo, outsider, 1000, convos.ErrNotFound},
		{nth(2), reader(0), 1, convos.ErrNotFound},
		{b.convo, former, 1, convos.ErrNotMember},
		{b.convo, former, 1000, convos.ErrNotMember},
		{b.convo, reader(0), 101, convos.ErrSeqAhead},
		{b.convo, reader(0), 100, nil},
	} {
		if seq, err := b.UpdateRead(t.Context(), c.convo, c.by, c.seq); !errors.Is(err, c.want) || err == nil &&
			seq != c.seq {
			t.Errorf("%s to %d: %d, %v; want %v", c.by, c.seq, seq, err, c.want)
		}
	}
	if _, err := b.UpdateRead(t.Context(), b.convo, reader(0), 101); err == nil ||
		err.Error() != "seq: beyond the end of the log; lastSeq=100" {
		t.Errorf("ahead: %v", err)
	}
}

// TestCursorsTogether: a statement that makes many moves, several of them of one row, has the
// effect of making them alone, one after the other in some order.
func TestCursorsTogether(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	rapid.Check(t, func(rt *rapid.T) {
		if _, err := b.db.Exec(t.Context(), `UPDATE members SET cursor_seq = DEFAULT, delivered_seq = DEFAULT`); err != nil {
			rt.Fatal(err)
		}
		m := cursorModel{map[syntax.DID]int64{}, map[syntax.DID]int64{}}
		for range 3 {
			m.move(t, rt, b)
		}
	})
}

// cursorModel is where the readers of a convo stand.
type cursorModel struct{ at, delivered map[syntax.DID]int64 }

// move makes random moves in one statement, and compares what comes of them.
func (c cursorModel) move(t *testing.T, rt *rapid.T, b *cursorBench) {
	t.Helper()
	who := rapid.SampledFrom([]syntax.DID{reader(0), reader(1), reader(2), former, outsider})
	moves := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) *convos.Move {
		m := &convos.Move{Convo: b.convo, Reader: who.Draw(rt, "who"), Seq: rapid.Int64Range(0, 120).Draw(rt, "seq")}
		if rapid.Bool().Draw(rt, "says what was delivered") {
			m.Delivered = rapid.Int64Range(0, 120).Draw(rt, "delivered")
		}
		if rapid.IntRange(0, 9).Draw(rt, "convo") == 0 {
			m.Convo = nth(7)
		}
		return m
	}), 1, 12).Draw(rt, "moves")
	if err := b.Together(t.Context(), moves...); err != nil {
		rt.Fatal(err)
	}
	before := map[syntax.DID]int64{}
	for did, seq := range c.at {
		before[did] = seq
	}
	for _, m := range moves {
		if status(b, m) == "moved" {
			c.at[m.Reader] = max(c.at[m.Reader], m.Seq)
			c.delivered[m.Reader] = max(c.delivered[m.Reader], m.Delivered)
		}
	}
	for _, m := range moves {
		if m.Status != status(b, m) {
			rt.Fatalf("%+v, want %s", m, status(b, m))
		}
		if m.Status == "moved" && (m.Cursor < max(m.Seq, before[m.Reader]) || m.Cursor > c.at[m.Reader]) {
			rt.Fatalf("%+v, which is between %d and %d", m, before[m.Reader], c.at[m.Reader])
		}
		if most := max(c.at[m.Reader], c.delivered[m.Reader]); m.Status == "moved" &&
			(m.DeliveredAt < max(m.Cursor, m.Delivered) || m.DeliveredAt > most) {
			rt.Fatalf("%+v, and what was delivered is at most %d", m, most)
		}
	}
	for did, seq := range c.at {
		if got := b.cursor(t, did); got != seq {
			rt.Fatalf("%s stands at %d, want %d", did, got, seq)
		}
		if got, want := max(seq, b.delivered(t, did)), max(seq, c.delivered[did]); got != want {
			rt.Fatalf("%s has got %d, want %d", did, got, want)
		}
	}
}

// status is the model of one move.
func status(b *cursorBench, m *convos.Move) string {
	switch {
	case m.Convo != b.convo || m.Reader == outsider:
		return "convo-not-found"
	case m.Reader == former:
		return "not-member"
	case m.Seq > 100, m.Delivered > 100:
		return "ahead"
	}
	return "moved"
}

// TestHundredCursors: a hundred updates of one cursor at once, over two nodes, end at the furthest.
// No caller sees the cursor go back.
func TestHundredCursors(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	var all sync.WaitGroup
	for i, seq := range rand.Perm(100) {
		all.Go(func() {
			node := b.Cursors
			if i%2 == 1 {
				node = b.other
			}
			asked := int64(seq + 1)
			got, err := node.UpdateRead(t.Context(), b.convo, reader(0), asked)
			if err != nil || got < asked {
				t.Errorf("to %d: %d, %v", asked, got, err)
			}
			if now := b.cursor(t, reader(0)); now < got {
				t.Errorf("it was said to stand at %d, and stands at %d", got, now)
			}
		})
	}
	all.Wait()
	if seq := b.cursor(t, reader(0)); seq != 100 {
		t.Errorf("it ends at %d", seq)
	}
}

// update moves the cursors of readers 0 to n-1 to their own number plus one, on one node.
func (b *cursorBench) update(t *testing.T, n int) *sync.WaitGroup {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if seq, err := b.UpdateRead(t.Context(), b.convo, reader(i), int64(i+1)); err != nil || seq != int64(i+1) {
				t.Errorf("reader %d: %d, %v", i, seq, err)
			}
		})
	}
	return &all
}

// TestBusyCursor: a row that another transaction has locked delays its own reader only.
func TestBusyCursor(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["lock_timeout"] = "5000" })
	holder := holdRow(t, b, "reader49")
	busy, idle := convos.Move{Convo: b.convo, Reader: reader(49), Seq: 3},
		convos.Move{Convo: b.convo, Reader: reader(7), Seq: 3}
	if err := b.Together(t.Context(), &busy, &idle); err != nil || busy.Status != "busy" || idle.Status != "moved" {
		t.Fatalf("together: %+v, %+v, %v", busy, idle, err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := b.UpdateRead(t.Context(), b.convo, reader(49), 50)
		waiting <- err
	}()
	for range 5 {
		b.update(t, 49).Wait()
	}
	select {
	case err := <-waiting:
		t.Fatalf("the locked row was moved: %v", err)
	default:
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil || b.cursor(t, reader(49)) != 50 {
		t.Errorf("%v, it stands at %d", err, b.cursor(t, reader(49)))
	}
}

// TestCursorLockTimeout: if a lock is not free in time, the error is one after which a client
// retries.
func TestCursorLockTimeout(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["lock_timeout"] = "50" })
	holder := holdRow(t, b, "reader0")
	if _, err := b.UpdateRead(t.Context(), b.convo, reader(0), 7); !pgpool.LockTimeout(err) || !pgpool.Unavailable(err) {
		t.Errorf("a row that another transaction holds: %v", err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seq, err := b.UpdateRead(t.Context(), b.convo, reader(0), 7); err != nil || seq != 7 {
		t.Errorf("%d, %v", seq, err)
	}
}

func holdRow(t *testing.T, b *cursorBench, name string) pgx.Tx {
	t.Helper()
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // most have ended it
	if _, err := tx.Exec(t.Context(), `SELECT FROM members WHERE did = 'did:plc:' || $1 FOR UPDATE`, name); err != nil {
		t.Fatal(err)
	}
	return tx
}

// TestPoisonedCursor: a value that the database refuses fails its own caller and no other.
func TestPoisonedCursor(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	poison := []*convos.Move{{Convo: b.convo, Reader: reader(0), Seq: 1}, {Convo: b.convo, Reader: "did:plc:\x00", Seq: 1}}
	if err := b.Together(t.Context(), poison...); err == nil {
		t.Fatal("the poison does not work")
	}
	all := b.update(t, 50)
	for range 20 {
		all.Go(func() {
			if _, err := b.UpdateRead(t.Context(), b.convo, "did:plc:\x00", 1); pgpool.Code(err) != "22021" {
				t.Errorf("the poisoned one: %v", err)
			}
		})
	}
	all.Wait()
}

// TestKilledCursors: the session of a statement that many share is ended before its COMMIT. They
// all get what they asked for.
func TestKilledCursors(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	for range 5 {
		failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid.UpdateCursor, failpoint.Pause)
		all := b.update(t, 50)
		<-b.faults.Reached(failpoint.BeforeCommit, nsid.UpdateCursor)
		for killed := 0; killed == 0; { // until the session has done its statements and waits for COMMIT
			if err := b.db.QueryRow(t.Context(), `
				SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event = 'ClientRead' AND backend_xid IS NOT NULL`).Scan(&killed); err !=
				nil {
				t.Fatal(err)
			}
		}
		b.faults.Resume(failpoint.BeforeCommit, nsid.UpdateCursor)
		all.Wait()
		for i := range 50 {
			if seq := b.cursor(t, reader(i)); seq != int64(i+1) {
				t.Errorf("reader %d stands at %d", i, seq)
			}
		}
		if _, err := b.db.Exec(t.Context(), `UPDATE members SET cursor_seq = 0`); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostCursors: the answer of a COMMIT that many share is lost. Each is repeated and answered.
func TestLostCursors(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	for _, point := range []string{failpoint.AfterCommit, failpoint.BeforeCommit} {
		failpointtest.Arm(t, b.faults, point, nsid.UpdateCursor, failpoint.Error)
		b.update(t, 50).Wait()
	}
}

// TestCursorsClosed: moves that wait are made, later ones are refused, and a canceled one is not
// made.
func TestCursorsClosed(t *testing.T) {
	t.Parallel()
	b := newCursorBench(t)
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	if _, err := b.UpdateRead(ctx, b.convo, reader(0), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("hung up: %v", err)
	}
	failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid.UpdateCursor, failpoint.Pause)
	all := b.update(t, 1)
	<-b.faults.Reached(failpoint.BeforeCommit, nsid.UpdateCursor)
	closed := make(chan error, 1)
	go func() { closed <- b.Close(t.Context()) }()
	b.faults.Resume(failpoint.BeforeCommit, nsid.UpdateCursor)
	all.Wait()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := b.UpdateRead(t.Context(), b.convo, reader(1), 1); !errors.Is(err, batch.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestCursorIsCheap: the statement takes one round trip, makes no index entries, and writes no row
// that does not change.
func TestCursorIsCheap(t *testing.T) {
	t.Parallel()
	var trips pgtest.Trips
	b := newCursorBench(t, pgtest.CountTrips(&trips))
	b.update(t, 50).Wait() // a connection makes the statement's plan once
	if _, err := b.db.Exec(t.Context(), `VACUUM members`); err != nil {
		t.Fatal(err)
	}
	conn, err := b.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	updates := func() (all, inPlace int) {
		err := conn.QueryRow(t.Context(), `
			SELECT pg_stat_get_xact_tuples_updated('members'::regclass),
				pg_stat_get_xact_tuples_hot_updated('members'::regclass)`).
			Scan(&all, &inPlace)
		if err != nil {
			t.Fatal(err)
		}
		return all, inPlace
	}
	if _, err := conn.Exec(t.Context(), `BEGIN`); err != nil {
		t.Fatal(err)
	}
	all, inPlace := updates()
	// A delivery at or below what is read changes nothing that anybody sees.
	for _, step := range []struct{ seq, delivered, trips, updates int }{
		{61, 0, 0, 1}, {61, 0, 1, 0}, {60, 0, 1, 0}, {62, 0, 1, 1}, {62, 61, 1, 0}, {62, 62, 1, 0}, {62, 63, 1, 1},
	} {
		before := trips.Count()
		_, err := conn.Exec(t.Context(), convos.Statement, []uuid.UUID{b.convo}, []string{reader(40).String()},
			[]int64{int64(step.seq)}, []int64{int64(step.delivered)})
		if n := trips.Count() - before; err != nil || step.trips > 0 && n != int64(step.trips) {
			t.Errorf("%d round trips, %v", n, err)
		}
		nowAll, nowInPlace := updates()
		if nowAll-all != step.updates || nowInPlace-inPlace != step.updates {
			t.Errorf("to %d: %d rows were updated, %d of them in place, want %d", step.seq, nowAll-all, nowInPlace-inPlace,
				step.updates)
		}
		all, inPlace = nowAll, nowInPlace
	}
}
