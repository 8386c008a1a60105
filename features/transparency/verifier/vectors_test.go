package verifier_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/moduletest"
)

// vectors is what verifiers in other languages are tested with. Hashes and salts are in hexadecimal,
// times in milliseconds. The runs say what each verifier asks, in which order, and what it finds.
type vectors struct {
	Leaves      []leafVector
	Trees       []treeVector // of the leaves whose records are "leaf 1", "leaf 2", …
	Consistency []proofVector
	Inclusion   []proofVector
	Heads       []headVector
	Runs        []run
}

type leafVector struct {
	Seq    int64  `json:"seq"`
	Kind   int    `json:"kind"`
	Epoch  int64  `json:"epoch"`
	At     int64  `json:"at"`
	Body   string `json:"body"`
	Sender string `json:"sender"`
	Salt   string `json:"salt"`
	Tag    string `json:"tag"`
	Hash   string `json:"hash"`
}

type treeVector struct {
	Size int64  `json:"size"`
	Root string `json:"root"`
}

// proofVector is a proof that an entry is in the tree of a size, or that this tree begins with another.
type proofVector struct {
	Seq    int64    `json:"seq,omitempty"`
	From   int64    `json:"from,omitempty"`
	Size   int64    `json:"size"`
	Hashes []string `json:"hashes"`
}

// headVector is a signed text, and what it says or why it is refused.
type headVector struct {
	Text       string   `json:"text"`
	Keys       []string `json:"keys"`
	Error      string   `json:"error,omitempty"`
	Size       int64    `json:"size,omitempty"`
	Root       string   `json:"root,omitempty"`
	Generation int64    `json:"generation,omitempty"`
	At         int64    `json:"at,omitempty"`
}

// run is what one device was shown, in steps.
type run struct {
	Name    string `json:"name"`
	Service string `json:"service"`
	ConvoID string `json:"convoId"`
	Steps   []step `json:"steps"`
	Size    int64  `json:"size"`    // at the end: the entries that were checked
	Message string `json:"message"` // and what the device sends to others
	Found   int    `json:"found"`   // how many findings are kept
}

// step is one call. Of "entries" there are Count in a row: the next one has the next seq, is shown and
// was made a second later, and its body is that of its sender and seq.
type step struct {
	Do     string   `json:"do"` // entries, entry, sent, head, refresh
	Now    int64    `json:"now"`
	Count  int64    `json:"count,omitempty"`
	Seen   *shown   `json:"seen,omitempty"`
	Text   string   `json:"text,omitempty"`
	From   string   `json:"from,omitempty"`
	Asks   []asking `json:"asks,omitempty"`
	Throws string   `json:"throws,omitempty"` // lie, wentBack, otherKey, otherSender, readAgain, notSigned, or source
	Says   string   `json:"says,omitempty"`
}

type shown struct {
	Seq    int64  `json:"seq"`
	Kind   int    `json:"kind"`
	Epoch  int64  `json:"epoch"`
	At     int64  `json:"at"`
	Body   string `json:"body,omitempty"`
	Sender string `json:"sender"`
}

// asking is a question to the server, and its answer or error.
type asking struct {
	Ask     string   `json:"ask"` // head, inclusion, consistency
	Senders []string `json:"senders,omitempty"`
	Seq     int64    `json:"seq,omitempty"`
	From    int64    `json:"from,omitempty"`
	Size    int64    `json:"size,omitempty"`
	Error   string   `json:"error,omitempty"`
	Head    string   `json:"head,omitempty"`
	Keys    []string `json:"keys,omitempty"`
	Stand   []stands `json:"stand,omitempty"`
	Leaf    string   `json:"leaf,omitempty"`
	Hashes  []string `json:"hashes,omitempty"`
}

type stands struct {
	DID  string  `json:"did"`
	Salt *string `json:"salt,omitempty"`
	Tag  string  `json:"tag"`
}

// recorded is a source whose answers the device records.
type recorded struct {
	verifier.Source
	d *device
}

func (r recorded) Head(ctx context.Context, convo string, senders []string) (verifier.Answer, error) {
	answer, err := r.Source.Head(ctx, convo, senders)
	a := asking{Ask: "head", Senders: senders, Head: answer.Head, Keys: answer.Keys, Error: textOf(err)}
	for _, one := range answer.Senders {
		stand := stands{DID: one.DID, Tag: hexOf(one.Tag)}
		if one.Salt != nil {
			text := hex.EncodeToString(one.Salt)
			stand.Salt = &text
		}
		a.Stand = append(a.Stand, stand)
	}
	r.asked(a)
	return answer, err
}

func (r recorded) Inclusion(ctx context.Context, convo string, seq, size int64) (verifier.Hash, []verifier.Hash,
	error) {
	leaf, proof, err := r.Source.Inclusion(ctx, convo, seq, size)
	r.asked(asking{Ask: "inclusion", Seq: seq, Size: size, Leaf: hexOf(leaf), Hashes: hexesOf(proof), Error: textOf(err)})
	return leaf, proof, err
}

func (r recorded) Consistency(ctx context.Context, convo string, from, size int64) ([]verifier.Hash, error) {
	proof, err := r.Source.Consistency(ctx, convo, from, size)
	r.asked(asking{Ask: "consistency", From: from, Size: size, Hashes: hexesOf(proof), Error: textOf(err)})
	return proof, err
}

func (r recorded) asked(a asking) {
	if n := len(r.d.steps); n > 0 {
		r.d.steps[n-1].Asks = append(r.d.steps[n-1].Asks, a)
	}
}

func (d *device) Entry(ctx context.Context, m verifier.Seen) error {
	return d.step(step{Do: "entry", Seen: shownOf(m)}, func() error { return d.Verifier.Entry(ctx, m) })
}

func (d *device) Sent(ctx context.Context, m verifier.Seen) error {
	return d.step(step{Do: "sent", Seen: shownOf(m)}, func() error { return d.Verifier.Sent(ctx, m) })
}

func (d *device) Head(ctx context.Context, text, from string) error {
	return d.step(step{Do: "head", Text: text, From: from}, func() error { return d.Verifier.Head(ctx, text, from) })
}

func (d *device) Refresh(ctx context.Context) error {
	return d.step(step{Do: "refresh"}, func() error { return d.Verifier.Refresh(ctx) })
}

func (d *device) step(s step, do func() error) error {
	s.Now = d.clock.UnixMilli()
	d.steps = append(d.steps, s)
	err := do()
	last := &d.steps[len(d.steps)-1]
	last.Throws, last.Says = kindOf(err), textOf(err)
	return err
}

func kindOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.As(err, new(*verifier.Lie)):
		return "lie"
	case errors.As(err, new(*verifier.WentBack)):
		return "wentBack"
	case errors.As(err, new(*verifier.OtherKey)):
		return "otherKey"
	case errors.As(err, new(*verifier.OtherSender)):
		return "otherSender"
	case errors.Is(err, verifier.ErrReadAgain):
		return "readAgain"
	case errors.Is(err, verifier.ErrNotSigned):
		return "notSigned"
	}
	return "source"
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func shownOf(m verifier.Seen) *shown {
	return &shown{m.Seq, m.Kind, m.Epoch, m.At.UnixMilli(), hexOf(m.Body), m.Sender}
}

func hexOf(h verifier.Hash) string { return hex.EncodeToString(h[:]) }

func hexesOf(all []verifier.Hash) []string {
	texts := make([]string, len(all))
	for i, h := range all {
		texts[i] = hexOf(h)
	}
	return texts
}

// runOf is the run of a device, with the entries in a row as one step.
func runOf(name string, d *device) run {
	r := run{Name: name, Service: service, ConvoID: convo, Size: d.Size(), Message: d.Message(),
		Found: len(d.Backs()) + len(d.OtherKeys()) + len(d.OtherSenders())}
	for _, s := range d.steps {
		if s.Throws == "lie" {
			r.Found++ // the same one, if there are more
			break
		}
	}
	for _, s := range d.steps {
		if s.Do == "entry" && s.Seen.Body == hexOf(verifier.BodyHash(fmt.Appendf(nil, "%s %d", s.Seen.Sender, s.Seen.Seq))) {
			one := *s.Seen
			one.Body = ""
			s.Do, s.Seen, s.Count = "entries", &one, 1
		}
		if n := len(r.Steps); n > 0 && s.Do == "entries" && len(s.Asks) == 0 && s.Throws == "" {
			last := &r.Steps[n-1]
			if last.Do == "entries" && last.Throws == "" && follows(last, s) {
				last.Count++
				continue
			}
		}
		r.Steps = append(r.Steps, s)
	}
	return r
}

// follows reports whether a step is the next one in a row.
func follows(last *step, s step) bool {
	next := *last.Seen
	next.Seq, next.At = next.Seq+last.Count, next.At+1000*last.Count
	return next == *s.Seen && last.Now+1000*last.Count == s.Now
}

func treesOf(t *testing.T, v *vectors) {
	t.Helper()
	const most = 600
	var stored []tlog.Hash
	hashes := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		found := make([]tlog.Hash, len(indexes))
		for i, at := range indexes {
			found[i] = stored[at]
		}
		return found, nil
	})
	for n := range int64(most) {
		record := fmt.Appendf(nil, "leaf %d", n+1)
		more, err := tlog.StoredHashes(n, record, hashes)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, more...)
	}
	r := rand.New(rand.NewPCG(1, 2))
	sizes := map[int64]bool{}
	for len(sizes) < 200 {
		size := r.Int64N(most + 1)
		if sizes[size] {
			continue
		}
		sizes[size] = true
		root, err := tlog.TreeHash(size, hashes)
		if err != nil {
			t.Fatal(err)
		}
		v.Trees = append(v.Trees, treeVector{size, hexOf(root)})
	}
	for range 40 {
		size := 1 + r.Int64N(most)
		seq, from := 1+r.Int64N(size), 1+r.Int64N(size)
		if len(v.Inclusion)%4 == 0 {
			seq = size // the proof from which an edge is made
		}
		included, err := tlog.ProveRecord(size, seq-1, hashes)
		if err != nil {
			t.Fatal(err)
		}
		continued, err := tlog.ProveTree(size, from, hashes)
		if err != nil {
			t.Fatal(err)
		}
		v.Inclusion = append(v.Inclusion, proofVector{Seq: seq, Size: size, Hashes: hexesOf(included)})
		v.Consistency = append(v.Consistency, proofVector{From: from, Size: size, Hashes: hexesOf(continued)})
	}
}

func leavesOf(v *vectors) {
	for i, kind := range []int{verifier.Application, verifier.Proposal, verifier.Commit} {
		sender := []string{alice, bob, "did:web:chat.example"}[i]
		at := time.UnixMilli(1795426207000 + int64(i)*123)
		body, tag := verifier.BodyHash([]byte(sender)), verifier.TagOf(salt(sender), sender)
		e := verifier.Entry{Seq: int64(7 + i*1000), Kind: kind, Epoch: int64(i), At: at, Body: body, Tag: tag}
		v.Leaves = append(v.Leaves, leafVector{
			e.Seq, kind, e.Epoch, at.UnixMilli(), hexOf(body), sender, hex.EncodeToString(salt(sender)), hexOf(tag),
			hexOf(e.Leaf()),
		})
	}
}

func headsOf(t *testing.T, v *vectors) {
	t.Helper()
	s, other := newServer(t), otherKey(t)
	s.add(t, alice, 3)
	s.generation = 3656158440062975
	good := s.sign(3)
	add := func(text string, keys ...string) {
		h, err := verifier.OpenProven(text, keys)
		one := headVector{Text: text, Keys: keys, Error: textOf(err)}
		if err == nil {
			one.Size, one.Root, one.Generation, one.At = h.Size, hexOf(h.Root), h.Generation, h.At.UnixMilli()
		}
		v.Heads = append(v.Heads, one)
	}
	add(good, s.public)
	add(good, other.public)
	add(good, "no key", other.public, s.public)
	add(good, s.public, s.public)
	s.more = other
	add(s.sign(3), other.public)
	add(s.sign(3), s.public, other.public)
	add(good+good[strings.LastIndex(good, "—"):], s.public)
	signature := good[strings.LastIndex(good, "—"):]
	for _, change := range [][2]string{
		{"\n3\n", "\n4\n"}, {"\n\n", "\n"}, {"— ", "- "}, {signature, ""}, {signature, "— " + service + " AAAA\n"},
		{"\n— ", "\n\n— "}, {"time", "ti\tme"},
		{signature, strings.TrimSuffix(signature, "\n")}, {signature, strings.Replace(signature, "=\n", "\n", 1)},
	} {
		add(strings.Replace(good, change[0], change[1], 1), s.public)
	}
	add(good+strings.Repeat("— other AAAAAAAA\n", 100), s.public)
	add(good+strings.Repeat("— other AAAAAAAA\n", 99), s.public)
	add(good+strings.Repeat("— other AAAAAAAA\n", 200), s.public)
	text, _, _ := strings.Cut(good, "\n\n")
	for _, change := range [][2]string{
		{"", ""}, {"\n3\n", "\n03\n"}, {"\n3\n", "\n+3\n"}, {"\n3\n", "\n-3\n"}, {"generation ", "generation  "},
		{"generation ", "generation -"}, {"time ", "at "},
		{"000Z", "0Z"}, {"000Z", "000+00:00"}, {"/", ""}, {"=\ngen", "\ngen"},
		{"did:web:chat.example/", "did:web:chat.example//"}, {"\ntime", "\nmore\ntime"},
	} {
		signed, err := note.Sign(&note.Note{Text: strings.Replace(text, change[0], change[1], 1) + "\n"}, s.key)
		if err != nil {
			t.Fatal(err)
		}
		add(string(signed), s.public)
	}
}

func runsOf(t *testing.T, v *vectors) {
	t.Helper()
	for _, c := range cheats {
		d, _ := c.caught(t) // TestCheatingServersAreCaught looks at the error
		v.Runs = append(v.Runs, runOf(c.name, d))
	}
	for _, honest := range []struct {
		name string
		run  func(*testing.T) *device
	}{
		{"a restore that loses nothing", func(t *testing.T) *device { return afterRestore(t, 0) }},
		{"a restore that loses entries", func(t *testing.T) *device { return afterRestore(t, 7) }},
		{"a made-up head of a member", madeUpHead},
		{"a second key", secondKey},
		{"an erased account returns", erasedReturns},
		{"an account was erased between two readers", erasedBetween},
		{"acknowledged before the first head, and shown as another's", func(t *testing.T) *device {
			return earlyChanged(t, "entry 2 is mine, and is shown as one of did:plc:bob",
				func(m *verifier.Seen) { m.Sender = bob })
		}},
		{"acknowledged before the first head, and lost", earlyLost},
		{"acknowledged before another generation, and shown otherwise", earlyInAnotherGeneration},
	} {
		v.Runs = append(v.Runs, runOf(honest.name, honest.run(t)))
	}
	for seed := range uint64(3) {
		for i, d := range randomHonestService(t, seed, 100) {
			v.Runs = append(v.Runs, runOf(fmt.Sprintf("random honest service %d, device %d", seed, i), d))
		}
	}
}

// encode writes each vector in a line.
func (v *vectors) encode(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	list(t, &b, "{", "leaves", v.Leaves)
	list(t, &b, ",", "trees", v.Trees)
	list(t, &b, ",", "inclusion", v.Inclusion)
	list(t, &b, ",", "consistency", v.Consistency)
	list(t, &b, ",", "heads", v.Heads)
	list(t, &b, ",", "runs", v.Runs)
	b.WriteString("}\n")
	return b.Bytes()
}

func list[T any](t *testing.T, b *bytes.Buffer, before, name string, all []T) {
	t.Helper()
	fmt.Fprintf(b, "%s%q: [\n", before, name)
	for i, one := range all {
		if i > 0 {
			b.WriteString(",\n")
		}
		var line bytes.Buffer
		e := json.NewEncoder(&line)
		e.SetEscapeHTML(false)
		if err := e.Encode(one); err != nil {
			t.Fatal(err)
		}
		b.Write(bytes.TrimSuffix(line.Bytes(), []byte("\n")))
	}
	b.WriteString("\n]\n")
}

// The vectors are what the code makes. With -update they become that. The TypeScript client reads them.
func TestVectors(t *testing.T) {
	t.Parallel()
	var v vectors
	leavesOf(&v)
	treesOf(t, &v)
	headsOf(t, &v)
	runsOf(t, &v)
	made := v.encode(t)
	const path = "testdata/vectors.json"
	if *moduletest.Update {
		if err := os.WriteFile(path, made, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, made) {
		t.Errorf("%s is not what the code makes: look at what changes with go test -run TestVectors -update", path)
	}
}
