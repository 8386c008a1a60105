package welcome_test

import (
	"context"
	"errors"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
	"mlsd/mls"
	"mlsd/welcome"
)

// X6: transactions that lock several Welcomes of a person lock them in the order of ids, also where
// an index finds them in another order. A device that waits for its person's Welcomes begins with
// the first. If the other transaction began with the second, both would wait for ever.
func TestOneOrderOfLocks(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(context.Context, pgx.Tx, uuid.UUID) error{
		"supersede devices": func(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
			return welcome.Supersede(ctx, tx, convo, welcome.Device{DID: bob, DeviceID: "a"},
				welcome.Device{DID: bob, DeviceID: "z"})
		},
		"supersede a person": func(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
			return welcome.Supersede(ctx, tx, convo, welcome.Device{DID: bob})
		},
		"add": func(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
			return welcome.Add(ctx, tx, convo, 3, []byte("welcome 3"), []welcome.Recipient{
				{DID: bob, DeviceID: "a", Ref: mls.KeyPackageRef("a")}, {DID: bob, DeviceID: "z", Ref: mls.KeyPackageRef("z")},
			})
		},
		"erase": func(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
			_, _, err := welcome.Erase(ctx, tx, tombstone.Person{DID: bob, Salt: tombstone.NewSalt()}, convo, 500)
			return err
		},
		"forget": welcome.Forget,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			convo := uuid.New()
			// Every index on the person's Welcomes finds the second one first.
			add(t, db, convo, 1, welcome.Recipient{DID: bob, DeviceID: "z", Ref: mls.KeyPackageRef("1")})
			add(t, db, convo, 2, welcome.Recipient{DID: bob, DeviceID: "a", Ref: mls.KeyPackageRef("2")})
			if name == "erase" { // the person has left, and its Welcomes have ended
				for _, sql := range []string{
					`UPDATE welcomes SET state = 'in_flight', attempts = 1, grace_expires_at = now(), version = version + 1`,
					`UPDATE welcomes SET state = 'consumed', confirmed_at = now(), silent = true, version = version + 1`,
				} {
					if _, err := db.Exec(t.Context(), sql); err != nil {
						t.Fatal(err)
					}
				}
			}
			blocker, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := blocker.Exec(t.Context(), `SELECT FROM welcomes ORDER BY id LIMIT 1 FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 2)
			run := func(lock func(context.Context, pgx.Tx, uuid.UUID) error) {
				ended <- pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return lock(t.Context(), tx, convo) })
			}
			go run(func(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
				return welcome.Lock(ctx, tx, convo, []syntax.DID{bob})
			})
			pgtest.AwaitLockWaits(t, db, 1)
			go run(lock)
			pgtest.AwaitLockWaits(t, db, 2)
			if err := errors.Join(blocker.Rollback(t.Context()), <-ended, <-ended); err != nil {
				t.Fatal(err)
			}
		})
	}
}
