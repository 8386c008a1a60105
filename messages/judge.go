package messages

import (
	"bytes"
	"errors"
	"time"

	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/internal/serviceauth"
)

// facts are what the database knows about one draft. They are true until the transaction ends if
// it has locked the draft's convo.
type facts struct {
	groupID    []byte // of the convo; nil: there is no such convo
	epoch      int64  // of the convo
	lastSeq    int64  // of the convo
	membership membership
	locked     bool                // the transaction has locked the convo
	token      serviceauth.TokenID // the draft's, if it has one
	fresh      bool                // the transaction is the first to use the token
	recorded   *recorded           // the message that the log has under the draft's key; nil: none
}

// busy reports whether the draft cannot be judged: it is a member's, and the convo is not locked.
// Only members can append, so only their drafts need the lock.
func (f *facts) busy() bool { return f.membership == current && !f.locked }

type membership int

const (
	never membership = iota
	current
	former
)

// recorded is the message that was appended under a key.
type recorded struct {
	seq   int64
	at    time.Time
	hash  []byte // of the request
	epoch int64
	// sameBody compares the body with another's. It may be nil if the draft has the same hash.
	sameBody            func(body []byte) bool
	embedType, embedURI *string // nil: none
}

// entry is a draft that is appended, with its place in the log.
type entry struct {
	*Draft
	seq int64
}

// judge decides about the drafts of one transaction, in order. It is the only place that decides
// whether a message is appended.
type judge struct {
	at      time.Time                    // created_at of every entry
	window  int64                        // how many epochs behind the convo's a message may be
	used    map[serviceauth.TokenID]bool // tokens of drafts judged so far
	lastSeq map[uuid.UUID]int64          // of the convos that got entries
	written map[requestKey]entry         // entries by key
	entries []entry                      // in order
}

func newJudge(window int64, at time.Time) *judge {
	return &judge{
		at: at, window: window,
		used: map[serviceauth.TokenID]bool{}, lastSeq: map[uuid.UUID]int64{}, written: map[requestKey]entry{},
	}
}

// judge decides about d. The order of the questions is part of the contract: the token comes first,
// and the key comes before the membership and the epoch, so that a retry gets its first answer even
// if these have changed. ErrBusy says that the draft's token is not used up.
func (j *judge) judge(d *Draft, f *facts) Result {
	if f.busy() {
		return Result{Err: ErrBusy}
	}
	if d.Token != nil {
		if !f.fresh || j.used[f.token] { // another draft of the batch may carry the same token
			return Result{Err: serviceauth.ErrReplayed}
		}
		j.used[f.token] = true
	}
	key := d.requestKey()
	if r := f.recorded; r != nil {
		return j.repetition(d, r)
	}
	if e, ok := j.written[key]; ok {
		return j.repetition(d, e.recorded(j.at))
	}
	switch {
	case f.groupID == nil, f.membership == never:
		return Result{Err: ErrConvoNotFound}
	case f.membership == former:
		return Result{Err: ErrNotMember}
	case !bytes.Equal(f.groupID, d.GroupID):
		return Result{Err: ErrWrongGroup}
	case d.Epoch > f.epoch, d.Epoch < f.epoch-j.window:
		return Result{Err: &EpochMismatchError{Epoch: d.Epoch, Current: f.epoch}}
	}
	seq := max(j.lastSeq[d.ConvoID], f.lastSeq) + 1
	j.lastSeq[d.ConvoID] = seq
	e := entry{d, seq}
	j.written[key] = e
	j.entries = append(j.entries, e)
	return Result{Receipt: receipt(d, seq, j.at, false)}
}

// repetition is the result of a draft whose key has appended r.
func (j *judge) repetition(d *Draft, r *recorded) Result {
	if bytes.Equal(r.hash, d.Hash[:]) {
		return Result{Receipt: receipt(d, r.seq, r.at, true)}
	}
	return Result{Err: &idem.ConflictError{Fields: r.differing(d), At: r.at, First: r.hash, Hash: d.Hash[:]}}
}

// recorded is what the log will have of e.
func (e entry) recorded(at time.Time) *recorded {
	return &recorded{
		seq: e.seq, at: at, hash: e.Hash[:], epoch: e.Epoch, embedType: e.EmbedType, embedURI: e.EmbedURI,
		sameBody: func(body []byte) bool { return bytes.Equal(e.Body, body) },
	}
}

// differing returns the names of the input fields in which d differs from r.
func (r *recorded) differing(d *Draft) (fields []string) {
	if !r.sameBody(d.Body) {
		fields = append(fields, "ciphertext")
	}
	if !equal(r.embedType, d.EmbedType) {
		fields = append(fields, "embedType")
	}
	if !equal(r.embedURI, d.EmbedURI) {
		fields = append(fields, "embedUri")
	}
	if r.epoch != d.Epoch {
		fields = append(fields, "epoch")
	}
	return fields
}

func equal(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

func receipt(d *Draft, seq int64, at time.Time, replayed bool) Receipt {
	return Receipt{ID: idOf(d.ConvoID, seq, at), Seq: seq, Epoch: d.Epoch, At: at, Replayed: replayed}
}

// refusal reports whether err is a decision of the judge, and not a failure.
func refusal(err error) bool {
	var (
		mismatch *EpochMismatchError
		conflict *idem.ConflictError
	)
	return errors.Is(err, ErrConvoNotFound) || errors.Is(err, ErrNotMember) || errors.Is(err, ErrWrongGroup) ||
		errors.Is(err, serviceauth.ErrReplayed) || errors.As(err, &mismatch) || errors.As(err, &conflict)
}
