package api_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// keyedRows are writes that store their key with a row. Each call of write is a new request, so
// that it is refused under a key that is in use.
var keyedRows = []struct {
	name string
	// writes returns what sends another request with the given key each time.
	writes func(w *world, alice *user) (write func(key *string) answer)
	// copied inserts the newest row again, under another identity.
	copied string
	index  string // that refuses it
}{
	{
		name: "createConvo",
		writes: func(w *world, alice *user) func(*string) answer {
			return func(key *string) answer {
				in := alice.creation(newGroup(w.t))
				in.IdempotencyKey = key
				return alice.post(mlsapi.NSIDCreateConvo, in)
			}
		},
		copied: `
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, idempotency_key, created_at)
			SELECT gen_random_uuid(), '\x01', creator_did, cipher_suite, epoch, idempotency_key, now()
			FROM convos WHERE idempotency_key = $1`,
		index: "convos_idempotency_key",
	},
	{
		name: "submitCommit",
		writes: func(_ *world, alice *user) func(*string) answer {
			c := alice.create()
			return func(key *string) answer {
				in := alice.rotation(c)
				in.IdempotencyKey = key
				a := alice.post(mlsapi.NSIDSubmitCommit, in)
				if a.status == http.StatusOK {
					c.epoch++
				}
				return a
			}
		},
		copied: `
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT convo_id, seq + 1, kind, sender_did, epoch + 1, body, idempotency_key, request_hash, now()
			FROM messages WHERE idempotency_key = 'submitCommit:' || $1`,
		index: "messages_commit_idempotency_key",
	},
	{
		name: "publishKeyPackage",
		writes: func(w *world, alice *user) func(*string) answer {
			return func(key *string) answer {
				body, _ := alice.KeyPackage(w.t)
				return alice.post(mlsapi.NSIDPublishKeyPackage, &mlsapi.PublishKeyPackageInput{
					KeyPackage: body, CipherSuite: mlstest.Suite.String(), IdempotencyKey: key})
			}
		},
		copied: `
			INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, idempotency_key,
				created_at)
			SELECT did, '\x01', device_id, cipher_suite, body, not_after, last_resort, idempotency_key, now()
			FROM key_packages WHERE idempotency_key = $1`,
		index: "key_packages_idempotency_key",
	},
}

// S1: PostgreSQL refuses a second row with the same owner and key. The record is not needed for
// that.
func TestRawSecondInsert(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refused := func(t *testing.T, w *world, index, sql string, args ...any) {
		t.Helper()
		_, err := w.db.Exec(t.Context(), sql, args...)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "23505" || pgErr.ConstraintName != index {
			t.Errorf("got %v, want a violation of %s", err, index)
		}
	}
	for _, kind := range keyedRows {
		t.Run(kind.name, func(t *testing.T) {
			w := w.within(t)
			key := newKey()
			kind.writes(w, w.user())(key).ok()
			refused(t, w, kind.index, kind.copied, *key)
		})
	}
	t.Run("sendMessage", func(t *testing.T) {
		w := w.within(t)
		alice := w.user()
		c := alice.create()
		alice.send(c, "x")
		for _, kind := range []int{1, 2} { // application messages and proposals
			refused(t, w, "messages_idempotency_key", `
				INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
				SELECT convo_id, seq + 1, $1, sender_did, epoch, body, idempotency_key, request_hash, now() FROM messages
				WHERE convo_id = $2`, kind, c.id)
		}
	})
}

// S1: a key can be used again once its record has ended, whether the record is still there or the
// sweep has deleted it. The old row keeps the key, as a retired one.
func TestKeyIsRetiredWithItsRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, kind := range keyedRows {
		for _, swept := range []bool{false, true} {
			name := kind.name
			if swept {
				name += " after the sweep"
			}
			t.Run(name, func(t *testing.T) {
				w := w.within(t)
				write, key := kind.writes(w, w.user()), newKey()
				write(key).ok()
				write(key).fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
				pgtest.Age(t, w.db, "idempotency_keys", 400*24*time.Hour, "expires_at", "created_at")
				pgtest.Age(t, w.db, "messages", 400*24*time.Hour)
				if swept {
					if done := pgtest.Sweep(t, idem.Sweeps(w.db, api.RetireKeys)...); done["idempotency_keys"] == 0 {
						t.Fatal("no record was deleted")
					}
				}
				write(key).ok()
				write(key).fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
				n := 0
				for _, table := range []string{"convos", "messages", "key_packages"} {
					n += w.count(`SELECT count(*) FROM `+table+` WHERE idempotency_key IN ($1, 'submitCommit:' || $1)`, *key)
				}
				if n != 2 {
					t.Errorf("%d rows show the key, want the old one and the new one", n)
				}
			})
		}
	}
}

// S1: if a record is lost before its time, the row refuses another request with its key. The answer
// says what happened, and nothing is written.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, kind := range keyedRows {
		t.Run(kind.name, func(t *testing.T) {
			w := w.within(t)
			write, key := kind.writes(w, w.user()), newKey()
			write(key).ok()
			w.exec(`DELETE FROM idempotency_keys`)
			pgtest.Age(t, w.db, "messages", 400*24*time.Hour) // the checker does not miss the record of an old commit
			before := w.count(`SELECT (SELECT count(*) FROM convos) + (SELECT count(*) FROM messages) + (SELECT count(*) FROM
					key_packages)`)
			write(key).fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
			after := w.count(`SELECT (SELECT count(*) FROM convos) + (SELECT count(*) FROM messages) + (SELECT count(*) FROM
					key_packages)`)
			if after != before {
				t.Errorf("%d rows, then %d", before, after)
			}
		})
	}
}
