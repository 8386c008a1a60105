package transparency_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/mr-tron/base58"

	"mlsd/features/transparency"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/pgtest"
)

// client is a device of alice's that checks the log of the world's convo at a node.
type client struct {
	*verifier.Verifier
	w    *world
	node *transparency.Service
}

func (w *world) client(node *transparency.Service) *client {
	c := &client{w: w, node: node}
	c.Verifier = verifier.New(service, w.convo.String(), c, func() time.Time { return w.clock })
	return c
}

func (c *client) Head(ctx context.Context, _ string, senders []string) (a verifier.Answer, err error) {
	signed, err := c.node.Head(ctx, c.w.convo, new(int64))
	if err != nil {
		return a, err
	}
	found, err := c.node.Senders(ctx, c.w.convo, alice.String(), senders)
	for _, s := range found {
		a.Senders = append(a.Senders, verifier.Sender{DID: s.DID, Salt: s.Salt, Tag: s.Tag})
	}
	a.Head, a.Keys = signed, c.node.Keys()
	return a, err
}

func (c *client) Inclusion(ctx context.Context, _ string, seq, size int64) (verifier.Hash, []verifier.Hash, error) {
	return c.node.Inclusion(ctx, c.w.convo, seq, size, new(int64))
}

func (c *client) Consistency(ctx context.Context, _ string, from, size int64) ([]verifier.Hash, error) {
	return c.node.Consistency(ctx, c.w.convo, from, size, new(int64))
}

// read shows the verifier the entries that it has not seen, and asks for a head.
func (c *client) read() error {
	rows, err := c.w.db.Query(c.w.t.Context(), `
		SELECT seq, kind, epoch, created_at, sha256(body), sender_did FROM messages WHERE convo_id = $1 AND seq > $2 ORDER BY
			seq`, c.w.convo, c.Size())
	if err != nil {
		return err
	}
	var m verifier.Seen
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&m.Seq, &m.Kind, &m.Epoch, &m.At, &body, &m.Sender}, func() error {
		m.Body = verifier.Hash(body)
		return c.Entry(c.w.t.Context(), m)
	})
	return errors.Join(err, c.Refresh(c.w.t.Context()))
}

// Several devices, at several nodes.
type clients []*client

// wantAll reads with all clients and compares their heads. None has a finding.
func (all clients) wantAll(when string) {
	for i, c := range all {
		c.w.t.Helper()
		if err := c.read(); err != nil {
			c.w.t.Fatalf("%s, client %d: %v", when, i, err)
		}
	}
	for i, c := range all {
		for j, other := range all {
			if err := c.Verifier.Head(c.w.t.Context(), other.Message(), bob.String()); err != nil {
				c.w.t.Fatalf("%s, client %d gets the head of %d: %v", when, i, j, err)
			}
		}
		if found := c.OtherKeys(); len(found) > 0 {
			c.w.t.Fatalf("%s, client %d: %v", when, i, found)
		}
	}
}

// keyChange runs a change of the keys in a transaction.
func keyChange[T any](w *world, change func(context.Context, pgx.Tx) (T, error)) (out T, err error) {
	w.t.Helper()
	err = pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) (err error) {
		out, err = change(w.t.Context(), tx)
		return err
	})
	return out, err
}

func (w *world) addKey() transparency.Key {
	w.t.Helper()
	k, err := keyChange(w, w.AddKey)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) retire(id int32, early bool) (transparency.Retired, error) {
	w.t.Helper()
	return keyChange(w, func(ctx context.Context, tx pgx.Tx) (transparency.Retired, error) {
		return w.RetireKey(ctx, tx, id, early)
	})
}

func (w *world) withhold(id int32) (bool, error) {
	w.t.Helper()
	return keyChange(w, func(ctx context.Context, tx pgx.Tx) (bool, error) { return w.WithholdKey(ctx, tx, id) })
}

// pass makes the keys older.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	pgtest.Age(w.t, w.db, "log_keys", d)
}

func (w *world) readKeys(nodes ...*transparency.Service) {
	w.t.Helper()
	for _, s := range nodes {
		if err := s.ReadKeys(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
}

// wantSignedBy fails the test unless exactly these keys have signed a head.
func (w *world) wantSignedBy(when, head string, keys ...transparency.Key) {
	w.t.Helper()
	if got := strings.Count(head, "— "+service+" "); got != len(keys) {
		w.t.Fatalf("%s: %d signatures, want %d: %q", when, got, len(keys), head)
	}
	for _, k := range keys {
		if _, err := verifier.OpenProven(head, []string{k.Text}); err != nil {
			w.t.Errorf("%s: not signed with key %d: %v", when, k.ID, err)
		}
	}
}

func (w *world) keys() []transparency.Key {
	w.t.Helper()
	keys, err := w.ListKeys(w.t.Context(), w.db)
	if err != nil {
		w.t.Fatal(err)
	}
	return keys
}

// Clients at two nodes follow a new key and the end of the old one without a finding: those that run,
// one that begins in between, one that was away for less than the overlap, and after a restart.
func TestClientsFollowARotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.node()
	w.send(alice, 3)
	away := w.client(other)
	all := clients{w.client(w.Service), w.client(other)}
	clients{all[0], all[1], away}.wantAll("with one key")
	old := w.keys()[0]

	added := w.addKey()
	w.readKeys(w.Service)
	w.send(bob, 2)
	all.wantAll("when one node knows the new key")
	w.readKeys(other)
	w.send(bob, 2)
	all = append(all, w.client(w.Service))
	all.wantAll("when both nodes know it")
	for _, s := range []*transparency.Service{w.Service, other} {
		head, err := s.Head(t.Context(), w.convo, new(int64))
		if err != nil {
			t.Fatal(err)
		}
		w.wantSignedBy("with two keys", head, old, added)
	}
	w.pass(transparency.Overlap - time.Hour)
	w.send(alice, 2)
	all = append(all, away)
	all.wantAll("when one was away for almost 90 days")

	w.pass(2 * time.Hour)
	if r, err := w.retire(old.ID, false); err != nil || !r.Changed || r.Early {
		t.Fatalf("retired: %+v, %v", r, err)
	}
	w.readKeys(other)
	w.send(carol, 2)
	all.wantAll("when one node knows that the old key is retired")
	w.readKeys(w.Service)
	w.send(carol, 2)
	restarted := w.node()
	all = append(all, w.client(restarted))
	all.wantAll("when both know it")
	for _, s := range []*transparency.Service{w.Service, other, restarted} {
		head, err := s.Head(t.Context(), w.convo, new(int64))
		if err != nil {
			t.Fatal(err)
		}
		w.wantSignedBy("with the new key", head, added)
		if diff := cmp.Diff([]string{old.Text, added.Text}, s.Keys()); diff != "" {
			t.Errorf("keys that check heads (-want +got):\n%s", diff)
		}
	}
}

// A device that was away over a whole rotation says so. Its state of before then is of no use.
func TestAwayOverTheWholeRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, 3)
	away := w.client(w.Service)
	clients{away}.wantAll("with one key")
	old := w.keys()[0]
	w.addKey()
	w.pass(transparency.Overlap)
	if _, err := w.retire(old.ID, false); err != nil {
		t.Fatal(err)
	}
	w.readKeys(w.Service)
	var lie *verifier.Lie
	if err := away.read(); !errors.As(err, &lie) ||
		!strings.HasPrefix(lie.Sentence, "the server's head is not signed with the key that it had: ") {
		t.Errorf("%v", err)
	}
	clients{w.client(w.Service)}.wantAll("when the app has begun anew")
}

// A key is retired only if another one signs that devices know. Retiring again changes nothing.
func TestRetireIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.keys()[0]
	refused := func(err error, why string) {
		t.Helper()
		var e *transparency.KeyError
		if !errors.As(err, &e) || !strings.Contains(e.Why, why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	for _, early := range []bool{false, true} {
		_, err := w.retire(old.ID, early)
		refused(err, "add one first")
		if _, err := w.retire(99, early); !errors.Is(err, transparency.ErrNoKey) {
			t.Errorf("no key: %v", err)
		}
	}
	added := w.addKey()
	_, err := w.retire(old.ID, true)
	refused(err, "perhaps not every node signs with the other key yet")
	w.pass(time.Minute)
	_, err = w.retire(old.ID, false)
	refused(err, "a device that was away for longer knows none of them")
	w.pass(transparency.Overlap - 2*time.Minute)
	_, err = w.retire(old.ID, false)
	refused(err, "--now")
	if keys := w.keys(); len(keys) != 2 || !keys[0].Signs || !keys[1].Signs {
		t.Fatalf("after refusals: %+v", keys)
	}
	r, err := w.retire(old.ID, true)
	if err != nil || !r.Changed || !r.Early || !r.Since.Equal(w.keys()[1].CreatedAt) {
		t.Errorf("now: %+v, %v", r, err)
	}
	if r, err := w.retire(old.ID, false); err != nil || r.Changed {
		t.Errorf("again: %+v, %v", r, err)
	}
	if keys := w.keys(); keys[0].Signs || keys[0].Text != old.Text || !keys[1].Signs {
		t.Errorf("retired: %+v", keys)
	}
	_, err = w.retire(added.ID, true)
	refused(err, "add one first")
	// A new key that is not wanted goes at once: the old one stays.
	w.pass(transparency.Overlap)
	if r, err := w.retire(w.addKey().ID, false); err != nil || !r.Changed || r.Early {
		t.Errorf("the newest: %+v, %v", r, err)
	}
	for range 2 {
		w.addKey()
	}
	_, err = keyChange(w, w.AddKey)
	refused(err, "3 keys sign already")
}

// A key that has leaked is given to no new device. It goes on signing, so those that know only this one
// follow.
func TestWithheldKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, 3)
	before := w.client(w.Service)
	clients{before}.wantAll("before")
	old := w.keys()[0]
	if _, err := w.withhold(old.ID); !errors.As(err, new(*transparency.KeyError)) {
		t.Errorf("the only key: %v", err)
	}
	added := w.addKey()
	if _, err := w.withhold(old.ID); !errors.As(err, new(*transparency.KeyError)) {
		t.Errorf("before all nodes sign with the other one: %v", err)
	}
	w.pass(time.Minute)
	for _, want := range []bool{true, false} {
		if changed, err := w.withhold(old.ID); err != nil || changed != want {
			t.Fatalf("withheld: %v, %v", changed, err)
		}
	}
	if _, err := w.retire(added.ID, true); !errors.As(err, new(*transparency.KeyError)) {
		t.Errorf("the only key that new devices get: %v", err)
	}
	w.readKeys(w.Service)
	after := w.client(w.Service)
	clients{before, after}.wantAll("when it is withheld")
	if got := w.Keys(); !slices.Equal(got, []string{added.Text}) {
		t.Errorf("keys: %v", got)
	}
	if got := w.Published(); len(got) != 1 || got[0].Text != added.Text {
		t.Errorf("published: %+v", got)
	}
	// Who has the seed makes up a head. The new device does not take it for the service's.
	var seed []byte
	if err := w.db.QueryRow(t.Context(), `SELECT seed FROM log_keys WHERE id = $1`, old.ID).Scan(&seed); err != nil {
		t.Fatal(err)
	}
	signer, err := verifier.Signer(service, ed25519.NewKeyFromSeed(seed))
	if err != nil {
		t.Fatal(err)
	}
	forged, err := verifier.Sign(&verifier.Head{Service: service, ConvoID: w.convo.String(), Size: 3, At: w.clock}, signer)
	if err != nil {
		t.Fatal(err)
	}
	if err := after.Verifier.Head(t.Context(), forged, bob.String()); !errors.As(err, new(*verifier.OtherKey)) {
		t.Errorf("a head of the leaked key: %v", err)
	}
	if err := before.Verifier.Head(t.Context(), forged, bob.String()); !errors.As(err, new(*verifier.Lie)) {
		t.Errorf("a head of the leaked key, for a device that knows it: %v", err)
	}
}

// The key of the DID document is the one that checks heads.
func TestMultikey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.Published()[0]
	data, err := base58.Decode(strings.TrimPrefix(k.Multikey, "z"))
	if err != nil || len(data) != 34 || data[0] != 0xed || data[1] != 1 {
		t.Fatalf("%s: %x, %v", k.Multikey, data, err)
	}
	text, err := verifier.PublicKey(service, data[2:])
	if err != nil || text != k.Text {
		t.Errorf("%s is %s, %v; want %s", k.Multikey, text, err, k.Text)
	}
}

// A node whose database has lost the keys makes one.
func TestKeysAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.keys()[0]
	w.exec(`DELETE FROM log_keys`)
	w.readKeys(w.Service)
	if got := w.keys(); len(got) != 1 || got[0].Text == old.Text || !got[0].Signs {
		t.Errorf("%+v", got)
	}
	w.head(w.Service)
}
