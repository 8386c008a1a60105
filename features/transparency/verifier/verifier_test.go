package verifier_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/features/transparency/verifier"
)

const (
	service = "did:web:chat.example"
	convo   = "0192f3a4-0000-7000-8000-000000000001"
	alice   = "did:plc:alice"
	bob     = "did:plc:bob"
)

// server is an honest server of one log. It computes its trees with tlog's own code.
type server struct {
	key        note.Signer
	public     string
	generation int64
	entries    []verifier.Seen
	hashes     tlog.HashReader
	stored     []tlog.Hash
	now        time.Time

	// What a cheating server does otherwise; nil: nothing.
	head func(honest func(n int) string) (string, error)
	salt func(did string) []byte

	senders map[string]verifier.Sender // instead of what stands for them else
	more    *server                    // its key signs too
	asked   func()                     // called after the next head was given
	proof   func([]verifier.Hash) []verifier.Hash
}

func newServer(t *testing.T) *server {
	t.Helper()
	return serverWith(t, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
}

func serverWith(t *testing.T, key ed25519.PrivateKey) *server {
	t.Helper()
	signer, err := verifier.Signer(service, key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := verifier.PublicKey(service, key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{key: signer, public: public, now: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)}
	s.hashes = tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		found := make([]tlog.Hash, len(indexes))
		for i, at := range indexes {
			found[i] = s.stored[at]
		}
		return found, nil
	})
	return s
}

func salt(did string) []byte { return []byte(did + strings.Repeat(".", 16))[:16] }

// add appends entries of a sender.
func (s *server) add(t *testing.T, sender string, n int) {
	t.Helper()
	for range n {
		seq := int64(len(s.entries)) + 1
		s.append(t, verifier.Seen{
			Seq: seq, Kind: verifier.Application, Epoch: 1, At: s.now.Add(time.Duration(seq) * time.Second),
			Body: verifier.BodyHash(fmt.Appendf(nil, "%s %d", sender, seq)), Sender: sender,
		})
	}
}

func (s *server) append(t *testing.T, m verifier.Seen) {
	t.Helper()
	tag := verifier.TagOf(salt(m.Sender), m.Sender)
	if other, ok := s.senders[m.Sender]; ok {
		tag = other.Tag
	}
	e := verifier.Entry{Seq: m.Seq, Kind: m.Kind, Epoch: m.Epoch, At: m.At, Body: m.Body, Tag: tag}
	more, err := tlog.StoredHashes(m.Seq-1, e.Record(), s.hashes)
	if err != nil {
		t.Fatal(err)
	}
	s.entries, s.stored = append(s.entries, m), append(s.stored, more...)
}

// copied is a server with the first n entries of another.
func (s *server) copied(t *testing.T, n int) *server {
	t.Helper()
	other := serverWith(t, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	other.generation, other.now = s.generation, s.now
	for _, m := range s.entries[:n] {
		other.append(t, m)
	}
	return other
}

// sign returns the signed head of the first n entries.
func (s *server) sign(n int) string {
	root, err := tlog.TreeHash(int64(n), s.hashes)
	if err != nil {
		panic(err)
	}
	keys := []note.Signer{s.key}
	if s.more != nil {
		keys = append(keys, s.more.key)
	}
	text, err := verifier.Sign(&verifier.Head{Service: service, ConvoID: convo, Size: int64(n), Root: root,
		Generation: s.generation, At: s.now}, keys...)
	if err != nil {
		panic(err)
	}
	return text
}

func (s *server) Head(_ context.Context, _ string, senders []string) (a verifier.Answer, err error) {
	if a.Head = ""; s.head != nil {
		a.Head, err = s.head(s.sign)
	} else {
		a.Head = s.sign(len(s.entries))
	}
	a.Keys = []string{s.public}
	if s.more != nil {
		a.Keys = append(a.Keys, s.more.public)
	}
	if s.asked != nil {
		defer func(asked func()) { asked() }(s.asked)
		s.asked = nil
	}
	for _, did := range senders {
		one := verifier.Sender{DID: did, Salt: salt(did)}
		if s.salt != nil {
			one.Salt = s.salt(did)
		}
		one.Tag = verifier.TagOf(one.Salt, did)
		if other, ok := s.senders[did]; ok {
			one = other
		}
		if one.DID == "" { // it was erased
			continue
		}
		a.Senders = append(a.Senders, one)
	}
	return a, err
}

func (s *server) Inclusion(_ context.Context, _ string, seq, size int64) (verifier.Hash, []verifier.Hash, error) {
	if seq > size || size > int64(len(s.entries)) {
		return verifier.Hash{}, nil, errors.New("out of range")
	}
	proof, err := tlog.ProveRecord(size, seq-1, s.hashes)
	return s.stored[tlog.StoredHashIndex(0, seq-1)], s.forge(proof), err
}

func (s *server) Consistency(_ context.Context, _ string, from, size int64) ([]verifier.Hash, error) {
	if from > size || size > int64(len(s.entries)) {
		return nil, errors.New("out of range")
	}
	proof, err := tlog.ProveTree(size, from, s.hashes)
	return s.forge(proof), err
}

func (s *server) forge(proof []verifier.Hash) []verifier.Hash {
	if s.proof == nil {
		return proof
	}
	return s.proof(slices.Clone(proof))
}

// device reads from a server, as the server shows it.
type device struct {
	*verifier.Verifier
	shown func() []verifier.Seen
	from  int64 // the first entry that it may read, less one
	clock time.Time
	steps []step // what it was shown and has asked, for the vectors
}

func newDevice(source verifier.Source, shown func() []verifier.Seen) *device {
	d := &device{shown: shown, clock: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)}
	d.Verifier = verifier.New(service, convo, recorded{source, d}, func() time.Time { return d.clock })
	return d
}

// read shows the device all entries behind those that it has checked. It reads again as often as the
// verifier asks for that.
func (d *device) read() error {
	for range 4 {
		err := d.readOnce()
		if !errors.Is(err, verifier.ErrReadAgain) {
			return err
		}
	}
	return errors.New("the verifier never comes to an end")
}

func (d *device) readOnce() error {
	for _, m := range d.shown() {
		if m.Seq <= max(d.Size(), d.from) {
			continue
		}
		if err := d.Entry(context.Background(), m); err != nil {
			return err
		}
		d.clock = d.clock.Add(time.Second)
	}
	return d.Refresh(context.Background())
}

// newReader returns a server with ten entries of bob, and a device that has read them.
func newReader(t *testing.T) (*server, *device) {
	t.Helper()
	s := newServer(t)
	s.add(t, bob, 10)
	d := newDevice(s, honest(s))
	if err := d.read(); err != nil {
		t.Fatalf("an honest server: %v", err)
	}
	return s, d
}

// beside returns a device of another member that reads from a fork, while d reads from its server.
func (d *device) beside(fork *server) (*device, error) {
	other := newDevice(fork, honest(fork))
	return other, errors.Join(other.read(), d.read())
}

func honest(s *server) func() []verifier.Seen { return func() []verifier.Seen { return s.entries } }

// changed shows the entries of a server after a change.
func changed(s *server, change func([]verifier.Seen) []verifier.Seen) func() []verifier.Seen {
	return func() []verifier.Seen { return change(slices.Clone(s.entries)) }
}

// asTombstone is a device to which a server shows bob's entries as those of a tombstone.
func asTombstone(t *testing.T, s *server) *device {
	t.Helper()
	const tombstone = "did:erased:0123"
	shown := s.copied(t, len(s.entries))
	shown.senders = map[string]verifier.Sender{
		tombstone: {DID: tombstone, Tag: verifier.TagOf(salt(bob), bob)},
	}
	return newDevice(shown, changed(shown, func(all []verifier.Seen) []verifier.Seen {
		for i := range all {
			all[i].Sender = tombstone
		}
		return all
	}))
}

// erasedBetween is a device that has read an account's entries before it was erased. It gets the
// message of one that has read them afterwards, and finds nothing.
func erasedBetween(t *testing.T) *device {
	t.Helper()
	s := newServer(t)
	s.add(t, bob, 5)
	d := newDevice(s, honest(s))
	other := asTombstone(t, s)
	if err := errors.Join(d.read(), other.read()); err != nil {
		t.Fatal(err)
	}
	s.senders = map[string]verifier.Sender{bob: {}}
	for range 2 {
		if err := d.Head(t.Context(), other.Message(), alice); err != nil {
			t.Errorf("an account was erased: %v", err)
		}
	}
	return d
}

// cheat is a way to cheat.
type cheat struct {
	name string
	run  func(t *testing.T, s *server, d *device) error
	want string
}

// caught returns the device that was cheated, and what it has found.
func (c cheat) caught(t *testing.T) (*device, error) {
	t.Helper()
	s, d := newReader(t)
	return d, c.run(t, s, d)
}

// cheats are ways to cheat. Each begins after a device has read ten honest entries, of which it
// has sent the seventh itself, and says what the device finds. docs/TRANSPARENCY.md lists them.
var cheats = []cheat{
	{"fork", func(t *testing.T, s *server, d *device) error {
		fork := s.copied(t, 10)
		s.add(t, alice, 2)
		fork.add(t, bob, 3)
		other, err := d.beside(fork)
		if err != nil {
			return err
		}
		return d.Head(context.Background(), other.Newest(), bob)
	}, "did:plc:bob has a head of 13 entries, and the server says that there are 12"},
	{"drop", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 3)
		d.shown = changed(s, func(all []verifier.Seen) []verifier.Seen { return slices.Delete(all, 10, 11) })
		return d.read()
	}, "entries are left out: after entry 10 the server shows entry 12"},
	{"reorder", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 3)
		d.shown = changed(s, func(all []verifier.Seen) []verifier.Seen {
			all[10], all[11] = all[11], all[10]
			all[10].Seq, all[11].Seq = 11, 12
			return all
		})
		return d.read()
	}, "the log that I was shown is not the one that is signed: entry 11 is the first that differs in its bytes, " +
		"sender, time or place"},
	{"replace bytes", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 3)
		d.shown = changed(s, func(all []verifier.Seen) []verifier.Seen {
			all[11].Body = verifier.BodyHash([]byte("other bytes"))
			return all
		})
		return d.read()
	}, "the log that I was shown is not the one that is signed: entry 12 is the first that differs in its bytes, " +
		"sender, time or place"},
	{"backdate", func(t *testing.T, s *server, d *device) error {
		s.add(t, alice, 1)
		if err := d.Sent(context.Background(), s.entries[10]); err != nil {
			return err
		}
		d.shown = changed(s, func(all []verifier.Seen) []verifier.Seen {
			all[10].At = all[10].At.Add(-time.Hour)
			return all
		})
		return d.read()
	}, "entry 11 is mine, was acknowledged at 2026-11-22T09:30:11.000Z and is shown with the time " +
		"2026-11-22T08:30:11.000Z"},
	{"other sender", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 2)
		d.shown = changed(s, func(all []verifier.Seen) []verifier.Seen {
			all[11].Sender = alice
			return all
		})
		return d.read()
	}, "the log that I was shown is not the one that is signed: entry 12 is the first that differs in its bytes, " +
		"sender, time or place"},
	{"stale head", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 2)
		s.head = func(sign func(int) string) (string, error) { return sign(10), nil }
		return d.read()
	}, "the head is stale: it has 10 entries, and the server has shown or acknowledged 12"},
	{"two heads for one size", func(t *testing.T, s *server, d *device) error {
		fork := s.copied(t, 10)
		s.add(t, alice, 1)
		fork.add(t, bob, 1)
		if err := d.Refresh(context.Background()); err != nil {
			return err
		}
		return d.Head(context.Background(), fork.sign(11), bob)
	}, "there are two heads of 11 entries: the server has one, and did:plc:bob another"},
	{"wrong proof", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 5)
		s.proof = func(proof []verifier.Hash) []verifier.Hash {
			proof[0][0] ^= 1
			return proof
		}
		d.shown = changed(s, func(all []verifier.Seen) []verifier.Seen { return all[:12] })
		return d.read()
	}, "the server has rewritten the log, or its proof is wrong: its head of 15 entries does not begin with the 10 of " +
		"an earlier one"},
	{"silence", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 400)
		s.head = func(func(int) string) (string, error) { return "", errors.New("404 MethodNotImplemented") }
		return d.read()
	}, "the server is silent: it shows entries, and has given no head for"},
	{"rewrite what was signed, and then serve that consistently", func(t *testing.T, s *server, d *device) error {
		rewritten := s.copied(t, 5)
		rewritten.add(t, alice, 8)
		s.entries, s.stored = rewritten.entries, rewritten.stored
		return d.read()
	}, "the server has rewritten the log, or its proof is wrong: its head of 13 entries does not begin with the 10 of " +
		"an earlier one"},
	{"a generation for each member", func(t *testing.T, s *server, d *device) error {
		fork := s.copied(t, 10)
		fork.generation = 3
		s.add(t, alice, 2)
		fork.add(t, bob, 3)
		other, err := d.beside(fork)
		if err != nil {
			return err
		}
		s.generation = 7
		s.add(t, alice, 1)
		if err := d.read(); err != nil || len(d.Backs()) != 1 {
			return fmt.Errorf("a generation with which nothing is lost is noted %d times: %w", len(d.Backs()), err)
		}
		return d.Head(context.Background(), other.Message(), bob)
	}, "the server went back, or has two logs: did:plc:bob has a head of 13 entries of an earlier generation, and the " +
		"log does not begin with them (generation 7)"},
	{"a key for each member", func(t *testing.T, s *server, d *device) error {
		fork := otherKey(t)
		for _, m := range s.entries {
			fork.append(t, m)
		}
		s.add(t, alice, 2)
		fork.add(t, bob, 2)
		other, err := d.beside(fork)
		if err != nil {
			return err
		}
		return d.Head(context.Background(), other.Message(), bob)
	}, "did:plc:bob has a head that is signed with another key of the service ("},
	// Finding S15: the leaves are the same, and no salt says whose they are.
	{"an account's entries as a tombstone's for some", func(t *testing.T, s *server, d *device) error {
		other := asTombstone(t, s)
		if err := other.read(); err != nil {
			return err
		}
		return d.Head(context.Background(), other.Message(), alice)
	}, "did:plc:alice was shown entries as by did:erased:0123 that I was shown as by did:plc:bob, or has made it up"},
	{"a tag without a salt for an account that was not erased", func(t *testing.T, s *server, d *device) error {
		s.salt = func(string) []byte { return nil }
		s.add(t, alice, 1)
		return d.read()
	}, "the server does not say why its tag stands for did:plc:alice in the log: the salt is absent, and the account " +
		"was not erased"},
	{"a salt of another size", func(t *testing.T, s *server, d *device) error {
		// That of did:plc:alic and this salt is the same one.
		s.salt = func(did string) []byte { return append(salt(did), "did:plc:"...) }
		s.add(t, alice, 1)
		return d.read()
	}, "what the server says stands for did:plc:alice in the log does not"},
	{"acknowledge late what is shown otherwise", func(t *testing.T, s *server, d *device) error {
		s.add(t, alice, 1)
		mine := s.entries[10]
		mine.Body = verifier.BodyHash([]byte("what I have sent"))
		if err := d.read(); err != nil {
			return err
		}
		if err := d.Sent(context.Background(), mine); !errors.Is(err, verifier.ErrReadAgain) {
			return err
		}
		return d.read()
	}, "entry 11 is mine, and is shown with other bytes"},
	{"show another old entry", func(t *testing.T, s *server, d *device) error {
		s.add(t, bob, 600)
		if err := d.read(); err != nil {
			return err
		}
		m := s.entries[2]
		m.Body = verifier.BodyHash([]byte("other bytes"))
		if err := d.Entry(context.Background(), m); !errors.Is(err, verifier.ErrReadAgain) {
			return err
		}
		return d.Entry(context.Background(), m)
	}, "entry 3 is not what the server has shown before"},
}

// otherKey is a server in the name of the same service that signs with another key.
func otherKey(t *testing.T) *server {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = 1
	return serverWith(t, ed25519.NewKeyFromSeed(seed))
}

// Finding S15: a member read an account's entries before the erasure, and another one read the
// tombstone afterwards. When they compare, nobody is accused.
func TestErasedBetweenTwoReaders(t *testing.T) {
	t.Parallel()
	if d := erasedBetween(t); len(d.OtherSenders()) > 0 {
		t.Errorf("found %+v", d.OtherSenders())
	}
}

// Each way to cheat is found, with a sentence that says what it was, and evidence where there is any.
// Before, the same device finds nothing.
func TestCheatingServersAreCaught(t *testing.T) {
	t.Parallel()
	for _, c := range cheats {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, err := c.caught(t)
			var lie *verifier.Lie
			isLie := errors.As(err, &lie)
			if !isLie && !errors.As(err, new(*verifier.WentBack)) && !errors.As(err, new(*verifier.OtherKey)) &&
				!errors.As(err, new(*verifier.OtherSender)) ||
				!strings.HasPrefix(err.Error(), c.want) {
				t.Fatalf("found %v, want: %s", err, c.want)
			}
			t.Logf("%s | %s", c.name, err)
			if !isLie { // a member could have made it up, or an operator restored a backup
				return
			}
			if again := d.Refresh(context.Background()); !errors.As(again, &lie) {
				t.Errorf("after a lie: %v", again)
			}
		})
	}
}

// An honest server is never accused, however the device reads: in parts, from the middle, entries
// twice, with heads that come early and late, and across restarts of the app.
func TestHonestServerIsNotAccused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for first := range 12 {
		s := newServer(t)
		s.add(t, alice, first)
		d, other := newDevice(s, honest(s)), newDevice(s, honest(s))
		d.from = int64(first) // it has joined now
		for round := range 40 {
			s.add(t, []string{alice, bob}[round%2], round%7+1)
			end := len(s.entries)
			check := func(doing string, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("first %d, round %d, %s: %v", first, round, doing, err)
				}
			}
			if round%3 == 0 {
				check("a head comes early", d.Refresh(ctx))
			}
			if round%4 == 1 {
				check("the other reads", other.read())
				check("a member's head", d.Head(ctx, other.Newest(), bob))
			}
			if round%5 != 4 {
				check("read", d.read())
			}
			check("a member's head comes late", d.Head(ctx, s.sign(max(end-3, 1)), bob))
			if d.Size() == int64(end) && round%2 == 0 {
				check("an entry comes again", d.Entry(ctx, s.entries[end-1]))
			}
			data, err := d.Save()
			check("save", err)
			restored, err := verifier.Restore(data, recorded{s, d}, func() time.Time { return d.clock })
			check("restore", err)
			d.Verifier = restored
		}
	}
}

// A device that has read entries which the server then lost says that the server went back, keeps the
// heads, goes on from what both have, and accuses nobody: also if it has read the lost entries before
// it heard of the new generation.
func TestRestoreIsNoLie(t *testing.T) {
	t.Parallel()
	for lost := range 12 {
		afterRestore(t, lost)
	}
}

// afterRestore returns a device whose server has lost entries.
func afterRestore(t *testing.T, lost int) *device {
	t.Helper()
	s := newServer(t)
	s.add(t, bob, 20)
	shown := honest(s)
	now := s
	d := newDevice(switching{&now}, func() []verifier.Seen { return shown() })
	if err := d.read(); err != nil {
		t.Fatal(err)
	}
	before := d.Newest()
	restored := s.copied(t, 20-lost)
	restored.generation = 7
	restored.add(t, alice, 5)
	now = restored
	err := d.readOnce() // entries that it had read
	shown = honest(restored)
	var back *verifier.WentBack
	if lost == 0 {
		if err != nil {
			t.Fatalf("nothing was lost: %v", err)
		}
	} else if !errors.As(err, &back) || back.From != 20 || back.Common != int64(20-lost) || back.To != int64(25-lost) ||
		back.Evidence[0] != before {
		t.Fatalf("%d lost: %v", lost, err)
	}
	if err := d.read(); err != nil || d.Size() != int64(25-lost) {
		t.Fatalf("%d lost, then: %v, at %d", lost, err, d.Size())
	}
	// The same under the old generation is a lie.
	again := restored.copied(t, 10)
	now, shown = again, honest(again)
	if err := d.read(); !errors.As(err, new(*verifier.Lie)) {
		t.Fatalf("%d lost, and then without another generation: %v", lost, err)
	}
	return d
}

// A device has entries that it has read before a failover lost them, and hears of the new generation
// before it shows them to the verifier. It reads them again, and nobody is accused.
func TestEntriesReadBeforeAFailover(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.add(t, bob, 20)
	old := honest(s)
	shown, now := func() []verifier.Seen { return s.entries[:15] }, s
	d := newDevice(switching{&now}, func() []verifier.Seen { return shown() })
	err := d.readOnce()
	now = s.copied(t, 15)
	now.generation = 7
	now.add(t, alice, 10)
	var back *verifier.WentBack
	if again := d.Refresh(context.Background()); err != nil || !errors.As(again, &back) || back.From != 20 ||
		back.Common != 15 {
		t.Fatalf("entries of a signed head were lost: %v, %v", err, again)
	}
	shown = old
	if err := d.readOnce(); !errors.Is(err, verifier.ErrReadAgain) {
		t.Fatalf("entries of before: %v", err)
	}
	shown = honest(now)
	if err := d.read(); err != nil || d.Size() != 25 {
		t.Fatalf("read again: %v, at %d", err, d.Size())
	}
}

// switching is the server that is there now.
type switching struct{ now **server }

func (s switching) Head(ctx context.Context, convo string, senders []string) (verifier.Answer, error) {
	return (*s.now).Head(ctx, convo, senders)
}

func (s switching) Inclusion(ctx context.Context, convo string, seq, size int64) (verifier.Hash, []verifier.Hash,
	error) {
	return (*s.now).Inclusion(ctx, convo, seq, size)
}

func (s switching) Consistency(ctx context.Context, convo string, from, size int64) ([]verifier.Hash, error) {
	return (*s.now).Consistency(ctx, convo, from, size)
}

// A member cannot make the verifier accuse the server: what the service has not signed says nothing.
// That another key is used in the service's name is told, and can be the member's doing.
func TestMadeUpHeadOfAMember(t *testing.T) {
	t.Parallel()
	madeUpHead(t)
}

func madeUpHead(t *testing.T) *device {
	t.Helper()
	ctx := context.Background()
	s, d := newReader(t)
	forger := otherKey(t)
	forger.add(t, alice, 10)
	var other *verifier.OtherKey
	if err := d.Head(ctx, "key "+forger.public+"\n"+forger.sign(10), bob); !errors.As(err, &other) || !other.Signed ||
		other.Member != bob {
		t.Errorf("a made-up head, with its key: %v", err)
	}
	if err := d.Head(ctx, forger.sign(10), bob); !errors.As(err, &other) || other.Signed || len(d.OtherKeys()) != 1 {
		t.Errorf("a made-up head: %v, %v", err, d.OtherKeys())
	}
	if err := d.Head(ctx, strings.Replace(s.sign(10), "\n10\n", "\n11\n", 1), bob); !errors.Is(err,
		verifier.ErrNotSigned) {
		t.Errorf("a changed head: %v", err)
	}
	if err := d.Refresh(ctx); err != nil {
		t.Errorf("then: %v", err)
	}
	s.head = func(func(int) string) (string, error) { return forger.sign(10), nil }
	if err := d.Refresh(ctx); !errors.As(err, new(*verifier.Lie)) {
		t.Errorf("the same from the server: %v", err)
	}
	return d
}

// The service has begun to sign with a second key, and the old one signs too. A device that has not
// heard of that asks, and takes the head of a member who has.
func TestSecondKeyIsLearned(t *testing.T) {
	t.Parallel()
	secondKey(t)
}

func secondKey(t *testing.T) *device {
	t.Helper()
	s, d := newReader(t)
	next := otherKey(t)
	for _, m := range s.entries {
		next.append(t, m)
	}
	s.more = next
	if err := d.Head(context.Background(), next.sign(10), bob); err != nil {
		t.Errorf("a head with the second key: %v", err)
	}
	return d
}

// An account that was erased has returned, and something else stands for it in the log now. A device
// that remembers what stood for it reads again, and accuses nobody.
func TestErasedAccountReturns(t *testing.T) {
	t.Parallel()
	erasedReturns(t)
}

func erasedReturns(t *testing.T) *device {
	t.Helper()
	s, d := newReader(t)
	const tombstone = "did:erased:1"
	s.senders = map[string]verifier.Sender{
		tombstone: {DID: tombstone, Tag: verifier.TagOf(salt(bob), bob)},
		bob:       {DID: bob, Salt: salt(alice), Tag: verifier.TagOf(salt(alice), bob)},
	}
	for i := range s.entries {
		s.entries[i].Sender = tombstone
	}
	s.add(t, bob, 3)
	if err := d.read(); err != nil || d.Size() != 13 {
		t.Errorf("%v, at %d", err, d.Size())
	}
	return d
}

// A failover comes between the head and the proof that it continues what was shown: nobody is accused.
func TestFailoverBetweenTwoQuestions(t *testing.T) {
	t.Parallel()
	for _, ask := range []func(*device, *server) error{
		func(d *device, _ *server) error { return d.Refresh(context.Background()) },
		func(d *device, s *server) error { return d.Head(context.Background(), s.sign(4), bob) }, // older than what was shown
		func(d *device, s *server) error { return d.Entry(context.Background(), s.entries[4]) },
	} {
		s := newServer(t)
		s.add(t, bob, 8)
		after := s.copied(t, 2)
		after.generation = 7
		after.add(t, alice, 12)
		now := s
		d := newDevice(switching{&now}, honest(s))
		d.from = 4
		if err := d.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		s.add(t, bob, 2)
		s.asked = func() { now = after }
		err := ask(d, s)
		for range 3 {
			if err != nil && !errors.As(err, new(*verifier.WentBack)) && !errors.Is(err, verifier.ErrReadAgain) {
				t.Fatal(err)
			}
			d.shown = honest(now)
			err = d.readOnce()
		}
		if err != nil || d.Size() != int64(len(now.entries)) {
			t.Errorf("then %v, at %d", err, d.Size())
		}
	}
}

// Edges and heads agree with those of tlog.
func TestEdgeAgreesWithTlog(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	edge := verifier.Edge{}
	for n := range 600 {
		root, err := tlog.TreeHash(int64(n), s.hashes)
		if err != nil {
			t.Fatal(err)
		}
		if edge.Root() != root || !edge.Valid() {
			t.Fatalf("the root of %d entries is %s, want %s", n, edge.Root(), root)
		}
		if n > 0 {
			leaf, proof, err := s.Inclusion(context.Background(), convo, int64(n), int64(n))
			if err != nil {
				t.Fatal(err)
			}
			if proven, err := verifier.EdgeOf(int64(n), leaf, proof); err != nil || proven.Root() != root {
				t.Fatalf("from the proof of entry %d: %v", n, err)
			}
		}
		s.add(t, alice, 1)
		edge.Append(s.stored[tlog.StoredHashIndex(0, int64(n))])
	}
}

func TestHeadHasOneForm(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.add(t, alice, 3)
	good := s.sign(3)
	keys := note.VerifierList(mustVerifier(t, s.public))
	h, err := verifier.Open(good, keys)
	if err != nil || h.Size != 3 || h.Service != service || h.ConvoID != convo || !h.At.Equal(s.now) {
		t.Fatalf("%+v, %v", h, err)
	}
	for _, change := range [][2]string{{"\n3\n", "\n03\n"}, {"\n3\n", "\n+3\n"}, {"\n3\n", "\n-3\n"},
		{"generation 0", "generation  0"}, {"time ", "at "}, {"\n\n", "\nmore\n\n"}} {
		text, _, _ := strings.Cut(strings.Replace(good, change[0], change[1], 1), "\n\n")
		signed, err := note.Sign(&note.Note{Text: text + "\n"}, s.key)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := verifier.Open(string(signed), keys); err == nil {
			t.Errorf("%q for %q is read as %+v", change[1], change[0], h)
		}
	}
}

func mustVerifier(t *testing.T, key string) note.Verifier {
	t.Helper()
	v, err := note.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
