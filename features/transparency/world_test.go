package transparency_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/events"
	"mlsd/features/transparency"
	"mlsd/features/transparency/verifier"
	"mlsd/idem"
	"mlsd/idem/idemtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/operator/invariants"
)

const (
	service            = "did:web:chat.example"
	alice   syntax.DID = "did:plc:alice"
	bob     syntax.DID = "did:plc:bob"
	carol   syntax.DID = "did:plc:carol"
)

type uncounted = idemtest.Uncounted

// world is a convo of alice, bob and carol, with its log, and a node that signs heads of it.
type world struct {
	*transparency.Service
	t     testing.TB
	db    *pgxpool.Pool
	log   *messages.Log
	convo uuid.UUID
	clock time.Time
	n     int // messages sent

	logged *bytes.Buffer // by the nodes
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.Database(t, pgtest.MaxConns(10)), convo: uuid.Must(uuid.NewV7()),
		clock: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC), logged: &bytes.Buffer{}}
	w.log = messages.NewLog(w.db, 0, uncounted{}, slog.New(slog.DiscardHandler), nil, messages.WithShards(1))
	w.exec(`INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, $3, 1, 1,
			now())`, w.convo, w.convo[:], alice)
	for _, did := range []syntax.DID{alice, bob, carol} {
		w.exec(`INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, $2, CASE WHEN $2 =
				'did:plc:alice' THEN 'creator' ELSE 'member' END, now(), 0)`, w.convo, did)
	}
	w.Service = w.node()
	t.Cleanup(func() {
		violations, err := invariants.Check(context.Background(), w.db)
		if err != nil || len(violations) > 0 {
			t.Errorf("violated: %q, %v", violations, err)
		}
	})
	return w
}

// node is another node on the same database, which remembers nothing.
func (w *world) node() *transparency.Service {
	w.t.Helper()
	s, err := transparency.New(transparency.Config{
		DB: w.db, Service: service, Log: slog.New(slog.NewTextHandler(w.logged, nil)),
		Now:        func() time.Time { return w.clock },
		Generation: events.Generation,
	})
	if err == nil {
		err = s.Load(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// keep lets a node store the leaves of the convo. want is 1 if it can, and 0 if the tree is
// damaged.
func (w *world) keep(s *transparency.Service, want int) {
	w.t.Helper()
	kept, err := s.Keep(w.t.Context(), []uuid.UUID{w.convo})
	if len(kept) != want || err != nil {
		w.t.Fatalf("kept the leaves of %v, %v", kept, err)
	}
}

// send appends n messages of a sender.
func (w *world) send(sender syntax.DID, n int) {
	w.t.Helper()
	var drafts []messages.Draft
	for range n {
		drafts = append(drafts, w.draft(sender, ""))
	}
	w.append(drafts...)
}

// sendLarge appends a message of a little more than that many bytes.
func (w *world) sendLarge(sender syntax.DID, bytes int) {
	w.t.Helper()
	w.append(w.draft(sender, strings.Repeat("x", bytes)))
}

func (w *world) draft(sender syntax.DID, text string) messages.Draft {
	w.n++
	key := fmt.Sprint(w.n)
	return messages.Draft{
		ConvoID: w.convo, GroupID: w.convo[:], Sender: sender, Key: key, Kind: mls.ContentTypeApplication, Epoch: 1,
		Body: mlstest.Message(w.convo[:], 1, key+text), Hash: idem.Content{{Name: "n", JSON: []byte(key)}}.Hash(),
	}
}

func (w *world) append(drafts ...messages.Draft) {
	w.t.Helper()
	results, err := w.log.Append(w.t.Context(), drafts)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			w.t.Fatal(r.Err)
		}
	}
}

// head opens a fresh head of a node.
func (w *world) head(s *transparency.Service) *verifier.Head {
	w.t.Helper()
	signed, err := s.Head(w.t.Context(), w.convo, new(int64))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.open(signed)
}

func (w *world) open(text string) *verifier.Head {
	w.t.Helper()
	var keys []note.Verifier
	for _, k := range w.Keys() {
		v, err := note.NewVerifier(k)
		if err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, v)
	}
	h, err := verifier.Open(text, note.VerifierList(keys...))
	if err != nil {
		w.t.Fatalf("%v: %s", err, text)
	}
	return h
}

// leaves computes the leaves of the log from what members are shown, as clients do.
func (w *world) leaves() (leaves []verifier.Hash) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(),
		`SELECT seq, kind, epoch, created_at, body, sender_did FROM messages WHERE convo_id = $1 ORDER BY seq`, w.convo)
	if err != nil {
		w.t.Fatal(err)
	}
	var e verifier.Entry
	var body []byte
	var sender string
	var entries []verifier.Entry
	var senders []string
	_, err = pgx.ForEachRow(rows, []any{&e.Seq, &e.Kind, &e.Epoch, &e.At, &body, &sender}, func() error {
		e.Body = verifier.BodyHash(body)
		if e.Kind == verifier.Commit {
			e.Epoch--
		}
		entries, senders = append(entries, e), append(senders, sender)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	found, err := w.Senders(w.t.Context(), w.convo, alice.String(), senders)
	if err != nil {
		w.t.Fatal(err)
	}
	tags := map[string]verifier.Hash{}
	for _, s := range found {
		if s.Salt != nil && verifier.TagOf(s.Salt, s.DID) != s.Tag {
			w.t.Errorf("the tag of %s is not that of its salt", s.DID)
		}
		tags[s.DID] = s.Tag
	}
	for i, e := range entries {
		e.Tag = tags[senders[i]]
		leaves = append(leaves, e.Leaf())
	}
	return leaves
}

func rootOf(leaves []verifier.Hash) verifier.Hash {
	var e verifier.Edge
	for _, l := range leaves {
		e.Append(l)
	}
	return e.Root()
}

// checkProofs checks that a node proves every entry, and every beginning, of a log with the leaves.
func (w *world) checkProofs(s *transparency.Service, leaves []verifier.Hash, step int) {
	w.t.Helper()
	for size := len(leaves); size > 0; size -= step {
		root := rootOf(leaves[:size])
		for n := size; n > 0; n -= step {
			leaf, proof, err := s.Inclusion(w.t.Context(), w.convo, int64(n), int64(size), new(int64))
			if err == nil {
				err = tlog.CheckRecord(proof, int64(size), root, int64(n-1), leaf)
			}
			if err != nil || leaf != leaves[n-1] {
				w.t.Fatalf("entry %d in %d: %v", n, size, err)
			}
			proof, err = s.Consistency(w.t.Context(), w.convo, int64(n), int64(size), new(int64))
			if err == nil {
				err = tlog.CheckTree(proof, int64(size), root, int64(n), rootOf(leaves[:n]))
			}
			if err != nil {
				w.t.Fatalf("from %d to %d: %v", n, size, err)
			}
		}
	}
}
