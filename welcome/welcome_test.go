package welcome_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgtest"
	"mlsd/mls"
	"mlsd/welcome"
)

const bob syntax.DID = "did:plc:bob"

// grace is the policy's. Tests let time pass by moving the rows into the past.
const grace = 5 * time.Minute

func init() { // random tests make the same moves each time; -rapid.seed makes others
	_ = flag.Set("rapid.seed", "1")
	_ = flag.Set("rapid.nofailfile", "true")
}

// expect is the model of one Welcome. It follows the contract and shares nothing with the code.
type expect struct {
	state   welcome.State
	fetched bool
	failed  bool          // since the lease was opened
	left    time.Duration // of the lease

	failures int  // leases with a failure
	silent   bool // consumed without a confirmation
}

// confirm is a confirmation of a Welcome that was fetched. Only a Welcome that a device has confirmed
// takes nothing more.
func (e *expect) confirm(success bool) {
	if e.state == welcome.Consumed && !e.silent {
		return
	}
	if success {
		e.state, e.failed, e.silent = welcome.Consumed, false, false
		return
	}
	if !e.failed {
		e.failures++
	}
	e.failed = true
}

func (e *expect) endLease(onExpiry welcome.ExpiryPolicy) {
	if e.state != welcome.InFlight || e.left > 0 {
		return
	}
	if onExpiry == welcome.Consume && !e.failed {
		e.state, e.silent = welcome.Consumed, true
	} else {
		e.state = welcome.Available
	}
}

// TestMachineFollowsTheModel plays random fetches, confirmations, waits and sweeps against
// the database and against the model, and compares after each step.
func TestMachineFollowsTheModel(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for _, onExpiry := range []welcome.ExpiryPolicy{welcome.Release, welcome.Consume} {
		t.Run(string(onExpiry), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { play(t, rt, db, welcome.Policy{Grace: grace, OnExpiry: onExpiry}) })
		})
	}
}

func play(t *testing.T, rt *rapid.T, db *pgxpool.Pool, policy welcome.Policy) {
	ctx := context.Background()
	convo, ref := uuid.New(), mls.KeyPackageRef("ref")
	add(rt, db, convo, 1, welcome.Recipient{DID: bob, DeviceID: "phone", Ref: ref})
	join(rt, db, convo, bob)
	service := newService(db, policy, nil)
	model := expect{state: welcome.Available}
	var lease time.Time
	rt.Repeat(map[string]func(*rapid.T){
		"fetch": func(rt *rapid.T) {
			model.endLease(policy.OnExpiry)
			got, err := service.Fetch(ctx, convo, phone)
			if model.state == welcome.Consumed {
				if !errors.Is(err, welcome.ErrConsumed) {
					rt.Fatalf("a consumed Welcome: %v", err)
				}
				return
			}
			if err != nil || string(got.Body) != "welcome 1" || got.State != welcome.InFlight ||
				got.KeyPackageRef.String() != ref.String() {
				rt.Fatalf("fetch: %+v, %v", got, err)
			}
			if model.state == welcome.InFlight && !got.GraceExpiresAt.Equal(lease) {
				rt.Fatalf("the lease moved from %s to %s", lease, got.GraceExpiresAt)
			}
			if model.state == welcome.Available {
				model.left, model.failed = grace, false
			}
			lease = got.GraceExpiresAt
			model.state, model.fetched = welcome.InFlight, true
		},
		"confirm": func(rt *rapid.T) {
			success := rapid.Bool().Draw(rt, "success")
			model.endLease(policy.OnExpiry)
			state, _, err := service.Confirm(ctx, convo, phone, success, "no such key")
			if !model.fetched {
				if !errors.Is(err, welcome.ErrNotFound) {
					rt.Fatalf("confirmed what was never fetched: %s, %v", state, err)
				}
				return
			}
			model.confirm(success)
			if err != nil || state != model.state {
				rt.Fatalf("confirmed with %t: %s, %v, want %s", success, state, err, model.state)
			}
		},
		"wait": func(rt *rapid.T) {
			d := rapid.SampledFrom([]time.Duration{time.Minute, 3 * time.Minute, 6 * time.Minute}).Draw(rt, "for")
			if _, err := db.Exec(ctx, `
				UPDATE welcomes SET grace_expires_at = grace_expires_at - $2::interval WHERE convo_id = $1`, convo, d); err != nil {
				rt.Fatal(err)
			}
			lease = lease.Add(-d)
			model.left -= d
		},
		"sweep": func(rt *rapid.T) {
			pgtest.Sweep(t, welcome.Sweeps(db, policy)...)
			model.endLease(policy.OnExpiry)
			var got expect
			if err := db.QueryRow(ctx, `SELECT state, failures, silent FROM welcomes WHERE convo_id = $1`, convo).
				Scan(&got.state, &got.failures, &got.silent); err != nil {
				rt.Fatal(err)
			}
			if got.state != model.state || got.failures != model.failures || got.silent != model.silent {
				rt.Fatalf("after the sweep: %+v, want %+v", got, model)
			}
		},
	})
}

// newService returns a service that counts and logs nothing.
func newService(db *pgxpool.Pool, policy welcome.Policy, faults *failpoint.Set) *welcome.Service {
	return welcome.New(db, policy, func(welcome.Outcome) {}, slog.New(slog.DiscardHandler), faults)
}

// phone is the device that bob's Welcome is for.
var phone = welcome.Device{DID: bob, DeviceID: "phone"}

// join makes did a member of convo.
func join(t fataler, db *pgxpool.Pool, convo uuid.UUID, did syntax.DID) {
	_, err := db.Exec(context.Background(), `
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, $2, 'member', now(), 0)`, convo, did)
	if err != nil {
		t.Fatal(err)
	}
}

type fataler interface{ Fatal(...any) }

func add(t fataler, db *pgxpool.Pool, convo uuid.UUID, epoch int64, to ...welcome.Recipient) {
	err := pgx.BeginFunc(context.Background(), db, func(tx pgx.Tx) error {
		return welcome.Add(context.Background(), tx, convo, epoch, fmt.Appendf(nil, "welcome %d", epoch), to)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNewerWelcomeSupersedes: stale-welcome. The device gets the newer one. Another device's
// Welcome does not change.
func TestNewerWelcomeSupersedes(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	policy := welcome.Policy{Grace: grace, OnExpiry: welcome.Release}
	convo := uuid.New()
	join(t, db, convo, bob)
	service := newService(db, policy, nil)
	one := welcome.Recipient{DID: bob, DeviceID: "phone", Ref: mls.KeyPackageRef("one")}
	laptop := welcome.Recipient{DID: bob, DeviceID: "laptop", Ref: mls.KeyPackageRef("two")}
	add(t, db, convo, 1, one, laptop)
	if _, err := service.Fetch(t.Context(), convo, phone); err != nil {
		t.Fatal(err)
	}
	add(t, db, convo, 7, one) // the same KeyPackage: a last-resort one
	if state, _, err := service.Confirm(t.Context(), convo, phone, true, ""); err != nil || state != welcome.Superseded {
		t.Fatalf("a late confirmation: %s, %v", state, err)
	}
	got, err := service.Fetch(t.Context(), convo, phone)
	if err != nil || got.Epoch != 7 || string(got.Body) != "welcome 7" {
		t.Fatalf("%+v, %v", got, err)
	}
	var states string
	err = db.QueryRow(t.Context(), `
		SELECT string_agg(device_id || ' ' || epoch || ' ' || state, ', ' ORDER BY device_id, epoch) FROM welcomes WHERE
			convo_id = $1`,
		convo).Scan(&states)
	if want := "laptop 1 available, phone 1 superseded, phone 7 in_flight"; err != nil || states != want {
		t.Fatalf("%q, %v; want %q", states, err, want)
	}
}

// TestRetention: unfetched Welcomes expire after 90 days; bytes are erased a day after the last
// device has consumed them.
func TestRetention(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	policy := welcome.Policy{Grace: grace, OnExpiry: welcome.Release}
	sweeps := welcome.Sweeps(db, policy)
	service, convo := newService(db, policy, nil), uuid.New()
	join(t, db, convo, bob)
	add(t, db, convo, 1, welcome.Recipient{DID: bob, DeviceID: "phone", Ref: mls.KeyPackageRef("one")},
		welcome.Recipient{DID: "did:plc:carol", DeviceID: "tablet", Ref: mls.KeyPackageRef("two")})
	if _, err := service.Fetch(t.Context(), convo, phone); err != nil {
		t.Fatal(err)
	}
	if _, _, err := service.Confirm(t.Context(), convo, phone, true, ""); err != nil {
		t.Fatal(err)
	}
	step := func(d time.Duration, want map[string]int64) {
		t.Helper()
		pgtest.Age(t, db, "welcomes", d)
		pgtest.Age(t, db, "welcome_bodies", d)
		if diff := cmp.Diff(want, pgtest.Sweep(t, sweeps...)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
	step(25*time.Hour, map[string]int64{})                                              // carol's is still to be fetched
	step(89*24*time.Hour, map[string]int64{"welcomes_expired": 1, "welcome_bodies": 1}) // carol's has expired
	step(time.Hour, map[string]int64{})
	if _, err := service.Fetch(t.Context(), convo, phone); !errors.Is(err, welcome.ErrConsumed) {
		t.Fatalf("a consumed Welcome without bytes: %v", err)
	}
}
