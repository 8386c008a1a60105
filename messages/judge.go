package messages

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/internal/serviceauth"
	"mlsd/people/quota"
)

// state is what the verdict on a draft depends on: rows of the database, and what earlier drafts of
// the batch have changed.
type state struct {
	convo     *convo    // nil means that the transaction has not locked it
	isMember  bool      // the sender is a member
	hasLeft   bool      // the sender was a member
	isRequest bool      // the membership is a request that the sender has not accepted
	recorded  *recorded // the message under the draft's key; nil means none
	isUsed    bool      // the draft's token was used
	isLate    bool      // the draft's token expired too long ago to be used
	now       time.Time // the database's time, after the locks were taken
}

// convo is the row of a convo that the transaction has locked.
type convo struct {
	groupID   []byte
	epoch     int64
	lastSeq   int64
	isClosed  bool
	successor uuid.UUID // the successor of a closed convo, if the convo was reset
}

// recorded is a message that was appended under a key.
type recorded struct {
	seq                 int64
	at                  time.Time
	hash                []byte // hash of the request
	epoch               int64
	bodyHash            []byte  // SHA-256; set only if the request hashes differ, because only a conflict needs it
	embedType, embedURI *string // nil if the message has no embed
}

// judge returns the result of a draft that is not appended, or nil if it is to be appended.
//
// The order of the checks is part of the contract. The token comes first. The key comes before the
// membership and the epoch. So a retry gets its first answer even if the membership or the epoch
// has changed, or the convo was closed. The quota comes last, so that only members can learn from a
// convo's quota that the convo exists.
//
// window is how many epochs a message may be behind its convo.
func judge(d *Draft, s *state, window int64) *Result {
	switch {
	case s.isMember && s.convo == nil:
		return &Result{Err: ErrBusy} // another transaction has locked the convo
	case s.isUsed:
		return &Result{Err: serviceauth.ErrReplayed}
	case s.isLate:
		return &Result{Err: serviceauth.ErrLate}
	case s.recorded != nil:
		return s.recorded.repetition(d)
	case s.hasLeft:
		return &Result{Err: ErrNotMember}
	case !s.isMember:
		return &Result{Err: ErrConvoNotFound}
	case s.convo.isClosed:
		return &Result{Err: Closed(s.convo.successor)}
	case !bytes.Equal(d.GroupID, s.convo.groupID):
		return &Result{Err: ErrWrongGroup}
	case d.Epoch > s.convo.epoch || d.Epoch < s.convo.epoch-window:
		return &Result{Err: &EpochMismatchError{Epoch: d.Epoch, Current: s.convo.epoch}}
	case d.refusal != nil:
		return &Result{Err: d.refusal}
	}
	return nil
}

// refused reports whether err is a verdict of judge, and not a failure.
func refused(err error) bool {
	for _, refusal := range []error{
		ErrConvoNotFound, ErrNotMember, ErrConvoClosed, ErrWrongGroup, ErrInvalidAsset, serviceauth.ErrReplayed,
		serviceauth.ErrLate,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return errors.As(err, new(*EpochMismatchError)) || errors.As(err, new(*idem.ConflictError)) ||
		errors.As(err, new(*quota.ExceededError))
}

// repetition returns the result of a draft with the key of r: the first answer, or a conflict.
func (r *recorded) repetition(d *Draft) *Result {
	if bytes.Equal(r.hash, d.Hash[:]) {
		return &Result{Receipt: receipt(d, r.seq, r.at, true)}
	}
	return &Result{Err: &idem.ConflictError{Fields: r.differing(d), At: r.at, First: r.hash, Hash: d.Hash[:]}}
}

// differing returns the names of the input fields in which d differs from r.
func (r *recorded) differing(d *Draft) (fields []string) {
	if body := sha256.Sum256(d.Body); !bytes.Equal(body[:], r.bodyHash) {
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

// judgment is what a transaction decides about its drafts.
type judgment struct {
	results  []Result
	appended []int      // the drafts that are appended, in the order of the batch
	tokens   []tokenUse // ordered by id: all transactions lock tokens in this order
}

// tokenUse is a token that a transaction uses up.
type tokenUse struct {
	id      serviceauth.TokenID
	expires time.Time
}

// judgeAll judges drafts in their order. If an earlier draft with the same key is appended, a later
// draft repeats that draft or conflicts with it. Only the first of several drafts can use a token.
func judgeAll(drafts []Draft, states []state, window int64) judgment {
	j := judgment{results: make([]Result, len(drafts))}
	tokens := make(map[serviceauth.TokenID]bool, len(drafts))
	earlier := make(map[requestKey]int, len(drafts))
	for i := range drafts {
		d, s := &drafts[i], &states[i]
		var token tokenUse
		if d.Token != nil {
			token = tokenUse{d.Token.ID(), d.Token.Expires()}
			s.isUsed = s.isUsed || tokens[token.id]
			s.isLate = s.now.After(token.expires.Add(serviceauth.LateUse))
			tokens[token.id] = true
		}
		if first, ok := earlier[d.requestKey()]; ok && s.recorded == nil {
			s.recorded = recordOf(&drafts[first], &j.results[first])
		}
		if r := judge(d, s, window); r != nil {
			j.results[i] = *r
		} else {
			s.convo.lastSeq++
			j.results[i].Receipt = receipt(d, s.convo.lastSeq, s.now, false)
			j.appended = append(j.appended, i)
			earlier[d.requestKey()] = i
		}
		if d.Token != nil && !s.isUsed && j.results[i].Err != ErrBusy {
			j.tokens = append(j.tokens, token)
		}
	}
	slices.SortFunc(j.tokens, func(a, b tokenUse) int { return bytes.Compare(a.id[:], b.id[:]) })
	return j
}

// recordOf returns the record of d, which the same transaction appends, given its result r.
func recordOf(d *Draft, r *Result) *recorded {
	body := sha256.Sum256(d.Body)
	return &recorded{seq: r.Seq, at: r.At, hash: d.Hash[:], epoch: d.Epoch, bodyHash: body[:], embedType: d.EmbedType,
		embedURI: d.EmbedURI}
}
