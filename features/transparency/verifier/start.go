package verifier

import (
	"context"
)

// start begins with the tree of the entries before the first shown entry. A member who joined later
// gets the hashes of this tree, proven against a head.
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
		return v.accuse(ctx, []string{v.s.Head},
			"the proof is wrong: the %d entries before the first one that I was shown are not under the signed head", size)
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
		return Edge{}, v.accuse(ctx, []string{v.s.Head}, "the proof is wrong: that of entry %d in the tree of %d entries: %v",
			size, size, err)
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
	if err := v.refresh(ctx, nil); err != nil { // the new head begins with what was shown
		return err
	}
	v.s.Started = false
	return v.start(ctx, seq)
}
