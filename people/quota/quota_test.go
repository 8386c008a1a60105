package quota_test

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/people/quota"
)

const (
	alice   = syntax.DID("did:plc:alice")
	address = "192.0.2.1"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// node is a counter with a clock that the test sets.
type node struct {
	*quota.Counter
	t   testing.TB
	now atomic.Pointer[time.Time]
}

func newNode(t testing.TB, db *pgxpool.Pool, limits quota.Limits, options ...quota.Option) *node {
	n := &node{t: t}
	n.at(noon)
	n.Counter = quota.New(db, limits, slog.New(slog.DiscardHandler),
		append(options, quota.WithClock(func() time.Time { return *n.now.Load() }))...)
	return n
}

func (n *node) at(at time.Time) { n.now.Store(&at) }

func (n *node) open(did syntax.DID) *quota.Spending {
	n.t.Helper()
	s, err := n.Open(n.t.Context(), did, address)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// take takes one message and reports whether that was allowed.
func (n *node) take(did syntax.DID) bool {
	n.t.Helper()
	err := n.open(did).Take(quota.Cost{Of: quota.Messages, N: 1})
	if err != nil && !errors.As(err, new(*quota.ExceededError)) {
		n.t.Fatal(err)
	}
	return err == nil
}

// flush writes and reads everything.
func (n *node) flush() {
	n.t.Helper()
	if err := n.FlushAll(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

// due writes what is due.
func (n *node) due() {
	n.t.Helper()
	if err := quota.Due(n.Counter, n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

// stored returns the rows of the table.
func stored(t testing.TB, db *pgxpool.Pool) map[string]int64 {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT format('%s %s %s', day, subject, quota), n FROM quota_counts`)
	found, name, n := map[string]int64{}, "", int64(0)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
			found[name] = n
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func messages(limit int64) quota.Limits {
	return quota.Limits{"messages-per-day": limit, quota.AddressShare: 1 << 20}
}

// H10: however many requests of a DID come at once, a node admits as many as the quota says.
func TestOneNodeIsExact(t *testing.T) {
	t.Parallel()
	n := newNode(t, pgtest.Database(t), messages(500))
	n.take(alice) // the account is in memory
	var admitted atomic.Int64
	admitted.Add(1)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 200 {
				if n.take(alice) {
					admitted.Add(1)
				}
				if i%50 == 0 {
					if err := n.FlushAll(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	// A flush counts too little for a moment: in the user's favour, by the requests of that moment.
	if got := admitted.Load(); got < 500 || got > 500+8 {
		t.Errorf("%d of 500 were admitted", got)
	}
}

// H10: nodes add up. A node that starts, or has forgotten a DID, reads what the others have written
// before it admits anything.
func TestNodesAddUp(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	limits := messages(10)
	a, b := newNode(t, db, limits), newNode(t, db, limits)
	for range 4 {
		if !a.take(alice) || !b.take(alice) {
			t.Fatal("refused below the limit")
		}
	}
	a.flush()
	b.flush()
	a.take(alice) // it has read 4; its next flush reads 9
	a.flush()
	want := map[string]int64{
		"2026-01-01 did:plc:alice messages-per-day": 9, "2026-01-01 ip:192.0.2.1 address-messages-per-day": 9,
	}
	if diff := cmp.Diff(want, stored(t, db)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !a.take(alice) || a.take(alice) {
		t.Error("with 9 of 10 used, the first node did not admit exactly one more")
	}
	a.flush()
	if newNode(t, db, limits).take(alice) {
		t.Error("a node that starts admits more than the quota")
	}
}

// H10: an address has a share of its own, and so have its users.
func TestAddressShare(t *testing.T) {
	t.Parallel()
	n := newNode(t, pgtest.Database(t), quota.Limits{"messages-per-day": 2, quota.AddressShare: 3})
	admitted := 0
	for i := range 10 {
		if n.take(syntax.DID(fmt.Sprintf("did:plc:%d", i))) {
			admitted++
		}
	}
	if admitted != 6 {
		t.Errorf("the users of an address sent %d messages, want 6", admitted)
	}
	err := n.open("did:plc:0").Take(quota.Cost{Of: quota.Messages, N: 1})
	want := "quota address-messages-per-day is used up: 6 of 6; resets at 2026-01-02T00:00:00Z"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	n.at(noon.Add(12 * time.Hour))
	if !n.take("did:plc:0") {
		t.Error("the next day the address is still refused")
	}
}

// What a failed request had taken is free again, also after a flush in between.
func TestReturn(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	n := newNode(t, db, quota.Limits{"messages-per-day": 1, "bytes-per-day": 100, quota.ConvoBytes: 100,
		quota.AddressShare: 5})
	convo := uuid.New()
	for range 3 {
		s := n.open(alice)
		for range 2 { // the second attempt of a transaction
			if err := s.TakeMessage(convo, 60); err != nil {
				t.Fatal(err)
			}
		}
		n.flush()
		s.Return()
	}
	n.flush()
	for name, used := range stored(t, db) {
		if used != 0 {
			t.Errorf("%s: %d", name, used)
		}
	}
	// A refusal by the second of two quotas takes nothing of the first.
	if err := n.open(alice).TakeMessage(convo, 101); err == nil {
		t.Fatal("101 of 100 bytes were admitted")
	}
	if !n.take(alice) {
		t.Error("a refused message was counted")
	}
}

// H10: a convo's quota counts all members. A commit is counted, and never refused: others must be
// able to remove who used the quota up.
func TestConvoQuota(t *testing.T) {
	t.Parallel()
	n := newNode(t, pgtest.Database(t), quota.Limits{quota.ConvoBytes: 100})
	convo, other := uuid.New(), uuid.New()
	n.open(alice).CountCommit(convo, 99)
	if err := n.open("did:plc:bob").TakeMessage(convo, 2); err == nil {
		t.Error("101 bytes of 100 were admitted")
	}
	if err := n.open("did:plc:bob").TakeMessage(other, 2); err != nil {
		t.Error(err)
	}
	n.open(alice).CountCommit(convo, 99)
}

// H10: the memory is bounded, and nobody gets a new quota by filling it: what is forgotten is read
// again, and who has used up a quota is forgotten last.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	// With 128, an account of the caller often has to take the place of the one other in its part.
	for _, most := range []int{128, 640} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			n := newNode(t, db, messages(1), quota.WithAccounts(most))
			n.take(alice)
			const outsiders = 3000
			for i := range outsiders {
				n.take(syntax.DID(fmt.Sprintf("did:plc:%d", i)))
				if got := n.Remembered(); got > most {
					t.Fatalf("%d accounts are remembered", got)
				}
			}
			n.flush()
			if n.take(alice) {
				t.Error("alice has a new quota")
			}
			rows := stored(t, db)
			if got := rows["2026-01-01 ip:192.0.2.1 address-messages-per-day"]; got != outsiders+1 {
				t.Errorf("%d messages of the address are counted, want %d", got, outsiders+1)
			}
			for i := range outsiders {
				if rows[fmt.Sprintf("2026-01-01 did:plc:%d messages-per-day", i)] != 1 {
					t.Fatalf("the message of outsider %d is not counted", i)
				}
			}
		})
	}
}

// Small counts wait up to a minute, large ones are written at the next flush. A node that is killed
// loses what it had not written, in the user's favour.
func TestCrash(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	limits := messages(1000)
	n := newNode(t, db, limits)
	for range 9 { // less than one per cent
		n.take(alice)
	}
	n.at(noon.Add(59 * time.Second))
	n.due()
	if rows := stored(t, db); len(rows) != 0 {
		t.Fatalf("written after 59 s: %v", rows)
	}
	n.at(noon.Add(time.Minute))
	n.due()
	for range 10 {
		n.take(alice)
	}
	n.due()
	const name = "2026-01-01 did:plc:alice messages-per-day"
	if got := stored(t, db)[name]; got != 19 {
		t.Fatalf("%d messages are written, want 19", got)
	}
	n.take(alice)
	after := newNode(t, db, limits) // the first one was killed
	for range 981 {
		if !after.take(alice) {
			t.Fatal("refused below the limit")
		}
	}
	if after.take(alice) {
		t.Error("more than the one message that was lost is admitted again")
	}
}

// Counts of a day that ends before they are written belong to that day. Days are kept for a day.
func TestDays(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	n := newNode(t, db, messages(1))
	n.take(alice)
	n.at(noon.Add(12 * time.Hour))
	if !n.take(alice) {
		t.Fatal("the next day is not free")
	}
	n.flush()
	const one, two = "2026-01-01 did:plc:alice messages-per-day", "2026-01-02 did:plc:alice messages-per-day"
	rows := stored(t, db)
	if rows[one] != 1 || rows[two] != 1 {
		t.Fatalf("rows %v", rows)
	}
	if got := n.Remembered(); got != 2 {
		t.Errorf("%d accounts are remembered, want those of today", got)
	}
	// The sweep has the database's clock. Let it be the day after the two.
	if _, err := db.Exec(t.Context(), `
		UPDATE quota_counts SET day = (now() AT TIME ZONE 'UTC')::date - ('2026-01-03' - day)`); err != nil {
		t.Fatal(err)
	}
	if done, left := pgtest.Sweep(t, quota.Sweep(db)), stored(t, db); done["quota_counts"] != 2 ||
		len(left) != len(rows)-2 {
		t.Errorf("after two days %v are deleted, and %v are left", done, left)
	}
}

// Without limits nothing is read, counted or written.
func TestNoLimits(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	n := newNode(t, db, quota.Limits{"messages-per-day": 0, quota.AddressShare: 200})
	for range 100 {
		if err := n.open(alice).TakeMessage(uuid.New(), 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	n.flush()
	if rows := stored(t, db); len(rows) != 0 || n.Remembered() != 0 {
		t.Errorf("rows %v, %d accounts", rows, n.Remembered())
	}
	var none *quota.Spending
	none.Return()
	if err := none.TakeMessage(uuid.New(), 1); err != nil {
		t.Error(err)
	}
}

// If the database cannot be written, nothing is forgotten.
func TestFailedFlush(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	n := newNode(t, db, messages(3))
	n.take(alice)
	if _, err := db.Exec(t.Context(), `ALTER TABLE quota_counts ADD CONSTRAINT broken CHECK (n < 0)`); err != nil {
		t.Fatal(err)
	}
	if err := n.FlushAll(t.Context()); err == nil {
		t.Fatal("the flush succeeded")
	}
	if _, err := db.Exec(t.Context(), `ALTER TABLE quota_counts DROP CONSTRAINT broken`); err != nil {
		t.Fatal(err)
	}
	n.take(alice)
	n.flush()
	if got := stored(t, db)["2026-01-01 did:plc:alice messages-per-day"]; got != 2 {
		t.Errorf("%d messages are written, want 2", got)
	}
}

// Counts are written and read also if row-level security applies to the server's account. Sessions
// of callers do not see them.
func TestUnderRowSecurity(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t, pgtest.Role("mlsd_app"))
	limits := messages(1)
	n := newNode(t, db, limits)
	n.take(alice)
	n.flush()
	if newNode(t, db, limits).take(alice) {
		t.Error("another node does not see the counts")
	}
	if rows := stored(t, db); len(rows) != 0 {
		t.Errorf("a caller's session sees %v", rows)
	}
}

// BenchmarkMessage is what the quotas cost a message: the accounts of the caller, its address and
// the convo are found, checked and counted.
func BenchmarkMessage(b *testing.B) {
	n := newNode(b, pgtest.Database(b), quota.Defaults())
	const people = 1000
	dids, convos := make([]syntax.DID, people), make([]uuid.UUID, people)
	for i := range people {
		dids[i], convos[i] = syntax.DID(fmt.Sprintf("did:plc:ewvi7nxzyoun6zhxrhs%05d", i)), uuid.New()
		n.open(dids[i])
	}
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := int(next.Add(1)) * 97; pb.Next(); i++ {
			s, err := n.Open(b.Context(), dids[i%people], address)
			if err == nil {
				err = s.TakeMessage(convos[i%people], 1)
			}
			if err != nil && !errors.As(err, new(*quota.ExceededError)) {
				b.Fatal(err)
			}
		}
	})
}

// One address cannot fill more than a tenth of what all reports may take in a day, however many
// DIDs it has. Without a limit for all, it has its share as of other quotas.
func TestReportsOfAnAddress(t *testing.T) {
	t.Parallel()
	const name = "address-reports-per-day"
	defaults := quota.Defaults()
	most := defaults[quota.ReportBytes]
	if filled := defaults.ByDay()[name] * quota.LargestReport; filled > most/10 || filled < most/20 {
		t.Errorf("an address can fill %d of %d bytes", filled, most)
	}
	for _, one := range []struct{ most, want int64 }{{0, 4000}, {1 << 20, 20}, {1 << 40, 4000}} {
		defaults[quota.ReportBytes] = one.most
		if got := defaults.ByDay()[name]; got != one.want {
			t.Errorf("of %d bytes: %d reports, want %d", one.most, got, one.want)
		}
	}
}
