package verifier

import (
	"context"
	"errors"
)

// Sent remembers a message that the server has acknowledged, until the message is shown. If the
// message was shown before the acknowledgement came, Sent compares the two. Errors: as those of
// Entry.
func (v *Verifier) Sent(ctx context.Context, m Seen) error {
	if err := v.lied(); err != nil {
		return err
	}
	if m.At.Before(v.s.Since) {
		return nil // acknowledged before the server went back
	}
	v.s.Acked = max(v.s.Acked, m.Seq)
	if m.Seq > v.s.Edge.Size {
		if len(v.s.Sent) < maxSent {
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
	for _, kind := range []int{Application, Proposal, Commit} { // the caller need not say the kind
		if m.Kind == 0 && (Entry{m.Seq, kind, m.Epoch, m.At, m.Body, tag}).Leaf() == shown {
			return nil
		}
	}
	v.s.Sent[m.Seq] = m
	err = v.doubt(ctx, nil, "entry %d is mine, and was shown as another one", m.Seq)
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
		return v.doubt(ctx, nil, "entry %d is mine, was acknowledged at %s and is shown with the time %s", m.Seq,
			stamp(sent.At), stamp(m.At))
	}
	delete(v.s.Sent, m.Seq)
	return nil
}
