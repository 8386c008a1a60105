package messages

import (
	"errors"
	"testing"
	"time"

	"mlsd/idem"
	"mlsd/internal/serviceauth"
)

// TestVerdicts: judge asks its questions in their order. Every set of reasons against a draft gets
// the answer to the first of them that applies. A reason of which another one makes no sense, such
// as the epoch of a convo that is not locked, is left out.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	spent := errors.New("no quota is left")
	reasons := []struct {
		name  string
		apply func(*Draft, *state)
		want  error
	}{
		{"busy", func(_ *Draft, s *state) { s.convo = nil }, ErrBusy},
		{"token", func(_ *Draft, s *state) { s.isUsed = true }, serviceauth.ErrReplayed},
		{"late token", func(_ *Draft, s *state) { s.isLate = true }, serviceauth.ErrLate},
		{"key, same request", func(d *Draft, s *state) { s.recorded = &recorded{seq: 3, hash: d.Hash[:]} }, nil},
		{"key, other request", func(_ *Draft, s *state) { s.recorded = &recorded{seq: 3} }, &idem.ConflictError{}},
		{"has left", func(_ *Draft, s *state) { s.isMember, s.hasLeft = false, true }, ErrNotMember},
		{"never a member", func(_ *Draft, s *state) { s.isMember, s.hasLeft = false, false }, ErrConvoNotFound},
		{"closed", func(_ *Draft, s *state) { s.convo.isClosed = true }, ErrConvoClosed},
		{"group", func(d *Draft, _ *state) { d.GroupID = []byte("other") }, ErrWrongGroup},
		{"epoch behind", func(d *Draft, _ *state) { d.Epoch = 3 }, &EpochMismatchError{}},
		{"epoch ahead", func(d *Draft, _ *state) { d.Epoch = 6 }, &EpochMismatchError{}},
		{"quota", func(d *Draft, _ *state) { d.refusal = spent }, spent},
	}
	const busy, sameRequest, otherRequest, hasLeft, outsider, behind, ahead = 0, 3, 4, 5, 6, 9, 10
	seen := map[string]bool{}
	for set := range 1 << len(reasons) {
		has := func(i int) bool { return set>>i&1 == 1 }
		if has(sameRequest) && has(otherRequest) || has(hasLeft) && has(outsider) || has(behind) && has(ahead) {
			continue
		}
		d := Draft{GroupID: []byte("group"), Epoch: 4, Hash: [32]byte{1}}
		s := state{convo: &convo{groupID: []byte("group"), epoch: 5}, isMember: true, now: time.Unix(1, 0)}
		first := -1
		for i := range reasons {
			if !has(i) || i == busy {
				continue
			}
			reasons[i].apply(&d, &s)
			if first < 0 {
				first = i
			}
		}
		if has(busy) { // the last to be applied: the others change the convo
			reasons[busy].apply(&d, &s)
			if s.isMember { // nobody else waits for a convo
				first = busy
			}
		}
		got := judge(&d, &s, 1)
		switch {
		case first < 0:
			if got != nil {
				t.Errorf("without a reason: %+v", got)
			}
			seen["appended"] = true
			continue
		case got == nil:
			t.Errorf("%012b: appended, want %s", set, reasons[first].name)
			continue
		}
		seen[reasons[first].name] = true
		want := reasons[first].want
		ok := errors.Is(got.Err, want)
		switch want.(type) {
		case nil:
			ok = got.Err == nil && got.Replayed && got.Seq == 3
		case *idem.ConflictError:
			ok = errors.As(got.Err, new(*idem.ConflictError))
		case *EpochMismatchError:
			var mismatch *EpochMismatchError
			ok = errors.As(got.Err, &mismatch) && *mismatch == EpochMismatchError{Epoch: d.Epoch, Current: 5}
		}
		if !ok {
			t.Errorf("%012b: %+v, want %s", set, got, reasons[first].name)
		}
	}
	if len(seen) != len(reasons)+1 {
		t.Errorf("the sets reach %d verdicts of %d: %v", len(seen), len(reasons)+1, seen)
	}
}
