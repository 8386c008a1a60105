package verifier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Bounds of what a Verifier remembers and when it asks.
const (
	// remembered are the newest entries whose leaves and roots are kept: a head, or an entry that is
	// shown again, is compared with them without asking the server.
	remembered = 512
	// AskEvery is how many entries come without a head before the Verifier asks for one.
	AskEvery = 100
	// SilentAfter is how many entries may come without a head before that is a finding. The Verifier
	// has asked several times by then.
	SilentAfter = 3 * AskEvery
	// SilentFor is how long heads are missing then.
	SilentFor = time.Minute
	// mostWaiting are the heads ahead of the entries that are kept.
	mostWaiting = 16
	// mostSent are the acknowledged messages that are kept until they are shown.
	mostSent = 1024
	// mostBacks bounds Backs, and OtherKeys: the newest ones are kept.
	mostBacks = 64
)

const (
	erasedPrefix = "did:erased:" // of the tombstones of erased accounts
	saltSize     = 16
)

// Source asks the server. Its errors are those of the way there, and refusals.
type Source interface {
	// Head returns a fresh head, and what stands for the given senders.
	Head(ctx context.Context, convo string, senders []string) (Answer, error)
	// Inclusion returns the leaf of an entry, and the proof that it is in the tree of a size.
	Inclusion(ctx context.Context, convo string, seq, size int64) (leaf Hash, proof []Hash, err error)
	// Consistency returns the proof that a tree begins with a smaller one.
	Consistency(ctx context.Context, convo string, from, size int64) ([]Hash, error)
}

// Answer is the answer of getLogHead.
type Answer struct {
	Head    string
	Keys    []string
	Senders []Sender
}

// Sender is what stands for a sender in the leaves. Salt is nil if the account was erased: then DID is
// that of a tombstone.
type Sender struct {
	DID  string
	Salt []byte
	Tag  Hash
}

// Seen is an entry as the server shows it.
type Seen struct {
	Seq    int64
	Kind   int
	Epoch  int64 // of the MLS header
	At     time.Time
	Body   Hash
	Sender string
}

// Lie says that the server has lied. It stays.
type Lie struct {
	Sentence string    `json:"sentence"`
	Evidence []string  `json:"evidence,omitempty"` // signed heads
	At       time.Time `json:"at"`
}

func (l *Lie) Error() string { return l.Sentence }

// WentBack says that the server's database went back to an earlier state: a restore, or a failover
// that lost writes. It is no lie, because the head says so itself by its generation. But a server that
// shows members different logs could give each of them generations of its own. So members should be
// told, and ask the operator.
type WentBack struct {
	From, To   int64 // entries: what the device, or the member, had seen, and what the new head has
	Common     int64 // the entries that both have, as far as the device can tell; 0 for a member's head
	Generation int64
	Evidence   []string // the last head before, if there is one, and the first one after
	Member     string   // who had seen the log of before; "": the device itself
}

func (w *WentBack) Error() string {
	if w.Member != "" {
		return fmt.Sprintf("the server went back, or has two logs: %s has a head of %d entries of an earlier generation, and the log does not begin with them (generation %d)", w.Member, w.From, w.Generation)
	}
	return fmt.Sprintf("the server went back from %d entries to %d; the first %d are the same (generation %d)", w.From, w.To, w.Common, w.Generation)
}

// OtherKey says that a member has a head that is signed in the service's name with a key that the
// service has not given to this device. Either the member has made it up, or the server gives members
// keys of their own, so that their heads cannot be compared. Only the members can find out which, by
// comparing the keys.
type OtherKey struct {
	Member   string
	KeyHash  uint32
	Signed   bool     // the member has sent the key, and the head is signed with it
	Evidence []string // the member's text, and the newest head that the device has checked
}

func (o *OtherKey) Error() string {
	return fmt.Sprintf("%s has a head that is signed with another key of the service (%08x): one of them has made it up", o.Member, o.KeyHash)
}

// ErrNotSigned says that a text that a member has sent is no head that the service has signed. It says
// nothing of the server: the member could have made it up.
var ErrNotSigned = errors.New("the member's head is not signed by the service")

// ErrReadAgain says that what was shown does not fit a signed head. The device reads the entries behind
// Size again, from the server, and shows them to the Verifier: it could have read them before a
// failover of which it has not heard. If they do not fit again, that is a Lie.
var ErrReadAgain = errors.New("entries do not fit the signed head; read them again")

// state is what is stored between two starts of an app.
type state struct {
	Service    string          `json:"service"`
	ConvoID    string          `json:"convoId"`
	Keys       []string        `json:"keys"`
	Started    bool            `json:"started"` // Edge is the tree up to the last entry that was shown
	Generation int64           `json:"generation"`
	Since      time.Time       `json:"since,omitzero"` // the time of the first head of the generation, if there was another one
	Edge       Edge            `json:"edge"`
	Leaves     []Hash          `json:"leaves"` // of the last entries
	Roots      []Hash          `json:"roots"`  // of the trees that end with them
	Head       string          `json:"head"`   // the newest one that was checked
	HeadSize   int64           `json:"headSize"`
	Waiting    []waiting       `json:"waiting,omitempty"`
	Tags       map[string]Hash `json:"tags,omitempty"`
	Sent       map[int64]Seen  `json:"sent,omitempty"`
	Acked      int64           `json:"acked,omitempty"`    // the largest seq that was acknowledged
	Unheaded   int             `json:"unheaded,omitempty"` // entries since the last head
	Silent     time.Time       `json:"silent,omitzero"`    // since when heads are refused
	Doubted    bool            `json:"doubted,omitempty"`  // entries are being read again
	Backs      []WentBack      `json:"backs,omitempty"`
	OtherKeys  []OtherKey      `json:"otherKeys,omitempty"`
	Lie        *Lie            `json:"lie,omitempty"`
}

// waiting is a head with more entries than were shown.
type waiting struct {
	Text string `json:"text"`
	Size int64  `json:"size"`
	Root Hash   `json:"root"`
	From string `json:"from,omitempty"` // a member
}

// Verifier checks the log of one convo for one device. It is not safe for concurrent use. After a Lie
// every method returns it.
type Verifier struct {
	s      state
	source Source
	now    func() time.Time
}

// New returns a verifier of a convo on the service with the DID. now can be nil.
func New(service, convo string, source Source, now func() time.Time) *Verifier {
	v := &Verifier{s: state{Service: service, ConvoID: convo}, source: source, now: now}
	v.complete()
	return v
}

// Restore returns the verifier that Save has stored. now can be nil.
func Restore(data []byte, source Source, now func() time.Time) (*Verifier, error) {
	v := &Verifier{source: source, now: now}
	if err := json.Unmarshal(data, &v.s); err != nil {
		return nil, err
	}
	if !v.s.Edge.Valid() || len(v.s.Leaves) != len(v.s.Roots) {
		return nil, errors.New("the verifier's state is damaged")
	}
	v.complete()
	return v, nil
}

func (v *Verifier) complete() {
	if v.now == nil {
		v.now = time.Now
	}
	if v.s.Tags == nil {
		v.s.Tags = map[string]Hash{}
	}
	if v.s.Sent == nil {
		v.s.Sent = map[int64]Seen{}
	}
}

// Save returns the state, to be stored with what was read.
func (v *Verifier) Save() ([]byte, error) { return json.Marshal(&v.s) }

// Newest is the newest head that was checked. "" if there is none.
func (v *Verifier) Newest() string { return v.s.Head }

// keyLine begins the line of a key in what members send each other.
const keyLine = "key "

// Message is what is sent to other members inside an encrypted message: the keys that the device has
// for the service, and the newest head that was checked. Their verifiers take it with Head.
func (v *Verifier) Message() string {
	var b strings.Builder
	for _, key := range v.s.Keys {
		b.WriteString(keyLine + key + "\n")
	}
	return b.String() + v.s.Head
}

// parts takes a Message apart.
func parts(message string) (keys []string, head string) {
	for {
		line, rest, ok := strings.Cut(message, "\n")
		key, isKey := strings.CutPrefix(line, keyLine)
		if !ok || !isKey {
			return keys, message
		}
		keys, message = append(keys, key), rest
	}
}

// Size is how many entries were checked.
func (v *Verifier) Size() int64 { return v.s.Edge.Size }

// Backs are the changes of the generation, also those with which nothing was lost.
func (v *Verifier) Backs() []WentBack { return v.s.Backs }

// OtherKeys are the members' heads with keys that the device does not know.
func (v *Verifier) OtherKeys() []OtherKey { return v.s.OtherKeys }

func (v *Verifier) addBack(b WentBack) {
	v.s.Backs = append(v.s.Backs, b)
	if extra := len(v.s.Backs) - mostBacks; extra > 0 {
		v.s.Backs = slices.Delete(v.s.Backs, 0, extra)
	}
}

func (v *Verifier) lie(evidence []string, format string, args ...any) error {
	if v.s.Lie == nil {
		v.s.Lie = &Lie{Sentence: fmt.Sprintf(format, args...), Evidence: evidence, At: v.now()}
	}
	return v.s.Lie
}

func (v *Verifier) lied() error {
	if v.s.Lie == nil {
		return nil
	}
	return v.s.Lie
}

// Sent remembers a message that the server has acknowledged, until it is shown. If it was shown before
// the acknowledgement came, the two are compared. Errors: as those of Entry.
func (v *Verifier) Sent(ctx context.Context, m Seen) error {
	if err := v.lied(); err != nil {
		return err
	}
	if m.At.Before(v.s.Since) {
		return nil // acknowledged before the server went back
	}
	v.s.Acked = max(v.s.Acked, m.Seq)
	if m.Seq > v.s.Edge.Size {
		if len(v.s.Sent) < mostSent {
			v.s.Sent[m.Seq] = m
		}
		return nil
	}
	shown, ok := v.leafAt(m.Seq)
	if _, before := v.rootAt(m.Seq - 1); !ok || !before && m.Seq > 1 {
		return nil
	}
	tag, err := v.tagOf(ctx, m.Sender)
	if err != nil || m.leaf(tag) == shown {
		return err
	}
	for _, kind := range []int{Application, Proposal, Commit} { // the sender need not say it
		if m.Kind == 0 && (Entry{m.Seq, kind, m.Epoch, m.At, m.Body, tag}).Leaf() == shown {
			return nil
		}
	}
	v.s.Sent[m.Seq] = m
	err = v.doubt(ctx, nil, "entry %d is mine, and was shown as another one", m.Seq)
	if errors.Is(err, ErrReadAgain) && m.Seq <= v.s.Edge.Size {
		if err := v.rewind(ctx, v.s.Head, m.Seq-1); err != nil { // it comes again, and is compared then
			return err
		}
	}
	return err
}

func (m Seen) leaf(tag Hash) Hash {
	return Entry{Seq: m.Seq, Kind: m.Kind, Epoch: m.Epoch, At: m.At, Body: m.Body, Tag: tag}.Leaf()
}

// Entry checks an entry that the server shows. Entries come in the order of the log, without gaps;
// one that was shown before can come again. Errors: *Lie; *WentBack and ErrReadAgain, and then the
// entries behind Size come again; those of the source, and then the same entry comes again.
func (v *Verifier) Entry(ctx context.Context, m Seen) error {
	if err := v.lied(); err != nil {
		return err
	}
	tag, err := v.tagOf(ctx, m.Sender)
	if err != nil {
		return err
	}
	leaf := m.leaf(tag)
	if !v.s.Started {
		if err := v.start(ctx, m.Seq-1); err != nil {
			return err
		}
	}
	switch {
	case m.Seq <= v.s.Edge.Size:
		before, ok := v.leafAt(m.Seq)
		if !ok { // it is not remembered any more
			if ok, err = v.includes(ctx, m.Seq, leaf); err != nil {
				return err
			}
			before = leaf
		}
		if !ok || before != leaf {
			return v.doubt(ctx, nil, "entry %d is not what the server has shown before", m.Seq)
		}
		return v.meet(ctx)
	case m.Seq > v.s.Edge.Size+1:
		return v.doubt(ctx, nil, "entries are left out: after entry %d the server shows entry %d", v.s.Edge.Size, m.Seq)
	}
	if err := v.checkSent(ctx, m); err != nil {
		return err
	}
	v.take(leaf)
	if err := v.meet(ctx); err != nil {
		return err
	}
	v.s.Unheaded++
	if v.s.Unheaded >= AskEvery {
		return v.ask(ctx)
	}
	return nil
}

func (v *Verifier) take(leaf Hash) {
	s := &v.s
	s.Edge.Append(leaf)
	s.Leaves, s.Roots = append(s.Leaves, leaf), append(s.Roots, s.Edge.Root())
	if extra := len(s.Leaves) - remembered; extra > 0 {
		s.Leaves, s.Roots = slices.Delete(s.Leaves, 0, extra), slices.Delete(s.Roots, 0, extra)
	}
}

// leafAt returns the leaf of an entry that was shown, if it is remembered.
func (v *Verifier) leafAt(seq int64) (Hash, bool) {
	i := int64(len(v.s.Leaves)) - (v.s.Edge.Size - seq) - 1
	if i < 0 || i >= int64(len(v.s.Leaves)) {
		return Hash{}, false
	}
	return v.s.Leaves[i], true
}

// includes reports whether the server can prove that an entry is in the tree of what was shown.
func (v *Verifier) includes(ctx context.Context, seq int64, leaf Hash) (bool, error) {
	_, proof, err := v.source.Inclusion(ctx, v.s.ConvoID, seq, v.s.Edge.Size)
	if err != nil {
		return false, err
	}
	return tlog.CheckRecord(proof, v.s.Edge.Size, v.s.Edge.Root(), seq-1, leaf) == nil, nil
}

// rootAt returns the root of the tree that ended with an entry, if it is remembered.
func (v *Verifier) rootAt(size int64) (Hash, bool) {
	if size == v.s.Edge.Size {
		return v.s.Edge.Root(), true
	}
	i := int64(len(v.s.Roots)) - (v.s.Edge.Size - size) - 1
	if i < 0 || i >= int64(len(v.s.Roots)) {
		return Hash{}, false
	}
	return v.s.Roots[i], true
}

// checkSent compares an entry with what the server has acknowledged to this device.
func (v *Verifier) checkSent(ctx context.Context, m Seen) error {
	for seq, sent := range v.s.Sent {
		if sent.Body == m.Body && seq != m.Seq {
			return v.doubt(ctx, nil, "my message was acknowledged as entry %d and is shown as entry %d", seq, m.Seq)
		}
	}
	sent, ok := v.s.Sent[m.Seq]
	switch {
	case !ok:
		return nil
	case sent.Body != m.Body:
		return v.doubt(ctx, nil, "entry %d is mine, and is shown with other bytes", m.Seq)
	case sent.Sender != m.Sender:
		return v.doubt(ctx, nil, "entry %d is mine, and is shown as one of %s", m.Seq, m.Sender)
	case !sent.At.Equal(m.At):
		return v.doubt(ctx, nil, "entry %d is mine, was acknowledged at %s and is shown with the time %s", m.Seq, stamp(sent.At), stamp(m.At))
	}
	delete(v.s.Sent, m.Seq)
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(timeLayout) }

// tagOf returns what stands for a sender in the leaves, and asks the server the first time.
func (v *Verifier) tagOf(ctx context.Context, did string) (Hash, error) {
	if tag, ok := v.s.Tags[did]; ok {
		return tag, nil
	}
	if err := v.refresh(ctx, []string{did}); err != nil {
		if v.s.Lie == nil && !errors.As(err, new(*WentBack)) && !errors.Is(err, ErrReadAgain) {
			err = v.unanswered(err)
		}
		return Hash{}, err
	}
	if tag, ok := v.s.Tags[did]; ok {
		return tag, nil
	}
	return Hash{}, v.lie(nil, "the server shows entries of %s, and does not say what stands for it in the log", did)
}

// doubt is called when something that was shown does not fit. If the server went back meanwhile, that
// is why. Else the entries are read again, and the second time it is a lie.
func (v *Verifier) doubt(ctx context.Context, evidence []string, format string, args ...any) error {
	text, h, err := v.again(ctx)
	if err != nil {
		return err
	}
	return v.doubtUnder(ctx, text, h, evidence, format, args...)
}

// doubtUnder is doubt, if there is a fresh head of the same generation. What the server has signed
// before is never read again: a head that does not begin with it is a lie.
func (v *Verifier) doubtUnder(ctx context.Context, text string, h *Head, evidence []string, format string, args ...any) error {
	if err := v.extends(ctx, text, h); err != nil {
		return err
	}
	if v.s.Doubted {
		return v.accuse(ctx, append(evidence, text), format, args...)
	}
	common, err := v.common(ctx, h)
	if err != nil {
		return err
	}
	for _, w := range v.s.Waiting {
		if root, ok := v.rootAt(w.Size); ok && w.Size <= common && root != w.Root {
			return v.lie([]string{w.Text, text}, "there are two logs: the head of %d entries that %s has is not that of the log that I was shown", w.Size, nameOf(w.From))
		}
	}
	if err := v.rewind(ctx, text, common); err != nil {
		return err
	}
	v.s.Doubted = true
	v.s.Tags = map[string]Hash{} // an account that was erased and has returned has another one
	return ErrReadAgain
}

// again asks for a head, to see whether the generation is still the same. If it is not, it takes the
// head, and the error is *WentBack or ErrReadAgain.
func (v *Verifier) again(ctx context.Context) (text string, h *Head, err error) {
	answer, err := v.source.Head(ctx, v.s.ConvoID, nil)
	if err != nil {
		return "", nil, v.unanswered(err)
	}
	if h, err = v.open(answer.Head); err != nil {
		return "", nil, err
	}
	if h.Generation > v.s.Generation {
		if err := v.newGeneration(ctx, answer.Head, h); err != nil {
			return "", nil, err
		}
		return "", nil, ErrReadAgain
	}
	return answer.Head, h, nil
}

// accuse says that the server has lied with a proof, unless it went back meanwhile: then the proof is
// of another log than the head.
func (v *Verifier) accuse(ctx context.Context, evidence []string, format string, args ...any) error {
	if _, _, err := v.again(ctx); err != nil {
		return err
	}
	return v.lie(evidence, format, args...)
}

// newest is the newest head that was checked, or nil.
func (v *Verifier) newest() *Head {
	h, err := Open(v.s.Head, keyList(v.s.Keys))
	if err != nil {
		return nil // there is none
	}
	return h
}

// extends checks that a head of the server's begins with the newest one of the generation that was
// checked.
func (v *Verifier) extends(ctx context.Context, text string, h *Head) error {
	before := v.newest()
	if before == nil || before.Generation != h.Generation {
		return nil
	}
	ok, err := v.isPrefix(ctx, h, before.Size, before.Root)
	if err != nil || ok {
		return err
	}
	if h.Size < before.Size {
		return v.accuse(ctx, []string{v.s.Head, text}, "the head is stale: it has %d entries, and an earlier one %d", h.Size, before.Size)
	}
	return v.accuse(ctx, []string{v.s.Head, text}, "the server has rewritten the log, or its proof is wrong: its head of %d entries does not begin with the %d of an earlier one", h.Size, before.Size)
}

// rewind goes back to the tree of the first entries that were shown.
func (v *Verifier) rewind(ctx context.Context, text string, size int64) error {
	s := &v.s
	if size == s.Edge.Size || !s.Started {
		return nil
	}
	if size == 0 {
		s.Edge, s.Started, s.Leaves, s.Roots = Edge{}, false, nil, nil
		return nil
	}
	root, _ := v.rootAt(size)
	edge, err := v.edgeAt(ctx, size)
	if err != nil {
		return err
	}
	if edge.Root() != root {
		return v.accuse(ctx, []string{s.Head, text}, "the proof is wrong: that of entry %d in the tree of %d entries", size, size)
	}
	keep := int64(len(s.Leaves)) - (s.Edge.Size - size)
	s.Leaves, s.Roots, s.Edge = s.Leaves[:keep], s.Roots[:keep], edge
	return nil
}

// unanswered counts a question without an answer while entries come. The error is a Lie if there
// have been too many.
func (v *Verifier) unanswered(err error) error {
	if v.s.Silent.IsZero() {
		v.s.Silent = v.now()
	}
	v.s.Unheaded++
	if quiet := v.now().Sub(v.s.Silent); v.s.Unheaded >= SilentAfter && quiet >= SilentFor {
		return v.lie([]string{v.s.Head}, "the server is silent: it shows entries, and has given no head for %s (%v)", quiet.Round(time.Second), err)
	}
	return err
}

// ask asks for a head. That the server refuses one does not keep the entries from being read, until
// it is a finding.
func (v *Verifier) ask(ctx context.Context) error {
	err := v.refresh(ctx, nil)
	if err == nil || v.s.Lie != nil || errors.As(err, new(*WentBack)) || errors.Is(err, ErrReadAgain) {
		return err
	}
	if err = v.unanswered(err); v.s.Lie != nil {
		return err
	}
	return nil
}

// open reads a head of the server's.
func (v *Verifier) open(text string) (*Head, error) {
	h, err := Open(text, keyList(v.s.Keys))
	switch {
	case err != nil:
		return nil, v.lie([]string{text}, "the server's head is not signed with the key that it had: %v", err)
	case h.Service != v.s.Service || h.ConvoID != v.s.ConvoID:
		return nil, v.lie([]string{text}, "the server gives a head of another log: %s/%s", h.Service, h.ConvoID)
	case h.Generation < v.s.Generation && v.s.Head != "":
		return nil, v.lie([]string{v.s.Head, text}, "the server gives a head of generation %d after one of generation %d", h.Generation, v.s.Generation)
	}
	return h, nil
}

// Refresh asks for a head of the whole log, and checks that it continues what was shown. Errors: *Lie,
// *WentBack, ErrReadAgain, those of the source.
func (v *Verifier) Refresh(ctx context.Context) error {
	if err := v.lied(); err != nil {
		return err
	}
	return v.refresh(ctx, nil)
}

func (v *Verifier) refresh(ctx context.Context, senders []string) error {
	atLeast := max(v.s.Edge.Size, v.s.Acked)
	answer, err := v.source.Head(ctx, v.s.ConvoID, senders)
	if err != nil {
		return err
	}
	if len(v.s.Keys) == 0 {
		v.s.Keys = answer.Keys
	}
	h, err := v.open(answer.Head)
	if err != nil {
		return err
	}
	v.learn(answer)
	if err := v.fresh(ctx, answer.Head, h, atLeast); err != nil {
		return err
	}
	if len(senders) == 0 && v.s.Edge.Size == h.Size { // not while entries are being read
		v.s.Doubted = false
	}
	for _, one := range answer.Senders {
		if !slices.Contains(senders, one.DID) {
			continue
		}
		if err := v.learnSender(one); err != nil {
			return err
		}
	}
	return nil
}

// learnSender takes what stands for a sender. A salt has one size, so that no tag can stand for two
// DIDs. An account that was erased and has returned has another one.
func (v *Verifier) learnSender(one Sender) error {
	switch erased := strings.HasPrefix(one.DID, erasedPrefix); {
	case one.Salt == nil && !erased:
		return v.lie([]string{v.s.Head}, "the server does not say why its tag stands for %s in the log: the salt is absent, and the account was not erased", one.DID)
	case one.Salt != nil && (len(one.Salt) != saltSize || TagOf(one.Salt, one.DID) != one.Tag):
		return v.lie([]string{v.s.Head}, "what the server says stands for %s in the log does not", one.DID)
	}
	if before, ok := v.s.Tags[one.DID]; ok && before != one.Tag && one.Salt == nil {
		return v.lie([]string{v.s.Head}, "the server has changed what stands for %s in the log", one.DID)
	}
	v.s.Tags[one.DID] = one.Tag
	return nil
}

// learn accepts new keys with which a head is signed beside a known one.
func (v *Verifier) learn(answer Answer) {
	for _, key := range answer.Keys {
		if slices.Contains(v.s.Keys, key) {
			continue
		}
		if _, err := Open(answer.Head, keyList([]string{key})); err == nil {
			v.s.Keys = append(v.s.Keys, key)
		}
	}
}

// fresh checks a head that the server has just given.
func (v *Verifier) fresh(ctx context.Context, text string, h *Head, atLeast int64) error {
	s := &v.s
	switch {
	case s.Head == "" && !s.Started:
		s.Generation = h.Generation          // the first one
		if h.Generation > 0 && s.Acked > 0 { // the acknowledgements are perhaps of an earlier one
			s.Acked, s.Sent, atLeast = 0, map[int64]Seen{}, 0
		}
	case h.Generation > s.Generation:
		return v.newGeneration(ctx, text, h)
	}
	// Two signed heads need no reading to be compared. If what was shown has the earlier one, continues
	// compares it.
	if before := v.newest(); before != nil {
		if root, ok := v.rootAt(before.Size); !ok || !s.Started || root != before.Root || h.Size < before.Size {
			if err := v.extends(ctx, text, h); err != nil {
				return err
			}
		}
	}
	if h.Size < atLeast {
		return v.doubtUnder(ctx, text, h, []string{s.Head}, "the head is stale: it has %d entries, and the server has shown or acknowledged %d", h.Size, atLeast)
	}
	if err := v.continues(ctx, text, h); err != nil {
		return err
	}
	if err := v.remember(ctx, text, h, ""); err != nil {
		return err
	}
	s.Head, s.HeadSize, s.Unheaded, s.Silent = text, h.Size, 0, time.Time{}
	return nil
}

// continues checks that a head is of a log that begins with what was shown.
func (v *Verifier) continues(ctx context.Context, text string, h *Head) error {
	if !v.s.Started {
		return nil
	}
	ok, err := v.isPrefix(ctx, h, v.s.Edge.Size, v.s.Edge.Root())
	if err != nil || ok {
		return err
	}
	// Two heads need no reading to be compared.
	for _, w := range v.s.Waiting {
		if w.Size == h.Size && w.Root != h.Root {
			return v.twoHeads(w, text, h, "")
		}
	}
	return v.doubtUnder(ctx, text, h, []string{v.s.Head}, "%s", v.explain(ctx, h))
}

// isPrefix reports whether the server can prove that the tree of h begins with a tree.
func (v *Verifier) isPrefix(ctx context.Context, h *Head, size int64, root Hash) (bool, error) {
	switch {
	case size == 0:
		return true, nil
	case size > h.Size:
		return false, nil
	case size == h.Size:
		return root == h.Root, nil
	}
	proof, err := v.source.Consistency(ctx, v.s.ConvoID, size, h.Size)
	if err != nil {
		return false, err
	}
	return tlog.CheckTree(proof, h.Size, h.Root, size, root) == nil, nil
}

// explain says which of the entries that were shown is not under a head.
func (v *Verifier) explain(ctx context.Context, h *Head) string {
	const differs = "the log that I was shown is not the one that is signed: "
	first := v.s.Edge.Size - int64(len(v.s.Leaves)) + 1
	for i, shown := range v.s.Leaves {
		seq := first + int64(i)
		if seq > h.Size {
			break
		}
		leaf, proof, err := v.source.Inclusion(ctx, v.s.ConvoID, seq, h.Size)
		if err != nil {
			return fmt.Sprintf("%sthe server gives no proof for entry %d (%v)", differs, seq, err)
		}
		if tlog.CheckRecord(proof, h.Size, h.Root, seq-1, leaf) != nil {
			return fmt.Sprintf("the proof is wrong: that of entry %d in the tree of %d entries", seq, h.Size)
		}
		if leaf != shown {
			return fmt.Sprintf("%sentry %d is the first that differs in its bytes, sender, time or place", differs, seq)
		}
	}
	return fmt.Sprintf("the proof is wrong: it does not lead from the %d entries that I was shown to the signed head of %d", v.s.Edge.Size, h.Size)
}

// remember compares a head with the others of its generation: with what was shown, or later, when
// that many entries were shown.
func (v *Verifier) remember(ctx context.Context, text string, h *Head, from string) error {
	for _, w := range v.s.Waiting {
		if w.Size == h.Size && w.Root != h.Root {
			return v.twoHeads(w, text, h, from)
		}
	}
	root, ok := v.rootAt(h.Size)
	ok = ok && v.s.Started
	if ok && root == h.Root {
		v.adopt(text, h.Size)
		return nil
	}
	if !ok && h.Size <= v.s.Edge.Size { // too old to be compared
		return nil
	}
	v.s.Waiting = append(v.s.Waiting, waiting{text, h.Size, h.Root, from})
	if len(v.s.Waiting) > mostWaiting {
		v.s.Waiting = slices.Delete(v.s.Waiting, 0, 1)
	}
	if ok {
		return v.doubt(ctx, []string{text}, "there are two logs: the head of %d entries that %s has is not that of the log that I was shown", h.Size, nameOf(from))
	}
	return nil
}

// adopt makes a head the newest one that was checked, if it is: what was shown begins with it.
func (v *Verifier) adopt(text string, size int64) {
	if size > v.s.HeadSize {
		v.s.Head, v.s.HeadSize = text, size
	}
}

// nameOf names who has given a head.
func nameOf(from string) string {
	if from == "" {
		return "the server"
	}
	return from
}

func (v *Verifier) twoHeads(w waiting, text string, h *Head, from string) error {
	return v.lie([]string{w.Text, text}, "there are two heads of %d entries: %s has one, and %s another", h.Size, nameOf(w.From), nameOf(from))
}

// meet compares the heads that waited for the entry that was just shown.
func (v *Verifier) meet(ctx context.Context) error {
	for _, w := range v.s.Waiting {
		root, ok := v.rootAt(w.Size)
		if w.Size > v.s.Edge.Size || !ok {
			continue
		}
		if w.Root == root {
			v.adopt(w.Text, w.Size)
			continue
		}
		h, err := Open(w.Text, keyList(v.s.Keys))
		if err != nil {
			return err
		}
		why := v.explain(ctx, h)
		if w.From != "" {
			return v.doubt(ctx, []string{w.Text}, "there are two logs: the head of %d entries that %s has is not that of the log that I was shown (%s)", w.Size, w.From, why)
		}
		return v.doubt(ctx, []string{w.Text}, "%s", why)
	}
	v.s.Waiting = slices.DeleteFunc(v.s.Waiting, func(w waiting) bool { return w.Size <= v.s.Edge.Size })
	return nil
}

// Head checks a head that came with an answer or an event, or the Message that a member has sent
// inside an encrypted message. from names the member; "" is the server. It can be older or newer than
// what was shown. Errors: *Lie, *WentBack, *OtherKey, ErrReadAgain, ErrNotSigned, those of the source.
func (v *Verifier) Head(ctx context.Context, text, from string) error {
	if err := v.lied(); err != nil {
		return err
	}
	if len(v.s.Keys) == 0 {
		if err := v.refresh(ctx, nil); err != nil {
			return err
		}
	}
	if from != "" {
		return v.memberHead(ctx, text, from)
	}
	h, err := Open(text, keyList(v.s.Keys))
	switch {
	case err != nil:
		return v.lie([]string{text}, "the server's head is not signed with the key that it had: %v", err)
	case h.Service != v.s.Service || h.ConvoID != v.s.ConvoID:
		return v.lie([]string{text}, "the server gives a head of another log: %s/%s", h.Service, h.ConvoID)
	}
	if h.Generation > v.s.Generation {
		if err := v.refresh(ctx, nil); err != nil { // what the server says of it
			return err
		}
	}
	switch {
	case h.Generation > v.s.Generation:
		return v.lie([]string{v.s.Head, text}, "the server has given a head of generation %d, and says it is in generation %d", h.Generation, v.s.Generation)
	case h.Generation < v.s.Generation:
		return nil // it was on its way
	}
	if err := v.remember(ctx, text, h, ""); err != nil {
		return err
	}
	v.s.Unheaded = int(max(0, v.s.Edge.Size-h.Size))
	if v.s.Unheaded < AskEvery {
		v.s.Silent = time.Time{}
	}
	return nil
}

// memberHead checks what a member has sent.
func (v *Verifier) memberHead(ctx context.Context, message, from string) error {
	keys, text := parts(message)
	h, err := Open(text, keyList(v.s.Keys))
	if err != nil && v.otherKey(text) != 0 { // the service could have another key now
		if err := v.refresh(ctx, nil); err != nil {
			return err
		}
		h, err = Open(text, keyList(v.s.Keys))
	}
	if err != nil {
		return v.unknownKey(message, text, keys, from, err)
	}
	if h.Service != v.s.Service || h.ConvoID != v.s.ConvoID {
		return fmt.Errorf("%w: it is of another log", ErrNotSigned)
	}
	var back *WentBack // the member's head is compared nevertheless
	if h.Generation > v.s.Generation || h.Size > v.s.HeadSize {
		if err := v.refresh(ctx, nil); err != nil && !errors.As(err, &back) { // what the server says of it
			return err
		}
	}
	switch {
	case h.Generation > v.s.Generation:
		return v.lie([]string{v.s.Head, text}, "%s has a head of generation %d, and the server says it is in generation %d", from, h.Generation, v.s.Generation)
	case h.Generation < v.s.Generation:
		err = v.earlier(ctx, text, h, from)
	case h.Size > v.s.HeadSize:
		return v.lie([]string{v.s.Head, text}, "%s has a head of %d entries, and the server says that there are %d", from, h.Size, v.s.HeadSize)
	default:
		if err = v.compare(ctx, text, h, from); err == nil {
			err = v.remember(ctx, text, h, from)
		}
	}
	if err == nil && back != nil {
		return back
	}
	return err
}

// otherKey returns the hash of a key that is not known and with which a text says that the service
// has signed it; 0 if there is none.
func (v *Verifier) otherKey(text string) uint32 {
	if len(text) > MaxNote {
		return 0
	}
	var unknown *note.UnverifiedNoteError
	if _, err := note.Open([]byte(text), keyList(v.s.Keys)); !errors.As(err, &unknown) {
		return 0
	}
	for _, signature := range unknown.Note.UnverifiedSigs {
		if signature.Name == v.s.Service {
			return signature.Hash
		}
	}
	return 0
}

// unknownKey is the finding that a member's head is signed with a key that the device does not know.
func (v *Verifier) unknownKey(message, text string, keys []string, from string, why error) error {
	hash := v.otherKey(text)
	if hash == 0 {
		return fmt.Errorf("%w: %w", ErrNotSigned, why)
	}
	_, err := Open(text, keyList(keys))
	o := OtherKey{Member: from, KeyHash: hash, Signed: err == nil, Evidence: []string{message, v.s.Head}}
	if !slices.ContainsFunc(v.s.OtherKeys, func(b OtherKey) bool { return b.Member == from && b.KeyHash == hash }) {
		v.s.OtherKeys = append(v.s.OtherKeys, o)
		if extra := len(v.s.OtherKeys) - mostBacks; extra > 0 {
			v.s.OtherKeys = slices.Delete(v.s.OtherKeys, 0, extra)
		}
	}
	return &o
}

// earlier compares a member's head of an earlier generation. If nothing was lost with that, today's
// log begins with it. Each head is reported once.
func (v *Verifier) earlier(ctx context.Context, text string, h *Head, from string) error {
	newest := v.newest()
	if newest == nil || slices.ContainsFunc(v.s.Backs, func(b WentBack) bool { return b.Member == from && b.Evidence[0] == text }) {
		return nil
	}
	ok, err := v.isPrefix(ctx, newest, h.Size, h.Root)
	if err != nil || ok {
		return err
	}
	if _, _, err := v.again(ctx); err != nil {
		return err
	}
	back := &WentBack{From: h.Size, To: newest.Size, Generation: newest.Generation, Evidence: []string{text, v.s.Head}, Member: from}
	v.addBack(*back)
	return back
}

// compare checks that the newest head continues that of a member.
func (v *Verifier) compare(ctx context.Context, text string, h *Head, from string) error {
	for _, w := range v.s.Waiting {
		if w.Size == h.Size && w.Root != h.Root {
			return v.twoHeads(w, text, h, from)
		}
	}
	if root, ok := v.rootAt(h.Size); ok && v.s.Started && root == h.Root {
		return nil
	}
	newest := v.newest()
	if newest == nil {
		return nil // no head of the server's was checked yet
	}
	ok, err := v.isPrefix(ctx, newest, h.Size, h.Root)
	if err != nil || ok {
		return err
	}
	return v.accuse(ctx, []string{v.s.Head, text}, "there are two logs: the server cannot prove that my head of %d entries continues the head of %d that %s has", newest.Size, h.Size, from)
}

// start begins with the tree of the entries before the first one that is shown: a member who joined
// later gets its hashes, proven against a head.
func (v *Verifier) start(ctx context.Context, size int64) error {
	if v.s.Head == "" {
		if err := v.refresh(ctx, nil); err != nil {
			return err
		}
	}
	edge, err := v.edgeAt(ctx, size)
	if err != nil {
		return err
	}
	h, err := Open(v.s.Head, keyList(v.s.Keys))
	if err != nil {
		return err
	}
	if size > h.Size { // the head is older than the entry
		if err := v.refresh(ctx, nil); err != nil {
			return err
		}
		if h, err = Open(v.s.Head, keyList(v.s.Keys)); err != nil {
			return err
		}
	}
	ok, err := v.isPrefix(ctx, h, size, edge.Root())
	if err != nil {
		return err
	}
	if !ok {
		return v.accuse(ctx, []string{v.s.Head}, "the proof is wrong: the %d entries before the first one that I was shown are not under the signed head", size)
	}
	v.s.Edge, v.s.Started = edge, true
	v.s.Leaves, v.s.Roots = nil, nil
	return nil
}

// edgeAt asks for the edge of the tree of a size.
func (v *Verifier) edgeAt(ctx context.Context, size int64) (Edge, error) {
	if size == 0 {
		return Edge{}, nil
	}
	leaf, proof, err := v.source.Inclusion(ctx, v.s.ConvoID, size, size)
	if err != nil {
		return Edge{}, err
	}
	edge, err := EdgeOf(size, leaf, proof)
	if err != nil {
		return Edge{}, v.accuse(ctx, []string{v.s.Head}, "the proof is wrong: that of entry %d in the tree of %d entries: %v", size, size, err)
	}
	return edge, nil
}

// Skip passes entries that the device does not read: they have expired, or another device of the
// account has read them. The tree of all entries up to seq must begin with what was shown.
func (v *Verifier) Skip(ctx context.Context, seq int64) error {
	if err := v.lied(); err != nil {
		return err
	}
	if seq <= v.s.Edge.Size || !v.s.Started {
		return nil // start takes any beginning
	}
	if err := v.refresh(ctx, nil); err != nil { // the head has what was shown as its beginning
		return err
	}
	v.s.Started = false
	return v.start(ctx, seq)
}

// newGeneration takes the first head of another generation.
func (v *Verifier) newGeneration(ctx context.Context, text string, h *Head) error {
	s := &v.s
	common, err := v.common(ctx, h)
	if err != nil {
		return err
	}
	back := &WentBack{From: max(s.Edge.Size, s.Acked, s.HeadSize), To: h.Size, Common: common, Generation: h.Generation, Evidence: []string{s.Head, text}}
	lost := s.Started && common < s.Edge.Size || h.Size < s.Acked
	if before := v.newest(); before != nil && !lost {
		ok, err := v.isPrefix(ctx, h, before.Size, before.Root)
		if err != nil {
			return err
		}
		lost = !ok
	}
	if err := v.rewind(ctx, text, common); err != nil {
		return err
	}
	s.Generation, s.Head, s.HeadSize, s.Unheaded, s.Silent, s.Doubted = h.Generation, text, h.Size, 0, time.Time{}, false
	s.Since, s.Waiting, s.Acked, s.Tags = h.At, nil, min(s.Acked, common), map[string]Hash{}
	for seq := range s.Sent {
		if seq > common { // lost, or it can stand elsewhere now
			delete(s.Sent, seq)
		}
	}
	v.addBack(*back) // also if nothing was lost
	if err := v.remember(ctx, text, h, ""); err != nil || !lost {
		return err
	}
	return back
}

// common is how many of the entries that were shown are under a head: the largest remembered size
// whose tree it begins with.
func (v *Verifier) common(ctx context.Context, h *Head) (int64, error) {
	s := &v.s
	if !s.Started {
		return 0, nil
	}
	low, high := s.Edge.Size-int64(len(s.Roots)), min(s.Edge.Size, h.Size) // the answer is in (low, high], or low is not known
	ok, err := v.isPrefix(ctx, h, s.Edge.Size, s.Edge.Root())
	if err != nil || ok {
		return s.Edge.Size, err
	}
	for low < high {
		middle := (low + high + 1) / 2
		root, _ := v.rootAt(middle)
		ok, err := v.isPrefix(ctx, h, middle, root)
		if err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle - 1
		}
	}
	if _, ok := v.rootAt(low); !ok || low <= s.Edge.Size-int64(len(s.Roots)) {
		return 0, nil
	}
	return low, nil
}
