package consent_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/people/consent"
)

// crowd fills the roster: $1 convos with about $2 of $3 people. A third of the memberships are
// requests.
const crowd = `
	INSERT INTO members (convo_id, did, role, joined_at, joined_seq, requested_at)
	SELECT md5(c::text)::uuid, 'did:plc:p' || (hashint8(c * 1000 + n) & 1073741823) % $3::integer, 'member', now(), 0,
		CASE WHEN hashint8(c * 1000 - n) % 3 = 0 THEN now() END
	FROM generate_series(1, $1::bigint) c, generate_series(1, $2::bigint) n
	ON CONFLICT DO NOTHING`

func invite(t testing.TB, db *pgxpool.Pool, caller syntax.DID, dids ...syntax.DID) (inv consent.Invitation) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		inv, err = consent.Invite(t.Context(), tx, caller, dids, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// Whether a hundred invited people share a convo with the caller is found by indexes alone, as
// requests find everything, and what is found agrees with a plain join of the roster.
func TestHundredInvited(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	if _, err := db.Exec(t.Context(), crowd, 100, 20, 200); err != nil {
		t.Fatal(err)
	}
	var all []syntax.DID
	for i := range 100 {
		all = append(all, syntax.DID(fmt.Sprintf("did:plc:p%d", i)))
	}
	const caller = "did:plc:p31"
	rows, err := db.Query(t.Context(), `
		SELECT did FROM unnest($2::text[]) AS d (did) WHERE NOT EXISTS (
			SELECT FROM members a JOIN members b USING (convo_id)
			WHERE a.did = $1 AND b.did = d.did AND a.requested_at IS NULL AND b.requested_at IS NULL) ORDER BY did`, caller, all)
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowTo[syntax.DID])
	if err != nil || len(want) == 0 || len(want) == len(all) {
		t.Fatalf("%d of %d share nothing: %v", len(want), len(all), err)
	}
	inv := invite(t, db, caller, all...)
	slices.Sort(inv.Requests)
	if !slices.Equal(inv.Requests, want) || len(inv.Refused) != 0 {
		t.Errorf("requests %v, want %v; refused %v", inv.Requests, want, inv.Refused)
	}
	// The sessions of requests do not scan tables, but a plan with no other way would.
	plan := explain(t, db, caller, all)
	full := regexp.MustCompile(`Index Cond: \(blocked_did = [^)]*\)\n`).MatchString(plan) // the whole index
	if full || strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "members_convos_of_did") {
		t.Errorf("the plan:\n%s", plan)
	}
	t.Log(plan)
}

// Of a person in thousands of convos only the newest ones are looked at.
func TestInvitedWithManyConvos(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	join := func(did syntax.DID, first, last int) {
		_, err := db.Exec(t.Context(), `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
			SELECT lpad(to_hex(n), 32, '0')::uuid, $1, 'member', now(), 0 FROM generate_series($2::integer, $3) AS n`, did,
			first, last)
		if err != nil {
			t.Fatal(err)
		}
	}
	const caller, busy syntax.DID = "did:plc:caller", "did:plc:busy"
	const convos, oldest = 2000, 2000 - consent.NewestConvos + 1
	join(busy, 1, convos)
	for _, step := range []struct{ shared, requests int }{{oldest - 1, 1}, {oldest, 0}} {
		join(caller, step.shared, step.shared)
		if inv := invite(t, db, caller, busy); len(inv.Requests) != step.requests {
			t.Errorf("with convo %d of %d in common: %+v", step.shared, convos, inv)
		}
	}
}

// explain returns the plan of the check, as a session of requests makes it.
func explain(t testing.TB, db *pgxpool.Pool, caller syntax.DID, dids []syntax.DID) string {
	t.Helper()
	requests, err := pgpool.Open(t.Context(), db.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer requests.Close()
	rows, err := requests.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+consent.ReadStandings, caller, dids, nil, true,
		consent.NewestConvos)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// BenchmarkInvite measures the check of one and of a hundred people, by a caller who is in as many
// convos as stated, on a roster of some 100,000 memberships.
func BenchmarkInvite(b *testing.B) {
	db := pgtest.Database(b)
	if _, err := db.Exec(b.Context(), crowd, 1000, 100, 5000); err != nil {
		b.Fatal(err)
	}
	for _, convos := range []int{20, 1000, 10_000} {
		caller := syntax.DID(fmt.Sprintf("did:plc:caller%d", convos))
		if _, err := db.Exec(b.Context(), `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
			SELECT gen_random_uuid(), $1, 'creator', now(), 0 FROM generate_series(1, $2)`, caller, convos); err != nil {
			b.Fatal(err)
		}
		for _, invited := range []int{1, 100} {
			var dids []syntax.DID
			for i := range invited {
				dids = append(dids, syntax.DID(fmt.Sprintf("did:plc:p%d", i*50)))
			}
			b.Run(fmt.Sprintf("convos=%d/invited=%d", convos, invited), func(b *testing.B) {
				for b.Loop() {
					invite(b, db, caller, dids...)
				}
			})
		}
	}
}

// BenchmarkRefusal measures the same claim of a person who has blocked the caller, of one whose
// policy is nobody, and of one that nobody knows. They are
// compared in a transaction of their own, as the first statement of a claim.
func BenchmarkRefusal(b *testing.B) {
	db := pgtest.Database(b)
	_, err := db.Exec(b.Context(), `INSERT INTO blocks VALUES ('did:plc:blocker', 'did:plc:caller', now())`)
	if err == nil {
		_, err = db.Exec(b.Context(), `INSERT INTO policies VALUES ('did:plc:hermit', 'nobody')`)
	}
	if err != nil {
		b.Fatal(err)
	}
	names := []syntax.DID{"did:plc:blocker", "did:plc:hermit", "did:plc:unknown"}
	took := map[syntax.DID]time.Duration{}
	n := 0
	ask := func(did syntax.DID) {
		err := pgx.BeginFunc(context.Background(), db, func(tx pgx.Tx) error {
			_, err := consent.Refusals(b.Context(), tx, "did:plc:caller", []syntax.DID{did}, nil)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	for range 100 {
		ask(names[0])
	}
	for b.Loop() { // in turn, so that the machine's mood is the same for all
		for _, did := range names {
			began := time.Now()
			ask(did)
			took[did] += time.Since(began)
		}
		n++
	}
	for _, did := range names {
		b.ReportMetric(float64(took[did].Microseconds())/float64(n), strings.TrimPrefix(did.String(), "did:plc:")+"-µs")
	}
}

// A block that is repeated in the moment in which it ends is there when its answer says so. It was
// answered with InternalServerError.
func TestBlockWhileItEnds(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	const alice, bob = "did:plc:alice", "did:plc:bob"
	block := func() error {
		return pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			_, err := consent.Block(t.Context(), tx, alice, bob)
			return err
		})
	}
	if err := block(); err != nil {
		t.Fatal(err)
	}
	waiting, release := pgtest.HoldInserts(t, db, "blocks")
	repeated, ended := make(chan error, 1), make(chan error, 1)
	go func() { repeated <- block() }()
	for waiting() < 1 {
		runtime.Gosched()
	}
	go func() {
		ended <- pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return consent.Unblock(t.Context(), tx, alice, bob) })
	}()
	for waiting() < 2 && len(ended) == 0 {
		runtime.Gosched()
	}
	release()
	if err := errors.Join(<-repeated, <-ended); err != nil {
		t.Error(err)
	}
}
