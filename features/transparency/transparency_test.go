package transparency_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/transparency"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
	"mlsd/messages"
)

// The head is that of the log that members are shown, on every node, and each node proves all of it:
// also a node that has just started, and whichever node has stored the tiles.
func TestHeadIsThatOfTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nodes := []*transparency.Service{w.Service, w.node()}
	if h := w.head(w.Service); h.Size != 0 || h.Root != rootOf(nil) {
		t.Fatalf("the head of an empty log: %+v", h)
	}
	for i, n := range []int{1, 1, 3, 40, 210, 1, 0, 1, 300, 255, 1, 1} {
		w.send([]syntax.DID{alice, bob, carol}[i%3], n)
		h := w.head(nodes[i%2])
		if leaves := w.leaves(); h.Size != int64(len(leaves)) || h.Root != rootOf(leaves) {
			t.Fatalf("after %d messages the head is %+v", len(leaves), h)
		}
	}
	leaves := w.leaves()
	for _, s := range append(nodes, w.node()) {
		if h := w.head(s); h.Root != rootOf(leaves) {
			t.Errorf("a node has another head: %+v", h)
		}
		w.checkProofs(s, leaves, 37)
	}
	for _, bad := range [][2]int64{{0, 5}, {6, 5}, {1, 815}, {815, 815}} {
		_, _, err := w.Inclusion(t.Context(), w.convo, bad[0], bad[1], new(int64))
		_, err2 := w.Consistency(t.Context(), w.convo, bad[0], bad[1], new(int64))
		if !errors.Is(err, transparency.ErrRange) || !errors.Is(err2, transparency.ErrRange) {
			t.Errorf("%v of 814 entries: %v, %v", bad, err, err2)
		}
	}
	if _, err := w.Head(t.Context(), uuid.New(), new(int64)); !errors.Is(err, transparency.ErrNotReady) {
		t.Errorf("the head of no convo: %v", err)
	}
}

// Nodes that compute heads of a log while it grows agree on every size.
func TestNodesAgreeWhileTheLogGrows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	roots := map[int64]verifier.Hash{}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 3 {
		s := w.node()
		group.Go(func() {
			for ctx.Err() == nil {
				signed, err := s.Head(context.WithoutCancel(ctx), w.convo, new(int64))
				if err != nil {
					t.Error(err)
					return
				}
				h := w.open(signed)
				mu.Lock()
				if before, ok := roots[h.Size]; ok && before != h.Root {
					t.Errorf("two heads of %d entries", h.Size)
				}
				roots[h.Size] = h.Root
				mu.Unlock()
			}
		})
	}
	for i := range 60 {
		w.send([]syntax.DID{alice, bob, carol}[i%3], 1+i%17)
	}
	cancel()
	group.Wait()
	leaves := w.leaves()
	for size, root := range roots {
		if root != rootOf(leaves[:size]) {
			t.Errorf("the head of %d entries is not that of the log", size)
		}
	}
	t.Logf("%d heads of %d entries", len(roots), len(leaves))
}

// The retention deletes messages, and the tree stays: the leaves are stored before. What had expired
// before the server kept leaves has a leaf that says so.
func TestRetentionKeepsTheTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, 100)
	w.exec(`DELETE FROM messages WHERE convo_id = $1 AND seq <= 30`, w.convo)
	w.exec(`INSERT INTO log_floors (convo_id, seq) VALUES ($1, 30)`, w.convo)
	first := w.head(w.Service)
	w.send(bob, 300)
	before := w.head(w.Service)
	cold := w.node() // it has never seen the messages
	for _, keep := range []func(context.Context, []uuid.UUID) ([]uuid.UUID, error){
		func(_ context.Context, convos []uuid.UUID) ([]uuid.UUID, error) { return convos, nil }, // keeps nothing
		cold.Keep,
	} {
		e := messages.NewSweeper(w.db, time.Millisecond, func(int64) {}, keep)
		if _, err := e.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var left int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM messages WHERE convo_id = $1`,
		w.convo).Scan(&left); err != nil || left != 0 {
		t.Fatalf("%d messages are left, %v", left, err)
	}
	for _, s := range []*transparency.Service{w.Service, cold, w.node()} {
		if h := w.head(s); !sameTree(h, before) {
			t.Fatalf("after the retention the head is %+v, and before %+v", h, before)
		}
		proof, err := s.Consistency(t.Context(), w.convo, first.Size, before.Size, new(int64))
		if err != nil || len(proof) == 0 {
			t.Fatalf("proof: %v", err)
		}
	}
	w.send(carol, 200)
	if a, b := w.head(w.Service), w.head(w.node()); !sameTree(a, b) || a.Size != 600 {
		t.Errorf("then %+v and %+v", a, b)
	}
}

// An erased person's entries keep their leaves, also if heads are computed between two batches of the
// erasure. Afterwards nothing is left with which the person could be found.
func TestErasureKeepsTheTree(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} { // whether there was a head before
		w := newWorld(t)
		w.send(alice, 5)
		w.send(bob, 30)
		var before *verifier.Head
		if known {
			before = w.head(w.Service)
		}
		p := tombstone.Person{DID: bob, Salt: tombstone.NewSalt()}
		for more := true; more; {
			err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) (err error) {
				if err = transparency.EraseSender(t.Context(), tx, p, w.convo); err != nil {
					return err
				}
				if _, more, err = messages.EraseSender(t.Context(), tx, p, w.convo, 12); err != nil || more {
					return err
				}
				_, err = transparency.ForgetSender(t.Context(), tx, p, w.convo)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			h := w.head(w.node()) // in the middle
			if before == nil {
				before = h
			}
			if !sameTree(h, before) {
				t.Fatalf("known %v: the head has changed", known)
			}
		}
		if leaves := w.leaves(); rootOf(leaves) != before.Root {
			t.Errorf("known %v: members cannot compute the leaves any more", known)
		}
		var found int
		err := w.db.QueryRow(t.Context(),
			`SELECT count(*) FROM log_senders WHERE did = $1 OR did LIKE 'did:erased:%' AND salt IS NOT NULL`, bob).Scan(&found)
		if err != nil || found != 0 {
			t.Errorf("known %v: %d rows could lead to the person, %v", known, found, err)
		}
	}
}

// After the database went back, heads are of the new generation and of the log as it is. Between the
// loss and the beginning of the generation there are no heads.
func TestWentBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, 290)
	w.send(alice, 10)
	before := w.head(w.Service)
	w.exec(`UPDATE generations SET system_identifier = 1, timeline = 1`)
	if _, err := w.Head(t.Context(), w.convo, new(int64)); !errors.Is(err, transparency.ErrNotReady) {
		t.Fatalf("while the database is another one: %v", err)
	}
	if _, _, err := w.Inclusion(t.Context(), w.convo, 1, 1, new(int64)); !errors.Is(err, transparency.ErrNotReady) {
		t.Fatalf("a proof while the database is another one: %v", err)
	}
	w.exec(`DELETE FROM messages WHERE convo_id = $1 AND seq > 290`, w.convo)
	w.exec(`DELETE FROM outbox WHERE seqs[1] > 290`)
	w.exec(`UPDATE convos SET last_seq = 290 WHERE id = $1`, w.convo)
	w.send(bob, 20)
	w.exec(`
		INSERT INTO generations (id, after_seq, system_identifier, timeline, cause, begun_at)
		SELECT 9, 0, system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
			'an operator', now() FROM pg_control_system()`)
	for _, s := range []*transparency.Service{w.Service, w.node()} {
		if h := w.head(s); h.Size != 310 || h.Generation != 9 || h.Root != rootOf(w.leaves()) || before.Generation != 0 {
			t.Errorf("the head of the new generation is %+v", h)
		}
	}
}

// Somebody changes the log in the database. A node that has signed a head of it signs no second one.
func TestNoHeadOfAnotherLog(t *testing.T) {
	t.Parallel()
	for _, change := range []string{
		`UPDATE messages SET body = '\x00' WHERE seq >= 5`,
		`DELETE FROM messages WHERE seq > 5`,
	} {
		w := newWorld(t)
		w.send(alice, 10)
		w.head(w.Service)
		w.exec(`CREATE TABLE before AS SELECT * FROM messages`)
		w.exec(`ALTER TABLE messages DISABLE TRIGGER USER`)
		w.exec(change)
		w.exec(`UPDATE convos SET last_seq = (SELECT max(seq) FROM messages)`)
		for range 2 {
			if _, err := w.Head(t.Context(), w.convo, new(int64)); !errors.Is(err, transparency.ErrNotReady) {
				t.Errorf("%s: %v", change, err)
			}
		}
		w.exec(`DELETE FROM messages`)
		w.exec(`INSERT INTO messages SELECT * FROM before`)
		w.exec(`UPDATE convos SET last_seq = 10`)
		if h := w.head(w.Service); h.Size != 10 {
			t.Errorf("%s: when the log is back, the head is %+v", change, h)
		}
	}
}

// Stored leaves are never replaced by others, also if a longer tile comes.
func TestStoredLeavesStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, 10)
	w.keep(w.Service, 1)
	other := w.node()
	w.send(bob, 10)
	w.keep(other, 1)
	if h := w.head(w.Service); h.Size != 20 { // it remembers the leaves
		t.Fatalf("%+v", h)
	}
	w.exec(`UPDATE log_tiles SET hashes = overlay(hashes PLACING '\x0000' FROM 33)`)
	w.send(carol, 5)
	w.head(w.Service)
	w.keep(w.Service, 0) // they are other leaves
	w.exec(`DELETE FROM log_tiles`)
}

// A database that refuses to store leaves, as one whose disk is full, is an error of the round. It is
// no damaged tree.
func TestKeepFailsWithTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, 10)
	w.exec(`ALTER TABLE log_tiles ADD CONSTRAINT full_disk CHECK (false)`)
	if kept, err := w.Keep(t.Context(), []uuid.UUID{w.convo}); err == nil {
		t.Errorf("kept the leaves of %v", kept)
	}
	w.exec(`ALTER TABLE log_tiles DROP CONSTRAINT full_disk`)
	w.keep(w.Service, 1)
}

// damaged makes a convo whose tree cannot be read: a tile is missing. remove deletes it.
func (w *world) damaged() (bad uuid.UUID, remove func()) {
	w.t.Helper()
	bad = uuid.UUID{1} // before all others
	w.exec(`INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, $3, 1, 1,
			now())`, bad, bad[:], alice)
	// the tile before is missing
	w.exec(`INSERT INTO log_tiles (convo_id, level, n, hashes) VALUES ($1, 0, 1, sha256(''))`, bad)
	return bad, func() {
		for _, table := range []string{"log_tiles", "messages", "log_senders"} {
			w.exec(`DELETE FROM `+table+` WHERE convo_id = $1`, bad)
		}
		w.exec(`DELETE FROM convos WHERE id = $1`, bad)
	}
}

// One log that is damaged does not keep the messages of the others from expiring. Its own stay, and a
// line of the log names it.
func TestRetentionGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad, remove := w.damaged()
	defer remove()
	w.exec(`
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		VALUES ($1, 1, 1, 'did:plc:alice', 1, 'x', 'x', '', '2026-11-22T09:30:00Z')`, bad)
	w.exec(`UPDATE convos SET last_seq = 1 WHERE id = $1`, bad)
	w.send(alice, 3)
	pgtest.Age(t, w.db, "messages", time.Hour)
	e := messages.NewSweeper(w.db, time.Minute, func(int64) {}, w.Keep)
	if n, err := e.RunOnce(t.Context()); n != 3 || err != nil {
		t.Errorf("%d messages have expired, %v", n, err)
	}
	if !strings.Contains(w.logged.String(), bad.String()) {
		t.Errorf("the log says %q", w.logged.String())
	}
}

// The first messages of a long log are deleted before the leaves of all of it are stored, and then
// the others.
func TestRetentionOfALongLogBeginsSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const entries = 20_000
	w.exec(`
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1, n, 1, 'did:plc:alice', 1, int8send(n), n::text, '', '2026-01-22T09:30:00Z' FROM generate_series(1,
			$2::bigint) n`, w.convo, entries)
	w.exec(`UPDATE convos SET last_seq = $2 WHERE id = $1`, w.convo, entries)
	begun := time.Now()
	var leaves []int64
	e := messages.NewSweeper(w.db, time.Minute, func(int64) {
		var n int64
		if err := w.db.QueryRow(t.Context(), `
			SELECT sum(octet_length(hashes)) / 32 FROM log_tiles WHERE level = 0`).Scan(&n); err != nil {
			t.Error(err)
		}
		if leaves = append(leaves, n); len(leaves) == 1 {
			t.Logf("the first messages are deleted after %v", time.Since(begun))
		}
	}, w.Keep)
	if n, err := e.RunOnce(t.Context()); n != entries || err != nil {
		t.Fatalf("%d messages have expired, %v", n, err)
	}
	t.Logf("all are deleted after %v", time.Since(begun))
	if most := leaves[0]; most > entries/2 {
		t.Errorf("%d leaves are stored before the first messages are deleted", most)
	}
	if last := leaves[len(leaves)-1]; last != entries {
		t.Errorf("%d leaves are stored at the end", last)
	}
}

// A proof in a long log reads a few rows.
func TestLongLog(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	w := newWorld(t)
	const entries = 70_000 // more than 256 tiles of 256
	w.exec(`
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1, n, 1, 'did:plc:alice', 1, int8send(n), n::text, '', '2026-11-22T09:30:00Z' FROM generate_series(1,
			$2::bigint) n`, w.convo, entries)
	w.exec(`UPDATE convos SET last_seq = $2 WHERE id = $1`, w.convo, entries)
	for calls := 1; ; calls++ {
		_, err := w.Head(t.Context(), w.convo, new(int64))
		if err == nil {
			t.Logf("%d calls until there is a head", calls)
			break
		}
		if !errors.Is(err, transparency.ErrNotReady) || calls == 10 {
			t.Fatal(err)
		}
	}
	leaves := w.leaves()
	s := w.node()
	if h := w.head(s); h.Root != rootOf(leaves) {
		t.Errorf("the head is %+v", h)
	}
	w.checkProofs(s, leaves, 34_997)
	w.exec(`DELETE FROM messages WHERE convo_id = $1`, w.convo) // the events of these entries are missing
	w.exec(`UPDATE convos SET last_seq = 0 WHERE id = $1`, w.convo)
	w.exec(`DELETE FROM log_tiles`)
}

// sameTree reports whether two heads say the same of the log.
func sameTree(a, b *verifier.Head) bool { return a.Size == b.Size && a.Root == b.Root }
