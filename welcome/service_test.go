package welcome_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/batch"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgtest"
	"mlsd/mls"
	"mlsd/welcome"
)

// bench is a convo whose recipients have a Welcome each, and two nodes that deliver.
type bench struct {
	db     *pgxpool.Pool
	policy welcome.Policy
	nodes  [2]*welcome.Service
	faults *failpoint.Set
	convo  uuid.UUID
	trips  pgtest.Trips
}

func recipient(i int) welcome.Device {
	return welcome.Device{DID: syntax.DID(fmt.Sprintf("did:plc:recipient%d", i)), DeviceID: "phone"}
}

func newBench(t *testing.T, recipients int, fetched bool) *bench {
	t.Helper()
	b := &bench{policy: welcome.Policy{Grace: grace, OnExpiry: welcome.Release}, faults: failpoint.New(),
		convo: uuid.New()}
	b.db = pgtest.Database(t, pgtest.MaxConns(24), pgtest.CountTrips(&b.trips))
	b.nodes = [2]*welcome.Service{newService(b.db, b.policy, b.faults), newService(b.db, b.policy, nil)}
	var to []welcome.Recipient
	for i := range recipients {
		d := recipient(i)
		join(t, b.db, b.convo, d.DID)
		to = append(to, welcome.Recipient{DID: d.DID, DeviceID: d.DeviceID, Ref: mls.KeyPackageRef(fmt.Sprint(i))})
	}
	add(t, b.db, b.convo, 1, to...)
	if fetched {
		b.exec(t, `
			UPDATE welcomes SET state = 'in_flight', attempts = 1, version = 1, grace_expires_at = now() + interval '5 minutes';
			DELETE FROM audit_log`)
	}
	return b
}

func (b *bench) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	if err := b.db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

// consumed expects that n Welcomes were consumed, each in one step, and that nothing else happened.
func (b *bench) consumed(t *testing.T, n int) {
	t.Helper()
	got := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 2`)
	if steps := b.count(t, `SELECT count(*) FROM audit_log`); got != n || steps != n {
		t.Errorf("%d of %d Welcomes are consumed, in %d steps", got, n, steps)
	}
}

// TestHundredConfirmations: a hundred confirmations of one Welcome at once, over two nodes, are one
// transition. All get the same answer.
func TestHundredConfirmations(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, true)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if state, _, err := b.nodes[i%2].Confirm(t.Context(), b.convo, recipient(0), true, ""); err != nil ||
				state != welcome.Consumed {
				t.Errorf("%s, %v", state, err)
			}
		})
	}
	all.Wait()
	b.consumed(t, 1)
}

// TestHundredFetches: a hundred fetches at once, over two nodes, open one lease. All get it.
func TestHundredFetches(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, false)
	given := make([]welcome.Delivery, 100)
	var all sync.WaitGroup
	for i := range given {
		all.Go(func() {
			var err error
			if given[i], err = b.nodes[i%2].Fetch(t.Context(), b.convo, recipient(0)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, g := range given {
		if !g.GraceExpiresAt.Equal(given[0].GraceExpiresAt) || string(g.Body) != "welcome 1" || g.State != welcome.InFlight ||
			g.Epoch != 1 {
			t.Errorf("%+v", g)
		}
	}
	if n := b.count(t, `SELECT sum(attempts) FROM welcomes`); n != 1 {
		t.Errorf("%d leases", n)
	}
}

// TestFetchAfterAWait: a fetch meets another one that has opened the lease and not committed yet.
// It waits, and then gets the same lease.
func TestFetchAfterAWait(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, false)
	failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid.GetWelcome, failpoint.Pause)
	given := make(chan welcome.Delivery, 2)
	fetch := func(node int) {
		d, err := b.nodes[node].Fetch(t.Context(), b.convo, recipient(0))
		if err != nil {
			t.Error(err)
		}
		given <- d
	}
	go fetch(0)
	<-b.faults.Reached(failpoint.BeforeCommit, nsid.GetWelcome)
	go fetch(1)
	for len(given) == 0 && pgtest.LockWaits(t, b.db) == 0 {
	}
	b.faults.Resume(failpoint.BeforeCommit, nsid.GetWelcome)
	if one, other := <-given, <-given; !one.GraceExpiresAt.Equal(other.GraceExpiresAt) {
		t.Errorf("%+v and %+v", one, other)
	}
	if n := b.count(t, `SELECT sum(attempts) FROM welcomes`); n != 1 {
		t.Errorf("%d leases", n)
	}
}

// TestFetchedTogether: fetches that arrive during a transaction share the next ones. Each gets its
// own Welcome, the audit log names its own recipient, and a value that the database refuses fails
// its own caller and no other.
func TestFetchedTogether(t *testing.T) {
	t.Parallel()
	const n, poisoned = 40, 7
	b := newBench(t, n, false)
	failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid.GetWelcome, failpoint.Pause)
	var all sync.WaitGroup
	fetch := func(i int) {
		to := recipient(i)
		if i == poisoned {
			to.DeviceID = "zero\x00byte"
		}
		if _, err := b.nodes[0].Fetch(t.Context(), b.convo, to); (err != nil) != (i == poisoned) {
			t.Errorf("recipient %d: %v", i, err)
		}
	}
	all.Go(func() { fetch(0) })
	<-b.faults.Reached(failpoint.BeforeCommit, nsid.GetWelcome)
	for i := 1; i < n; i++ {
		all.Go(func() { fetch(i) })
	}
	for deadline := time.Now().Add(20 * time.Second); b.nodes[0].FetchesWaiting() < n-1; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("%d of %d fetches wait for the first", b.nodes[0].FetchesWaiting(), n-1)
			break
		}
	}
	b.faults.Resume(failpoint.BeforeCommit, nsid.GetWelcome)
	all.Wait()
	if n := b.count(t, `
		SELECT count(*) FROM welcomes w JOIN audit_log a ON a.entity_id = w.id::text
		WHERE w.state = 'in_flight' AND a.actor = w.recipient_did AND a.reason = 'getWelcome'
			AND a.to_state = 'in_flight'`); n != 39 {
		t.Errorf("%d of 39 are in the audit log under their own names", n)
	}
	// One transaction of the first fetch, two of those that share, and one for each of the 16 that
	// shared theirs with the poisoned one.
	if n := b.count(t, `SELECT count(DISTINCT xmin::text) FROM welcomes WHERE state = 'in_flight'`); n > 1+2+15 {
		t.Errorf("39 fetches took %d transactions", n)
	}
}

// TestConfirmedTogether: each confirmation of a transaction changes its own Welcome, and the audit
// log names its own recipient.
func TestConfirmedTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t, 60, true)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			want := welcome.Consumed
			if i%3 == 0 {
				want = welcome.InFlight
			}
			if state, _, err := b.nodes[0].Confirm(t.Context(), b.convo, recipient(i), i%3 != 0, ""); err != nil ||
				state != want {
				t.Errorf("recipient %d: %s, %v", i, state, err)
			}
		})
	}
	all.Wait()
	if n := b.count(t, `
		SELECT count(*) FROM welcomes w JOIN audit_log a ON a.entity_id = w.id::text
		WHERE w.state = 'consumed' AND a.actor = w.recipient_did AND a.reason = 'confirmWelcome'
			AND a.to_state = 'consumed'`); n != 40 {
		t.Errorf("%d of 40 are in the audit log under their own names", n)
	}
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'in_flight' AND last_error = 'not stated' AND version =
			2`); n != 20 {
		t.Errorf("%d of 20 failures are recorded", n)
	}
}

// TestConfirmedTwice: a confirmation after the Welcome has ended changes nothing.
func TestConfirmedTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, true)
	for _, success := range []bool{false, true, false, true} {
		if _, _, err := b.nodes[0].Confirm(t.Context(), b.convo, recipient(0), success, "no such key"); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 3 AND last_error IS
			NULL`); n != 1 {
		t.Error("a late confirmation has changed something")
	}
}

// TestFirstAttempt: the first attempt does not wait for locks. It changes only the Welcome that it
// chose.
func TestFirstAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, true)
	b.exec(t, `UPDATE welcomes SET grace_expires_at = now() WHERE recipient_did = $1`, recipient(0).DID)
	b.exec(t, `UPDATE members SET left_at = now() WHERE did = $1`, recipient(1).DID)
	b.exec(t, `DELETE FROM members WHERE did = $1`, recipient(2).DID)
	holder, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `SELECT FROM welcomes WHERE recipient_did = $1 FOR UPDATE`,
		recipient(3).DID); err != nil {
		t.Fatal(err)
	}
	busy := errors.New("busy")
	confirm := func(to welcome.Device, name string, want error) {
		t.Helper()
		state, isBusy, err := b.nodes[0].TryConfirm(t.Context(), b.convo, to, true)
		if isBusy {
			err = busy
		}
		if err != want { // no error of another kind
			t.Errorf("confirmed %s: %s, %v; want %v", name, state, err, want)
		}
	}
	for i, c := range []struct {
		name string
		want error
	}{
		{"a lease that is over", busy},
		{"a former member's", welcome.ErrNotMember},
		{"an outsider's", welcome.ErrConvoNotFound},
		{"one that another transaction holds", busy},
		{"one that does not exist", welcome.ErrConvoNotFound},
	} {
		confirm(recipient(i), c.name, c.want)
		if i == 3 { // its lease is open: there is nothing to change
			continue
		}
		given, isBusy, err := b.nodes[0].TryFetch(t.Context(), b.convo, recipient(i))
		if isBusy {
			err = busy
		}
		if err != c.want {
			t.Errorf("fetched %s: %+v, %v; want %v", c.name, given, err, c.want)
		}
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	unchanged := func() {
		t.Helper()
		if n := b.count(t, `SELECT count(*) FROM audit_log`) + b.count(t,
			`SELECT count(*) FROM welcomes WHERE state = 'consumed'`); n != 0 {
			t.Errorf("%d things have changed", n)
		}
	}
	unchanged()
	confirm(welcome.Device{DID: recipient(3).DID, DeviceID: "laptop"}, "another device's", welcome.ErrNotFound)
	confirm(welcome.Device{DID: recipient(3).DID, KeyPackageRef: mls.KeyPackageRef("another")}, "another KeyPackage's",
		welcome.ErrNotFound)
	b.exec(t, `UPDATE welcomes SET state = 'available', attempts = 0, grace_expires_at = NULL; DELETE FROM audit_log`)
	confirm(recipient(3), "one that was never fetched", welcome.ErrNotFound)
	unchanged()
}

// TestLockedWelcome: a row that another transaction has locked delays its own confirmation only.
func TestLockedWelcome(t *testing.T) {
	t.Parallel()
	b := newBench(t, 50, true)
	holder, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `UPDATE welcomes SET last_error = 'busy' WHERE recipient_did = $1`,
		recipient(0).DID); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, _, err := b.nodes[0].Confirm(t.Context(), b.convo, recipient(0), true, "")
		waiting <- err
	}()
	var others sync.WaitGroup
	for i := 1; i < 50; i++ {
		others.Go(func() {
			if state, _, err := b.nodes[0].Confirm(t.Context(), b.convo, recipient(i), true, ""); err != nil ||
				state != welcome.Consumed {
				t.Errorf("recipient %d: %s, %v", i, state, err)
			}
		})
	}
	others.Wait()
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	b.consumed(t, 50)
}

// TestPoisonedConfirmation: a value that the database refuses fails its own caller and no other.
func TestPoisonedConfirmation(t *testing.T) {
	t.Parallel()
	b := newBench(t, 50, true)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			details, poisoned := "", i%10 == 3
			if poisoned {
				details = "zero\x00byte"
			}
			if _, _, err := b.nodes[0].Confirm(t.Context(), b.convo, recipient(i), !poisoned,
				details); (err != nil) != poisoned {
				t.Errorf("recipient %d: %v", i, err)
			}
		})
	}
	all.Wait()
	b.consumed(t, 45)
}

// TestKilledConfirmations: the session of a transaction that many share is ended before its COMMIT,
// or the answer to the COMMIT is lost. All are confirmed, once.
func TestKilledConfirmations(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{true, false} {
		b := newBench(t, 50, true)
		point, action := failpoint.BeforeCommit, failpoint.Pause
		if !kill {
			point, action = failpoint.AfterCommit, failpoint.Error
		}
		failpointtest.Arm(t, b.faults, point, nsid.ConfirmWelcome, action)
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if state, _, err := b.nodes[0].Confirm(t.Context(), b.convo, recipient(i), true, ""); err != nil ||
					state != welcome.Consumed {
					t.Errorf("recipient %d: %s, %v", i, state, err)
				}
			})
		}
		if kill {
			<-b.faults.Reached(point, nsid.ConfirmWelcome)
			for killed := 0; killed == 0; { // until the session has done its statements and waits for COMMIT
				killed = b.count(t, `
					SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event = 'ClientRead' AND backend_xid IS NOT NULL`)
			}
			b.faults.Resume(point, nsid.ConfirmWelcome)
		}
		all.Wait()
		b.consumed(t, 50)
	}
}

// TestServiceAndSweeps: leases run out while they are confirmed and fetched again. Every Welcome
// ends consumed, and the database has allowed every transition.
func TestServiceAndSweeps(t *testing.T) {
	t.Parallel()
	b := newBench(t, 40, true)
	b.exec(t, `UPDATE welcomes SET grace_expires_at = now() - interval '1 second' WHERE get_byte(uuid_send(id), 15) % 2 =
			0`)
	var all sync.WaitGroup
	all.Go(func() {
		for range 10 {
			pgtest.Sweep(t, welcome.Sweeps(b.db, b.policy)...)
		}
	})
	for i := range 40 {
		all.Go(func() {
			if _, err := b.nodes[0].Fetch(t.Context(), b.convo, recipient(i)); err != nil &&
				!errors.Is(err, welcome.ErrConsumed) {
				t.Errorf("fetch %d: %v", i, err)
			}
		})
		all.Go(func() {
			if state, _, err := b.nodes[1].Confirm(t.Context(), b.convo, recipient(i), true, ""); err != nil ||
				state != welcome.Consumed {
				t.Errorf("confirm %d: %s, %v", i, state, err)
			}
		})
	}
	all.Wait()
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed'`); n != 40 {
		t.Errorf("%d of 40 are consumed", n)
	}
}

// TestRoundTrips: a call that comes alone takes one, BEGIN and COMMIT included. After Close there
// are none.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, false)
	node := b.nodes[1] // it has no failpoints
	for i := range 3 {
		for _, step := range []func() error{
			func() error { _, err := node.Fetch(t.Context(), b.convo, recipient(i)); return err },
			func() error { _, err := node.Fetch(t.Context(), b.convo, recipient(i)); return err },
			func() error {
				_, _, err := node.Confirm(t.Context(), b.convo, recipient(i), false, "no")
				return err
			},
			func() error {
				_, _, err := node.Confirm(t.Context(), b.convo, recipient(i), true, "")
				return err
			},
		} {
			before := b.trips.Count()
			if err := step(); err != nil {
				t.Fatal(err)
			}
			if n := b.trips.Count() - before; i == 2 && n != 1 { // by then every connection has its plans
				t.Errorf("%d round trips", n)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := node.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := node.Confirm(ctx, b.convo, recipient(0), true, ""); !errors.Is(err, batch.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
