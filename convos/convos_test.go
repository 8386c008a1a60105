package convos_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/idem"
	"mlsd/idem/idemtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/mls"
)

const (
	alice syntax.DID = "did:plc:alice"
	bob   syntax.DID = "did:plc:bob"
	carol syntax.DID = "did:plc:carol"
)

// fixture is a convo of alice's at epoch 1, with bob in it.
type fixture struct {
	db    *pgxpool.Pool
	id    uuid.UUID
	group []byte
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{db: pgtest.Database(t), group: []byte("the group")}
	welcome := f.welcome(t, bob)
	f.do(t, func(tx pgx.Tx) error {
		c, err := convos.Create(t.Context(), tx, convos.NewConvo{
			Creator: alice, GroupID: f.group, CipherSuite: mlstest.Suite, Members: []syntax.DID{bob, alice, bob},
			Welcome: welcome, Key: "k",
		})
		f.id = c.ID
		if c.Epoch != 1 || len(c.Members) != 2 || c.Members[0].DID != alice {
			t.Errorf("created %+v", c)
		}
		return err
	})
	return f
}

// do runs effect in a transaction that must succeed.
func (f *fixture) do(t *testing.T, effect func(pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), f.db, effect); err != nil {
		t.Fatal(err)
	}
}

// welcome publishes a KeyPackage of did and returns a Welcome for it.
func (f *fixture) welcome(t *testing.T, did syntax.DID) []byte {
	t.Helper()
	return mlstest.Welcome(t, f.publish(t, did, mlstest.NewDevice(t, did.String())))
}

// publish publishes a KeyPackage of a device of did.
func (f *fixture) publish(t *testing.T, did syntax.DID, device *mlstest.Device) mls.KeyPackageRef {
	t.Helper()
	body, ref := device.KeyPackage(t)
	f.do(t, func(tx pgx.Tx) error {
		_, err := keypackages.Publish(t.Context(), tx,
			keypackages.Publication{Owner: did, Body: body, CipherSuite: mlstest.Suite})
		return err
	})
	return ref
}

// addition is a commit by caller, made in epoch, that adds did.
func (f *fixture) addition(t *testing.T, caller syntax.DID, epoch int64, did syntax.DID) convos.AddMembers {
	t.Helper()
	return convos.AddMembers{ConvoID: f.id, Caller: caller, DIDs: []syntax.DID{did}, Proposed: convos.Proposed{
		Commit: mlstest.Commit(f.group, epoch, "add"), Welcome: f.welcome(t, did),
		Key: fmt.Sprintf("addMembers:%s%d", did, epoch),
	}}
}

// removal is alice's commit, made in epoch, that removes did.
func (f *fixture) removal(epoch int64, did syntax.DID) convos.Departure {
	return convos.Departure{ConvoID: f.id, Caller: alice, Target: did, Proposed: convos.Proposed{
		Commit: mlstest.Commit(f.group, epoch, "remove"), Key: fmt.Sprintf("leaveConvo:%s%d", did, epoch),
	}}
}

// TestRemovedWhileWaiting: a caller that waits for the convo's row is judged by what the holder
// commits, not by what was there before the wait. One statement that locked the convo and read the
// membership would see bob still in.
func TestRemovedWhileWaiting(t *testing.T) {
	t.Parallel()
	writes := map[string]func(t *testing.T, f *fixture) func() error{
		"addMembers": func(t *testing.T, f *fixture) func() error {
			add := f.addition(t, bob, 1, carol)
			return func() error {
				return pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
					_, err := convos.Add(t.Context(), tx, add)
					return err
				})
			}
		},
		"leaveConvo": func(t *testing.T, f *fixture) func() error {
			return func() error {
				return pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
					left, err := convos.Leave(t.Context(), tx, convos.Departure{ConvoID: f.id, Caller: bob, Target: bob})
					if err == nil && left.Epoch == 2 {
						return messages.ErrNotMember // leaving again gets the answer of the removal
					}
					return err
				})
			}
		},
		"sendMessage": func(t *testing.T, f *fixture) func() error {
			log := messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), nil)
			return func() error {
				results, err := log.Append(t.Context(), []messages.Draft{{
					ConvoID: f.id, GroupID: f.group, Sender: bob, Key: "k", Kind: mls.ContentTypeApplication, Epoch: 1,
					Body: mlstest.Message(f.group, 1, "still here"), Hash: idem.Content{}.Hash(),
				}})
				if err != nil {
					return err
				}
				return results[0].Err
			}
		},
	}
	for name, prepare := range writes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			write := prepare(t, f)
			holder, err := f.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := convos.Leave(t.Context(), holder, f.removal(1, bob)); err != nil {
				t.Fatal(err)
			}
			waited := make(chan error, 1)
			go func() { waited <- write() }()
			pgtest.AwaitLockWaits(t, f.db, 1)
			if err := holder.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-waited; !errors.Is(err, convos.ErrNotMember) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

type uncounted = idemtest.Uncounted

// TestReturn: a member who comes back reads from the commit that added it again, and does not get
// an old Welcome.
func TestReturn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do(t, func(tx pgx.Tx) error {
		_, err := convos.Leave(t.Context(), tx, f.removal(1, bob))
		return err
	})
	if _, err := convos.Authorise(t.Context(), f.db, f.id, bob); !errors.Is(err, convos.ErrNotMember) {
		t.Fatalf("after the removal: %v", err)
	}
	again := f.addition(t, alice, 2, bob)
	f.do(t, func(tx pgx.Tx) error {
		_, err := convos.Add(t.Context(), tx, again)
		return err
	})
	m, err := convos.Authorise(t.Context(), f.db, f.id, bob)
	if err != nil || m.Epoch != 3 || m.Window.First != 2 || m.Window.Last != 2 {
		t.Fatalf("after the return: %+v, %v", m, err)
	}
	var live string
	err = f.db.QueryRow(t.Context(),
		`SELECT string_agg(epoch || ' ' || state, ', ' ORDER BY epoch) FROM welcomes`).Scan(&live)
	if err != nil || live != "1 superseded, 3 available" {
		t.Fatalf("Welcomes: %s, %v", live, err)
	}
}

// TestWelcomeMustFit: a Welcome names every added member and no others.
func TestWelcomeMustFit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	add := func(change func(*convos.AddMembers)) error {
		a := f.addition(t, alice, 1, carol)
		change(&a)
		return pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
			_, err := convos.Add(t.Context(), tx, a)
			return err
		})
	}
	var object *convos.InvalidObjectError
	if err := add(func(a *convos.AddMembers) { a.Welcome = nil }); !errors.As(err, &object) ||
		object.Object != convos.Welcome {
		t.Errorf("no Welcome: %v", err)
	}
	if err := add(func(a *convos.AddMembers) { a.DIDs = append(a.DIDs, "did:plc:dave") }); !errors.As(err, &object) ||
		object.Object != convos.Welcome {
		t.Errorf("a Welcome for some: %v", err)
	}
	if err := add(func(a *convos.AddMembers) { a.Welcome = f.welcome(t, "did:plc:mallory") }); !errors.Is(err,
		keypackages.ErrNotFound) {
		t.Errorf("a Welcome for another person: %v", err)
	}
	var member *convos.AlreadyMemberError
	if err := add(func(a *convos.AddMembers) { a.DIDs = []syntax.DID{bob} }); !errors.As(err, &member) ||
		member.DID != bob {
		t.Errorf("a member: %v", err)
	}
	if err := add(func(a *convos.AddMembers) {
		phone := mlstest.NewDevice(t, carol.String())
		a.Welcome = mlstest.Welcome(t, f.publish(t, carol, phone), f.publish(t, carol, phone))
	}); !errors.As(err, &object) || object.Object != convos.Welcome {
		t.Errorf("two KeyPackages of one device: %v", err)
	}
	if err := add(func(a *convos.AddMembers) { // carol's two devices, and another one of alice's own
		a.Welcome = mlstest.Welcome(t, f.publish(t, carol, mlstest.NewDevice(t, carol.String())),
			f.publish(t, carol, mlstest.NewDevice(t, carol.String())), f.publish(t, alice, mlstest.NewDevice(t, alice.String())))
	}); err != nil {
		t.Errorf("a Welcome that fits: %v", err)
	}
	var used, live int
	err := f.db.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM key_packages WHERE state = 'consumed' AND did <> $1),
			(SELECT count(*) FROM welcomes WHERE epoch = 2 AND state = 'available')`, bob).Scan(&used, &live)
	if err != nil || used != 3 || live != 3 {
		t.Errorf("%d KeyPackages used up, %d Welcomes on their way, %v; want the 3 of the one addition", used, live, err)
	}
}

// TestListPages: pages of any limit have every convo once, newest first.
func TestListPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	want := []uuid.UUID{f.id}
	for i := range 6 {
		f.do(t, func(tx pgx.Tx) error {
			c, err := convos.Create(t.Context(), tx, convos.NewConvo{
				Creator: alice, GroupID: []byte{byte(i)}, CipherSuite: mlstest.Suite, Key: fmt.Sprint(i),
			})
			want = append([]uuid.UUID{c.ID}, want...)
			return err
		})
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		var got []uuid.UUID
		for after, more := uuid.Nil, true; more; {
			n := 0
			var err error
			more, _, err = convos.List(t.Context(), f.db, alice, convos.All, after, limit, func(c *convos.Convo) bool {
				n++
				got, after = append(got, c.ID), c.ID
				return true
			})
			if err != nil || n > limit || n == 0 {
				t.Fatalf("%d of %d, %v", n, limit, err)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("limit %d: %v, want %v", limit, got, want)
		}
	}
}

// TestListTouchesThePage: a page of convos reads only its own convos, wherever it begins, and reads
// unread messages only as far as it counts them.
func TestListTouchesThePage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const (
		others  = 100 // convos
		members = 5
		entries = 200
		limit   = 10
	)
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for _, sql := range []string{
		`INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
			SELECT gen_random_uuid(), n::text::bytea, 'did:plc:alice', 1, 1, $2::bigint, now()
			FROM generate_series(1, $1::integer) AS n WHERE $3::integer > 0`,
		`INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
			SELECT id, CASE n WHEN 1 THEN 'did:plc:alice' ELSE 'did:plc:' || n END, CASE n WHEN 1 THEN 'creator' ELSE 'member'
				END, now(), 0
			FROM convos, generate_series(1, $3::integer) AS n WHERE last_seq = $2 AND $1::integer > 0`,
		`INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT id, n, 1, 'did:plc:2', 1, '', n::text, '', now()
			FROM convos, generate_series(1, $2::bigint) AS n WHERE last_seq = $2 AND $1::integer > 0 AND $3::integer > 0`,
	} {
		if _, err := tx.Exec(t.Context(), sql, others, entries, members); err != nil {
			t.Fatal(err)
		}
	}
	touched := func() (convos, members, messages int64) {
		t.Helper()
		err := tx.QueryRow(t.Context(), `
			SELECT sum(n) FILTER (WHERE relname = 'convos'), sum(n) FILTER (WHERE relname = 'members'), sum(n) FILTER (WHERE
				relname = 'messages')
			FROM pg_stat_xact_user_tables, LATERAL (SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) AS rows (n)`).
			Scan(&convos, &members, &messages)
		if err != nil {
			t.Fatal(err)
		}
		return convos, members, messages
	}
	after, seen := uuid.Nil, 0
	for more := true; more; {
		c, m, e := touched()
		n := 0
		var err error
		more, _, err = convos.List(t.Context(), tx, alice, convos.All, after, limit, func(c *convos.Convo) bool {
			if c.ID != f.id && (c.Unread != 100 || len(c.Members) != members || c.Members[0].DID != alice) {
				t.Errorf("listed %+v", c)
			}
			n++
			after = c.ID
			return true
		})
		if err != nil || n != limit && more {
			t.Fatalf("%d of %d, %v", n, limit, err)
		}
		c2, m2, e2 := touched()
		if c2-c > limit || m2-m > limit+1+limit*members || e2-e > limit*101 {
			t.Fatalf("behind %d convos a page touches %d convos, %d members and %d messages", seen, c2-c, m2-m, e2-e)
		}
		seen += n
	}
	if seen != others+1 {
		t.Errorf("%d convos listed", seen)
	}
	c, m, e := touched()
	one, err := convos.Get(t.Context(), tx, after, alice)
	if err != nil || one.ID != after {
		t.Fatalf("%+v, %v", one, err)
	}
	if c2, m2, e2 := touched(); c2-c > 1 || m2-m > 1+members || e2-e > 101 {
		t.Fatalf("one convo touches %d convos, %d members and %d messages", c2-c, m2-m, e2-e)
	}
}
