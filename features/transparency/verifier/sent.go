package verifier

import (
	"context"
	"errors"
	"fmt"
)

// Sent remembers a message that the server has acknowledged, until the message is shown. If the
// message was shown before the acknowledgement came, Sent compares the two. Errors: as those of
// Entry.
func (v *Verifier) Sent(ctx context.Context, m Seen) error {
	if err := v.lied(); err != nil {
		return err
	}
	early := m.At.Before(v.s.Since)
	if early && v.s.Lost {
		return nil
	}
	if !early {
		v.s.Acked = max(v.s.Acked, m.Seq)
	}
	if m.Seq > v.s.Edge.Size {
		if len(v.s.Sent) < maxSent {
			v.keepSent(m, early)
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
	for _, kind := range []int{Application, Proposal, Commit} { // the caller need not say the kind
		if m.Kind == 0 && (Entry{m.Seq, kind, m.Epoch, m.At, m.Body, tag}).Leaf() == shown {
			return nil
		}
	}
	v.keepSent(m, early)
	err = v.notMine(ctx, m, "entry %d is mine, and was shown as another one", m.Seq)
	if errors.Is(err, ErrReadAgain) && m.Seq <= v.s.Edge.Size {
		if err := v.rewind(ctx, v.s.Head, m.Seq-1); err != nil { // the entry is shown again, and is compared then
			return err
		}
	}
	return err
}

// checkSent compares an entry with what the server has acknowledged to this device.
func (v *Verifier) checkSent(ctx context.Context, m Seen) error {
	for seq, sent := range v.s.Sent {
		if sent.Body == m.Body && seq != m.Seq {
			return v.notMine(ctx, sent, "my message was acknowledged as entry %d and is shown as entry %d", seq, m.Seq)
		}
	}
	sent, ok := v.s.Sent[m.Seq]
	switch {
	case !ok:
		return nil
	case sent.Body != m.Body:
		return v.notMine(ctx, sent, "entry %d is mine, and is shown with other bytes", m.Seq)
	case sent.Sender != m.Sender:
		return v.notMine(ctx, sent, "entry %d is mine, and is shown as one of %s", m.Seq, m.Sender)
	case !sent.At.Equal(m.At):
		return v.notMine(ctx, sent, "entry %d is mine, was acknowledged at %s and is shown with the time %s", m.Seq,
			stamp(sent.At), stamp(m.At))
	}
	v.forgetSent(m.Seq)
	return nil
}

func (v *Verifier) keepSent(m Seen, early bool) {
	v.s.Sent[m.Seq] = m
	delete(v.s.Early, m.Seq)
	if early {
		v.s.Early[m.Seq] = true
	}
}

func (v *Verifier) forgetSent(seq int64) {
	delete(v.s.Sent, seq)
	delete(v.s.Early, seq)
}

// markEarly marks what was acknowledged so far. It does not compare times, because not every clock of
// a service is right.
func (v *Verifier) markEarly() {
	for seq := range v.s.Sent {
		v.s.Early[seq] = true
	}
}

// notMine says that an acknowledged entry is not in the log. If it was acknowledged before the
// generation's first head, the server may have gone back in between: that is a WentBack, once for a
// generation. Otherwise it is doubtful.
func (v *Verifier) notMine(ctx context.Context, sent Seen, format string, args ...any) error {
	s := &v.s
	if !s.Early[sent.Seq] {
		return v.doubt(ctx, nil, format, args...)
	}
	s.Lost = true
	for seq := range s.Early {
		v.forgetSent(seq)
	}
	back := &WentBack{From: sent.Seq, To: s.HeadSize, Common: sent.Seq - 1, Generation: s.Generation,
		Evidence: []string{s.Head}, Why: fmt.Sprintf(format, args...)}
	v.addBack(*back)
	return back
}
