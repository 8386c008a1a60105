package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/mr-tron/base58"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/features/transparency"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// logClient checks a convo's log for a member, through the API.
type logClient struct {
	*verifier.Verifier
	u *user
	c *convo
}

func (u *user) verifies(c *convo) *logClient {
	l := &logClient{u: u, c: c}
	l.Verifier = verifier.New(service, c.id, l, nil)
	return l
}

func (l *logClient) Head(_ context.Context, convo string, senders []string) (a verifier.Answer, err error) {
	params := []string{"convoId", convo}
	for _, did := range senders {
		params = append(params, "senders", did)
	}
	out := read[mlsapi.GetLogHeadOutput](l.u.w.t, l.u.get(mlsapi.NSIDGetLogHead, params...).ok())
	a.Head, a.Keys = out.Head, out.Keys
	for _, s := range out.Senders {
		a.Senders = append(a.Senders, verifier.Sender{DID: s.DID.String(), Salt: s.Salt, Tag: verifier.Hash(s.Tag)})
	}
	return a, nil
}

func (l *logClient) proof(params ...string) (mlsapi.GetLogProofOutput, []verifier.Hash) {
	out := read[mlsapi.GetLogProofOutput](l.u.w.t,
		l.u.get(mlsapi.NSIDGetLogProof, append(params, "convoId", l.c.id)...).ok())
	var hashes []verifier.Hash
	for _, h := range out.Hashes {
		hashes = append(hashes, verifier.Hash(h))
	}
	return out, hashes
}

func (l *logClient) Inclusion(_ context.Context, _ string, seq, size int64) (verifier.Hash, []verifier.Hash, error) {
	out, hashes := l.proof("seq", strconv.FormatInt(seq, 10), "size", strconv.FormatInt(size, 10))
	return verifier.Hash(out.Leaf), hashes, nil
}

func (l *logClient) Consistency(_ context.Context, _ string, from, size int64) ([]verifier.Hash, error) {
	_, hashes := l.proof("from", strconv.FormatInt(from, 10), "size", strconv.FormatInt(size, 10))
	return hashes, nil
}

// readAll shows the verifier what getMessages shows, and asks for a head.
func (l *logClient) readAll() {
	l.u.w.t.Helper()
	since := l.Size()
	for _, m := range l.u.page(l.c, "messageType", "all", "sinceSeq", strconv.FormatInt(since, 10)).Messages {
		kind := map[string]int{
			mlsapi.MessageViewMessageTypeApplication: verifier.Application,
			mlsapi.MessageViewMessageTypeProposal:    verifier.Proposal,
			mlsapi.MessageViewMessageTypeCommit:      verifier.Commit,
			mlsapi.MessageViewMessageTypeReset:       verifier.Reset,
		}[*m.MessageType]
		err := l.Entry(l.u.w.t.Context(), verifier.Seen{
			Seq: m.Seq, Kind: kind, Epoch: m.Epoch, At: m.CreatedAt.Time, Body: verifier.BodyHash(m.Ciphertext),
			Sender: m.Sender.String(),
		})
		if err != nil {
			l.u.w.t.Fatalf("entry %d: %v", m.Seq, err)
		}
	}
	if err := l.Refresh(l.u.w.t.Context()); err != nil {
		l.u.w.t.Fatal(err)
	}
}

// Members compute the heads that the server signs from what it shows them: of messages, commits, and
// from where they have joined. A member's head is compared with another's.
func TestMembersVerifyTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob)
	a, b := alice.verifies(c), bob.verifies(c)
	a.readAll()
	alice.send(c, "one")
	bob.send(c, "two")
	a.readAll()
	alice.add(c, carol)
	later := carol.verifies(c)
	carol.send(c, "three")
	for _, l := range []*logClient{a, b, later} {
		l.readAll()
		if l.Size() != 4 {
			t.Errorf("%d entries were checked, want 4", l.Size())
		}
	}
	if err := later.Verifier.Head(t.Context(), a.Newest(), "alice"); err != nil {
		t.Errorf("alice's head: %v", err)
	}
	// Another node on the same database signs the same.
	other := carol.on(w.boot()).verifies(c)
	other.readAll()
	if err := other.Verifier.Head(t.Context(), b.Newest(), "bob"); err != nil {
		t.Errorf("bob's head at another node: %v", err)
	}
	// What was changed in the database is found.
	w.exec(`ALTER TABLE messages DISABLE TRIGGER USER`)
	w.exec(`UPDATE messages SET created_at = created_at - interval '1 hour' WHERE seq = 2`)
	defer w.exec(`UPDATE messages SET created_at = created_at + interval '1 hour' WHERE seq = 2`)
	fork := bob.on(w.boot()).verifies(c)
	fork.readAll()
	if err := fork.Verifier.Head(t.Context(), a.Newest(), "alice"); !errors.As(err, new(*verifier.Lie)) {
		t.Errorf("the log was changed, and alice's head fits: %v", err)
	}
}

func TestLogProofRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "one")
	for _, params := range [][]string{
		{"size", "1"}, {"size", "1", "seq", "1", "from", "1"}, {"size", "2", "seq", "1"}, {"size", "2", "from", "1"},
		{"size", "1", "seq", "2"}, {"seq", "1"},
		{"size", "0", "seq", "1"}, {"size", "9007199254740991", "from", "9007199254740991"},
	} {
		alice.get(mlsapi.NSIDGetLogProof, append(params, "convoId", c.id)...).fails(http.StatusBadRequest, "InvalidRequest")
	}
}

// The DID document has the keys that sign heads, in another form: those that were added, and neither
// one whose seed has leaked nor one that signs no more.
func TestDIDDocumentHasTheLogKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	published := func() (texts []string) {
		t.Helper()
		type document struct {
			VerificationMethod []struct{ ID, Type, Controller, PublicKeyMultibase string }
		}
		page := w.answer(w.server, httptest.NewRequest(http.MethodGet, "/.well-known/did.json", nil)).ok()
		for _, m := range read[document](t, page).VerificationMethod {
			if id, ok := strings.CutPrefix(m.ID, service+"#"); ok && (id == "atproto" || strings.HasPrefix(id, "mls_service_")) {
				continue // TestDIDDocumentHasTheServiceKeys
			}
			key, err := base58.Decode(strings.TrimPrefix(m.PublicKeyMultibase, "z"))
			if err != nil || len(key) != 34 || !strings.HasPrefix(m.ID, service+"#mlsd_log_") || m.Type != "Multikey" ||
				m.Controller != service {
				t.Fatalf("%+v, %v", m, err)
			}
			text, err := verifier.PublicKey(service, key[2:])
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, text)
		}
		return texts
	}
	wantPublished := func(when string, keys ...transparency.Key) {
		t.Helper()
		log := read[mlsapi.GetLogHeadOutput](t, alice.get(mlsapi.NSIDGetLogHead, "convoId", c.id).ok())
		var want []string
		for _, k := range keys {
			want = append(want, k.Text)
			if _, err := verifier.OpenProven(log.Head, []string{k.Text}); err != nil || !slices.Contains(log.Keys, k.Text) {
				t.Errorf("%s: key %d has not signed the head: %v", when, k.ID, err)
			}
		}
		if diff := cmp.Diff(want, published()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	change := func(do func(ctx context.Context, tx pgx.Tx) error) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error { return do(t.Context(), tx) })
		if err == nil {
			err = w.heads.ReadKeys(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first, err := w.heads.ListKeys(t.Context(), w.db)
	if err != nil {
		t.Fatal(err)
	}
	old := first[0]
	wantPublished("at first", old)
	var added, newest transparency.Key
	change(func(ctx context.Context, tx pgx.Tx) (err error) {
		added, err = w.heads.AddKey(ctx, tx)
		return err
	})
	wantPublished("with a new key", old, added)
	pgtest.Age(t, w.db, "log_keys", time.Minute)
	change(func(ctx context.Context, tx pgx.Tx) error {
		_, err := w.heads.WithholdKey(ctx, tx, old.ID)
		return err
	})
	wantPublished("with a leaked key", added)
	change(func(ctx context.Context, tx pgx.Tx) (err error) {
		newest, err = w.heads.AddKey(ctx, tx)
		return err
	})
	pgtest.Age(t, w.db, "log_keys", time.Minute)
	change(func(ctx context.Context, tx pgx.Tx) error {
		_, err := w.heads.RetireKey(ctx, tx, added.ID, true)
		return err
	})
	wantPublished("with a retired key", newest)
}

// A head and a proof cost two units, and one for each MiB that the server has to hash for them.
func TestHeadsAreCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-6, Burst: 1000} })
	alice := w.user()
	c := alice.create()
	in := alice.message(c, "")
	in.Ciphertext = mlstest.Message(c.group, c.epoch, strings.Repeat("x", 5<<19))
	alice.post(mlsapi.NSIDSendMessage, in).ok()
	alice.get(mlsapi.NSIDGetLogHead, "convoId", c.id).ok() // makes the tag of the sender
	elsewhere := alice.on(w.boot())
	left := func() int {
		t.Helper()
		return number(t, elsewhere.get(mlsapi.NSIDGetBlocks).header.Get("Ratelimit-Remaining"))
	}
	proof := []string{"convoId", c.id, "from", "1", "size", "1"}
	for _, want := range []int{2 + 2, 2} { // the node hashes each entry once
		before := left()
		elsewhere.get(mlsapi.NSIDGetLogProof, proof...).ok()
		if cost := before - 1 - left(); cost != want {
			t.Errorf("the proof has cost %d units, want %d", cost, want)
		}
	}
	elsewhere = alice.on(w.boot())
	before := left()
	elsewhere.get(mlsapi.NSIDGetLogHead, "convoId", c.id).ok()
	if cost := before - 1 - left(); cost != 2+2 {
		t.Errorf("the head has cost %d units", cost)
	}
}
