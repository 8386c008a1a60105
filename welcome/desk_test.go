package welcome_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/failpoint"
	"mlsd/internal/gather"
	"mlsd/internal/pgtest"
	"mlsd/mls"
	"mlsd/welcome"
)

const nsidConfirm = "blue.catbird.mls.confirmWelcome"

// deskBench is a convo with recipients, each with a Welcome, and two nodes.
type deskBench struct {
	db     *pgxpool.Pool
	policy welcome.Policy
	desks  [2]*welcome.Desk
	faults *failpoint.Set
	convo  uuid.UUID
	trips  pgtest.Trips
}

func recipient(i int) welcome.Device {
	return welcome.Device{DID: syntax.DID(fmt.Sprintf("did:plc:recipient%d", i)), DeviceID: "phone"}
}

func newDeskBench(t *testing.T, recipients int, fetched bool) *deskBench {
	t.Helper()
	b := &deskBench{policy: welcome.Policy{Grace: grace, OnExpiry: welcome.Release}, faults: failpoint.New(), convo: uuid.New()}
	b.db = pgtest.Database(t, pgtest.MaxConns(24), pgtest.CountTrips(&b.trips))
	b.desks = [2]*welcome.Desk{welcome.NewDesk(b.db, b.policy, b.faults), welcome.NewDesk(b.db, b.policy, nil)}
	var to []welcome.Recipient
	for i := range recipients {
		d := recipient(i)
		join(t, b.db, b.convo, d.DID)
		to = append(to, welcome.Recipient{DID: d.DID, DeviceID: d.DeviceID, Ref: mls.KeyPackageRef(fmt.Sprint(i))})
	}
	deposit(t, b.db, b.convo, 1, to...)
	if fetched {
		b.exec(t, `
			UPDATE welcomes SET state = 'in_flight', attempts = 1, version = 1, grace_expires_at = now() + interval '5 minutes';
			DELETE FROM audit_log`)
	}
	return b
}

func (b *deskBench) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (b *deskBench) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	if err := b.db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

// confirm is what the method does: at the desk, and if that leaves it aside by itself.
func (b *deskBench) confirm(ctx context.Context, node int, to welcome.Device, success bool, details string) (state welcome.State, err error) {
	if state, err = b.desks[node].Confirm(ctx, b.convo, to, success, details); !errors.Is(err, welcome.ErrAside) {
		return state, err
	}
	err = pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error {
		state, err = b.policy.Confirm(ctx, tx, b.convo, to, success, details)
		return err
	})
	return state, err
}

func (b *deskBench) fetch(ctx context.Context, node int, to welcome.Device) (given welcome.Delivery, err error) {
	if given, err = b.desks[node].Fetch(ctx, b.convo, to); !errors.Is(err, welcome.ErrAside) {
		return given, err
	}
	err = pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error {
		given, err = b.policy.Fetch(ctx, tx, b.convo, to)
		return err
	})
	return given, err
}

// TestHundredConfirmations of one Welcome at once, over two nodes, are one transition, and they are all told that it is confirmed.
func TestHundredConfirmations(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 3, true)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if state, err := b.confirm(t.Context(), i%2, recipient(0), true, ""); err != nil || state != welcome.Consumed {
				t.Errorf("%s, %v", state, err)
			}
		})
	}
	all.Wait()
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 2`); n != 1 {
		t.Errorf("%d Welcomes consumed in one step", n)
	}
	if n := b.count(t, `SELECT count(*) FROM audit_log`); n != 1 {
		t.Errorf("%d transitions", n)
	}
}

// TestHundredFetches at once, over two nodes, open one lease, and all get it.
func TestHundredFetches(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 2, false)
	given := make([]welcome.Delivery, 100)
	var all sync.WaitGroup
	for i := range given {
		all.Go(func() {
			var err error
			if given[i], err = b.fetch(t.Context(), i%2, recipient(0)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, g := range given {
		if !g.GraceExpiresAt.Equal(given[0].GraceExpiresAt) || string(g.Body) != "welcome 1" || g.State != welcome.InFlight || g.Epoch != 1 {
			t.Errorf("%+v", g)
		}
	}
	if n := b.count(t, `SELECT sum(attempts) FROM welcomes`); n != 1 {
		t.Errorf("%d leases", n)
	}
}

// TestConfirmedTogether: each recipient of a transaction is judged by its own Welcome, and stands in the audit log for its own.
func TestConfirmedTogether(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 60, true)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			want := welcome.Consumed
			if i%3 == 0 {
				want = welcome.InFlight
			}
			if state, err := b.confirm(t.Context(), 0, recipient(i), i%3 != 0, ""); err != nil || state != want {
				t.Errorf("recipient %d: %s, %v", i, state, err)
			}
		})
	}
	all.Wait()
	if n := b.count(t, `
		SELECT count(*) FROM welcomes w JOIN audit_log a ON a.entity_id = w.id::text
		WHERE w.state = 'consumed' AND a.actor = w.recipient_did AND a.reason = 'confirmWelcome' AND a.to_state = 'consumed'`); n != 40 {
		t.Errorf("%d of 40 are in the audit log under their own names", n)
	}
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'in_flight' AND last_error = 'not stated' AND version = 2`); n != 20 {
		t.Errorf("%d of 20 failures are recorded", n)
	}
}

// TestConfirmedTwice: what is said of a Welcome after it has ended changes nothing, in the same transaction as the first word too.
func TestConfirmedTwice(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 1, true)
	for _, success := range []bool{false, true, false, true} {
		if _, err := b.desks[0].Confirm(t.Context(), b.convo, recipient(0), success, "no such key"); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 3 AND last_error IS NULL`); n != 1 {
		t.Error("a late word has changed something")
	}
}

// TestLeftAside: a desk touches nothing that is not plain.
func TestLeftAside(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 4, true)
	b.exec(t, `UPDATE welcomes SET grace_expires_at = now() WHERE recipient_did = $1`, recipient(0).DID)
	b.exec(t, `UPDATE members SET left_at = now() WHERE did = $1`, recipient(1).DID)
	b.exec(t, `DELETE FROM members WHERE did = $1`, recipient(2).DID)
	held, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), `SELECT FROM welcomes WHERE recipient_did = $1 FOR UPDATE`, recipient(3).DID); err != nil {
		t.Fatal(err)
	}
	aside := func(to welcome.Device, name string) {
		t.Helper()
		if state, err := b.desks[0].Confirm(t.Context(), b.convo, to, true, ""); err != welcome.ErrAside { // and not for something that went wrong
			t.Errorf("confirmed %s: %s, %v", name, state, err)
		}
	}
	for i, name := range []string{"a lease that is over", "a former member's", "a stranger's", "one that is held", "nobody's"} {
		aside(recipient(i), name)
		if i < 3 {
			if given, err := b.desks[0].Fetch(t.Context(), b.convo, recipient(i)); !errors.Is(err, welcome.ErrAside) {
				t.Errorf("fetched %s: %+v, %v", name, given, err)
			}
		}
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	aside(welcome.Device{DID: recipient(3).DID, DeviceID: "laptop"}, "another device's")
	aside(welcome.Device{DID: recipient(3).DID, KeyPackageRef: mls.KeyPackageRef("another")}, "another KeyPackage's")
	b.exec(t, `UPDATE welcomes SET state = 'available', attempts = 0, grace_expires_at = NULL; DELETE FROM audit_log`)
	aside(recipient(3), "one that was never fetched")
	if n := b.count(t, `SELECT count(*) FROM audit_log`) + b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed'`); n != 0 {
		t.Errorf("%d things have changed", n)
	}
}

// TestHeldWelcome: a row that another transaction holds holds up nobody else's confirmation, and its own has its turn.
func TestHeldWelcome(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 50, true)
	held, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), `UPDATE welcomes SET last_error = 'busy' WHERE recipient_did = $1`, recipient(0).DID); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := b.confirm(t.Context(), 0, recipient(0), true, "")
		waiting <- err
	}()
	var others sync.WaitGroup
	for i := 1; i < 50; i++ {
		others.Go(func() {
			if state, err := b.confirm(t.Context(), 0, recipient(i), true, ""); err != nil || state != welcome.Consumed {
				t.Errorf("recipient %d: %s, %v", i, state, err)
			}
		})
	}
	others.Wait()
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 2`); n != 50 {
		t.Errorf("%d of 50 are consumed", n)
	}
}

// TestPoisonedConfirmation: what the database will not have fails its own caller alone.
func TestPoisonedConfirmation(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 50, true)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			details, poisoned := "", i%10 == 3
			if poisoned {
				details = "zero\x00byte"
			}
			if _, err := b.confirm(t.Context(), 0, recipient(i), !poisoned, details); (err != nil) != poisoned {
				t.Errorf("recipient %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 2`); n != 45 {
		t.Errorf("%d of 45 are consumed", n)
	}
}

// TestKilledConfirmations: the session of a transaction that many share is ended before its COMMIT, or the answer to that is lost. They
// are all confirmed, once.
func TestKilledConfirmations(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{true, false} {
		b := newDeskBench(t, 50, true)
		point, action := failpoint.BeforeCommit, failpoint.Pause
		if !kill {
			point, action = failpoint.AfterCommit, failpoint.Error
		}
		if err := b.faults.Arm(point, nsidConfirm, action); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if state, err := b.confirm(t.Context(), 0, recipient(i), true, ""); err != nil || state != welcome.Consumed {
					t.Errorf("recipient %d: %s, %v", i, state, err)
				}
			})
		}
		if kill {
			<-b.faults.Reached(point, nsidConfirm)
			if n := b.count(t, `
				SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'idle in transaction'`); n != 1 {
				t.Fatalf("%d sessions were ended", n)
			}
			b.faults.Resume(point, nsidConfirm)
		}
		all.Wait()
		if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 2`); n != 50 {
			t.Errorf("%d of 50 are consumed", n)
		}
		if n := b.count(t, `SELECT count(*) FROM audit_log`); n != 50 {
			t.Errorf("%d transitions", n)
		}
	}
}

// TestDeskAndReaper: leases run out while they are confirmed and fetched anew. Every Welcome ends consumed, and the state machine's own
// guard has let every step pass.
func TestDeskAndReaper(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 40, true)
	b.exec(t, `UPDATE welcomes SET grace_expires_at = now() - interval '1 second' WHERE get_byte(uuid_send(id), 15) % 2 = 0`)
	reaper := welcome.NewReaper(b.db, b.policy, slog.New(slog.DiscardHandler), func(welcome.Reaped) {})
	var all sync.WaitGroup
	all.Go(func() {
		for range 10 {
			if _, err := reaper.RunOnce(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 40 {
		all.Go(func() {
			if _, err := b.fetch(t.Context(), 0, recipient(i)); err != nil && !errors.Is(err, welcome.ErrConsumed) {
				t.Errorf("fetch %d: %v", i, err)
			}
		})
		all.Go(func() {
			if state, err := b.confirm(t.Context(), 1, recipient(i), true, ""); err != nil || state != welcome.Consumed {
				t.Errorf("confirm %d: %s, %v", i, state, err)
			}
		})
	}
	all.Wait()
	if n := b.count(t, `SELECT count(*) FROM welcomes WHERE state = 'consumed'`); n != 40 {
		t.Errorf("%d of 40 are consumed", n)
	}
}

// TestDeskIsCheap: one round trip for whoever comes alone; and once it is closed, none.
func TestDeskIsCheap(t *testing.T) {
	t.Parallel()
	b := newDeskBench(t, 3, false)
	for i := range 3 {
		for _, step := range []func() error{
			func() error { _, err := b.desks[0].Fetch(t.Context(), b.convo, recipient(i)); return err },
			func() error { _, err := b.desks[0].Fetch(t.Context(), b.convo, recipient(i)); return err },
			func() error {
				_, err := b.desks[0].Confirm(t.Context(), b.convo, recipient(i), false, "no")
				return err
			},
			func() error {
				_, err := b.desks[0].Confirm(t.Context(), b.convo, recipient(i), true, "")
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
	if err := b.desks[0].Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := b.desks[0].Confirm(ctx, b.convo, recipient(0), true, ""); !errors.Is(err, gather.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
