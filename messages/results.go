package messages

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"mlsd/idem"
	"mlsd/internal/quota"
	"mlsd/internal/serviceauth"
)

// Verdicts of append.sql about a draft.
const (
	verdictAppend     = "append"
	verdictSecond     = "second" // an earlier draft of the batch is appended under the same key
	verdictRepeated   = "repeated"
	verdictConflict   = "conflict"
	verdictBusy       = "busy" // a member's draft, and the convo is not locked: nothing was decided
	verdictTokenUsed  = "token used"
	verdictNoConvo    = "no convo"
	verdictNotMember  = "not member"
	verdictClosed     = "closed"
	verdictWrongGroup = "wrong group"
	verdictWrongEpoch = "wrong epoch"
	verdictOverQuota  = "over quota"
)

// ruling is what append.sql says about one draft.
type ruling struct {
	verdict    string
	seq        int64     // that the draft gets
	at         time.Time // its created_at
	convoEpoch int64
	recorded   recorded // if the verdict is repeated or conflict
}

// recorded is a message that was appended under a key.
type recorded struct {
	seq                 int64
	at                  time.Time
	hash                []byte // of the request
	epoch               int64
	bodyHash            []byte  // SHA-256
	embedType, embedURI *string // nil: none
}

// scan reads a row of append.sql.
func (r *ruling) scan(rows pgx.Rows) error {
	var convoEpoch, seq, epoch pgtype.Int8
	var at pgtype.Timestamptz
	err := rows.Scan(nil, &r.verdict, nil, nil, &convoEpoch, &seq, &at,
		&r.recorded.hash, &epoch, &r.recorded.bodyHash, &r.recorded.embedType, &r.recorded.embedURI)
	r.convoEpoch, r.recorded.seq, r.recorded.at, r.recorded.epoch = convoEpoch.Int64, seq.Int64, at.Time, epoch.Int64
	return err
}

// resultsOf turns rulings into the results of their drafts.
func resultsOf(drafts []Draft, rulings []ruling) ([]Result, error) {
	results := make([]Result, len(drafts))
	for i := range drafts {
		d, r := &drafts[i], &rulings[i]
		switch r.verdict {
		case verdictAppend:
			results[i] = Result{Receipt: receipt(d, r.seq, r.at, false)}
		case verdictSecond:
			results[i] = firstOf(drafts[:i], rulings, d.requestKey()).repetition(d)
		case verdictRepeated:
			results[i] = Result{Receipt: receipt(d, r.recorded.seq, r.recorded.at, true)}
		case verdictConflict:
			results[i] = r.recorded.repetition(d)
		case verdictBusy:
			results[i].Err = ErrBusy
		case verdictTokenUsed:
			results[i].Err = serviceauth.ErrReplayed
		case verdictNoConvo:
			results[i].Err = ErrConvoNotFound
		case verdictNotMember:
			results[i].Err = ErrNotMember
		case verdictClosed:
			results[i].Err = ErrConvoClosed
		case verdictWrongGroup:
			results[i].Err = ErrWrongGroup
		case verdictWrongEpoch:
			results[i].Err = &EpochMismatchError{Epoch: d.Epoch, Current: r.convoEpoch}
		case verdictOverQuota:
			results[i].Err = d.overQuota
		default:
			return nil, fmt.Errorf("unknown verdict %q", r.verdict)
		}
	}
	return results, nil
}

// firstOf returns the message of the first of drafts that is appended under key. There is one.
func firstOf(drafts []Draft, rulings []ruling, key requestKey) *recorded {
	i := 0
	for rulings[i].verdict != verdictAppend || drafts[i].requestKey() != key {
		i++
	}
	d, r := &drafts[i], &rulings[i]
	body := sha256.Sum256(d.Body)
	return &recorded{seq: r.seq, at: r.at, hash: d.Hash[:], epoch: d.Epoch, bodyHash: body[:], embedType: d.EmbedType, embedURI: d.EmbedURI}
}

// repetition is the result of a draft whose key has appended r.
func (r *recorded) repetition(d *Draft) Result {
	if bytes.Equal(r.hash, d.Hash[:]) {
		return Result{Receipt: receipt(d, r.seq, r.at, true)}
	}
	return Result{Err: &idem.ConflictError{Fields: r.differing(d), At: r.at, First: r.hash, Hash: d.Hash[:]}}
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

// refusal reports whether err is a decision of append.sql, and not a failure.
func refusal(err error) bool {
	var (
		mismatch *EpochMismatchError
		conflict *idem.ConflictError
		exceeded *quota.ExceededError
	)
	return errors.Is(err, ErrConvoNotFound) || errors.Is(err, ErrNotMember) || errors.Is(err, ErrWrongGroup) || errors.Is(err, ErrConvoClosed) ||
		errors.Is(err, ErrInvalidAsset) ||
		errors.Is(err, serviceauth.ErrReplayed) || errors.As(err, &mismatch) || errors.As(err, &conflict) || errors.As(err, &exceeded)
}
