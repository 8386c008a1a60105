package verifier

import (
	"context"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// Seen is an entry as the server shows it.
type Seen struct {
	Seq    int64
	Kind   int
	Epoch  int64 // from the MLS header
	At     time.Time
	Body   Hash
	Sender string
}

func (m Seen) leaf(tag Hash) Hash {
	return Entry{Seq: m.Seq, Kind: m.Kind, Epoch: m.Epoch, At: m.At, Body: m.Body, Tag: tag}.Leaf()
}

// Entry checks an entry that the server shows. Entries must be passed in the order of the log,
// without gaps; an entry that was shown before may be passed again. Errors: *Lie; *WentBack and
// ErrReadAgain, after which the caller passes the entries after Size again; errors of the source,
// after which the caller passes the same entry again.
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
		if !ok { // the verifier no longer remembers it
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

// leafAt returns the leaf of an entry that was shown, if the verifier remembers it.
func (v *Verifier) leafAt(seq int64) (Hash, bool) {
	i := int64(len(v.s.Leaves)) - (v.s.Edge.Size - seq) - 1
	if i < 0 || i >= int64(len(v.s.Leaves)) {
		return Hash{}, false
	}
	return v.s.Leaves[i], true
}

// rootAt returns the root of the tree that ended with an entry, if the verifier remembers it.
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

// includes reports whether the server can prove that the tree of the shown entries includes an
// entry.
func (v *Verifier) includes(ctx context.Context, seq int64, leaf Hash) (bool, error) {
	_, proof, err := v.source.Inclusion(ctx, v.s.ConvoID, seq, v.s.Edge.Size)
	if err != nil {
		return false, err
	}
	return tlog.CheckRecord(proof, v.s.Edge.Size, v.s.Edge.Root(), seq-1, leaf) == nil, nil
}
