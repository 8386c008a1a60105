package messages

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/mls"
)

// TestJudge: the judge asks its questions in their order. If several refusals fit a draft, it gets
// the first one.
func TestJudge(t *testing.T) {
	t.Parallel()
	convo, at := uuid.Must(uuid.NewV7()), time.UnixMilli(1700000000000)
	group := []byte("group")
	draft := func(change func(*Draft)) Draft {
		d := Draft{
			ConvoID: convo, GroupID: group, Sender: "did:plc:alice", Key: "k", Kind: mls.ContentTypeApplication, Epoch: 5, Body: []byte("x"),
			Hash: sha256.Sum256([]byte("x")),
		}
		change(&d)
		return d
	}
	hash := sha256.Sum256([]byte("x"))
	here := facts{groupID: group, epoch: 5, lastSeq: 7, membership: current, locked: true}
	with := func(change func(*facts)) facts {
		f := here
		change(&f)
		return f
	}
	recordedAs := func(hash []byte) *recorded {
		return &recorded{seq: 3, at: at, hash: hash, epoch: 4, sameBody: func([]byte) bool { return false }}
	}
	for name, c := range map[string]struct {
		draft Draft
		facts facts
		seq   int64
		err   error
	}{
		"appended":                    {draft(func(*Draft) {}), here, 8, nil},
		"no convo":                    {draft(func(*Draft) {}), facts{}, 0, ErrConvoNotFound},
		"never a member":              {draft(func(*Draft) {}), with(func(f *facts) { f.membership = never }), 0, ErrConvoNotFound},
		"former member":               {draft(func(*Draft) {}), with(func(f *facts) { f.membership = former }), 0, ErrNotMember},
		"former member's retry":       {draft(func(*Draft) {}), with(func(f *facts) { f.membership, f.recorded = former, recordedAs(hash[:]) }), 3, nil},
		"retry after the epoch moved": {draft(func(*Draft) {}), with(func(f *facts) { f.epoch, f.recorded = 9, recordedAs(hash[:]) }), 3, nil},
		"busy":                        {draft(func(*Draft) {}), with(func(f *facts) { f.locked = false }), 0, ErrBusy},
		"busy before the key":         {draft(func(*Draft) {}), with(func(f *facts) { f.locked, f.recorded = false, recordedAs(hash[:]) }), 0, ErrBusy},
		"former member of an unlocked convo": {
			draft(func(*Draft) {}), with(func(f *facts) { f.locked, f.membership = false, former }), 0, ErrNotMember},
		// M3
		"closed": {draft(func(d *Draft) { d.GroupID, d.Epoch = []byte("other"), 1 }), with(func(f *facts) { f.closed = true }), 0, ErrConvoClosed},
		"former member of a closed convo": {
			draft(func(*Draft) {}), with(func(f *facts) { f.closed, f.membership = true, former }), 0, ErrNotMember},
		"retry after the closing": {draft(func(*Draft) {}), with(func(f *facts) { f.closed, f.recorded = true, recordedAs(hash[:]) }), 3, nil},
		"wrong group":             {draft(func(d *Draft) { d.GroupID, d.Epoch = []byte("other"), 1 }), here, 0, ErrWrongGroup},
		"stale epoch":             {draft(func(d *Draft) { d.Epoch = 3 }), here, 0, &EpochMismatchError{Epoch: 3, Current: 5}},
		"in the epoch window": {
			draft(func(d *Draft) { d.Epoch = 4 }), here, 8, nil},
		"epoch ahead": {draft(func(d *Draft) { d.Epoch = 6 }), here, 0, &EpochMismatchError{Epoch: 6, Current: 5}},
	} {
		j := newJudge(1, at)
		r := j.judge(&c.draft, &c.facts)
		if r.Seq != c.seq || fmt.Sprint(r.Err) != fmt.Sprint(c.err) {
			t.Errorf("%s: seq %d, %v; want %d, %v", name, r.Seq, r.Err, c.seq, c.err)
		}
		if appended := len(j.entries) == 1; appended != (c.seq == 8) {
			t.Errorf("%s: %d entries", name, len(j.entries))
		}
	}

	// Drafts of one transaction, in order: the second request of a key is judged by the first one.
	j := newJudge(0, at)
	uri := "at://x"
	first, other := draft(func(*Draft) {}), draft(func(d *Draft) { d.Body, d.Hash, d.EmbedURI = []byte("y"), sha256.Sum256([]byte("y")), &uri })
	next := draft(func(d *Draft) { d.Key = "l" })
	var conflict *idem.ConflictError
	if r := j.judge(&first, &here); r.Err != nil || r.Seq != 8 || r.Replayed {
		t.Errorf("the first: %+v", r)
	}
	if r := j.judge(&first, &here); r.Err != nil || r.Seq != 8 || !r.Replayed {
		t.Errorf("its repetition: %+v", r)
	}
	if r := j.judge(&other, &here); !errors.As(r.Err, &conflict) || !cmp.Equal(conflict.Fields, []string{"ciphertext", "embedUri"}) || !conflict.At.Equal(at) {
		t.Errorf("another request: %+v", r)
	}
	if r := j.judge(&next, &here); r.Err != nil || r.Seq != 9 {
		t.Errorf("another key: %+v", r)
	}
	if len(j.entries) != 2 {
		t.Errorf("%d entries", len(j.entries))
	}
}
