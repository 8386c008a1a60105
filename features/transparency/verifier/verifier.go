package verifier

import (
	"context"
	"time"
)

// Bounds of what a Verifier remembers and when it asks.
const (
	// remembered is how many of the newest entries keep their leaves and roots. A head, or an entry
	// that is shown again, is compared with these without asking the server.
	remembered = 512
	// AskEvery is how many entries come without a head before the Verifier asks for one.
	AskEvery = 100
	// SilentAfter is how many entries may come without a head before that is a finding. The Verifier
	// has asked several times by then.
	SilentAfter = 3 * AskEvery
	// SilentFor is how long heads must also be missing before that is a finding.
	SilentFor = time.Minute
	// maxWaiting bounds the heads that wait for the entries under them.
	maxWaiting = 16
	// maxSent bounds the acknowledged messages that are kept until they are shown.
	maxSent = 1024
	// maxBacks bounds Backs, OtherKeys and OtherSenders. The newest of Backs and OtherKeys are kept.
	maxBacks = 64
)

// Source asks the server. Its errors are errors of the network, and refusals by the server.
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

// Verifier checks the log of one convo for one device. It is not safe for concurrent use. After a
// Lie, every method that checks returns the same Lie.
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

// Newest returns the newest checked head, or "" if there is none.
func (v *Verifier) Newest() string { return v.s.Head }

// Size is how many entries were checked.
func (v *Verifier) Size() int64 { return v.s.Edge.Size }

// Backs are the changes of the generation, even those that lost nothing.
func (v *Verifier) Backs() []WentBack { return v.s.Backs }

// OtherSenders are the senders that members were shown otherwise than the device.
func (v *Verifier) OtherSenders() []OtherSender { return v.s.OtherSenders }

// OtherKeys are the members' heads with keys that the device does not know.
func (v *Verifier) OtherKeys() []OtherKey { return v.s.OtherKeys }
