package verifier

import (
	"context"
)

// doubt is called when something that was shown does not fit. If the server went back meanwhile,
// that is the cause. Otherwise the entries are read again. If they do not fit the second time, the
// server has lied.
func (v *Verifier) doubt(ctx context.Context, evidence []string, format string, args ...any) error {
	text, h, err := v.again(ctx)
	if err != nil {
		return err
	}
	return v.doubtUnder(ctx, text, h, evidence, format, args...)
}

// doubtUnder is doubt if there is a fresh head of the same generation. Entries under an older
// signed head are never read again: if a head does not begin with that head, the server has lied.
func (v *Verifier) doubtUnder(ctx context.Context, text string, h *Head, evidence []string, format string,
	args ...any) error {
	if err := v.extends(ctx, text, h); err != nil {
		return err
	}
	if v.s.Doubted {
		return v.accuse(ctx, append(evidence, text), format, args...)
	}
	common, err := v.common(ctx, h)
	if err != nil {
		return err
	}
	for _, w := range v.s.Waiting {
		if root, ok := v.rootAt(w.Size); ok && w.Size <= common && root != w.Root {
			return v.lie([]string{w.Text, text},
				"there are two logs: the head of %d entries that %s has is not that of the log that I was shown", w.Size,
				nameOf(w.From))
		}
	}
	if err := v.rewind(ctx, text, common); err != nil {
		return err
	}
	v.s.Doubted = true
	v.s.Tags = map[string]Hash{} // an account that was erased and has returned has another tag
	return ErrReadAgain
}

// again requests a head, to see whether the generation is still the same. If it is not, again
// adopts the head, and the error is *WentBack or ErrReadAgain.
func (v *Verifier) again(ctx context.Context) (text string, h *Head, err error) {
	answer, err := v.source.Head(ctx, v.s.ConvoID, nil)
	if err != nil {
		return "", nil, v.unanswered(err)
	}
	if h, err = v.open(answer.Head); err != nil {
		return "", nil, err
	}
	if h.Generation > v.s.Generation {
		if err := v.newGeneration(ctx, answer.Head, h); err != nil {
			return "", nil, err
		}
		return "", nil, ErrReadAgain
	}
	return answer.Head, h, nil
}

// accuse says that the server has lied with a proof, unless the server went back meanwhile. In that
// case the proof is of another log than the head.
func (v *Verifier) accuse(ctx context.Context, evidence []string, format string, args ...any) error {
	if _, _, err := v.again(ctx); err != nil {
		return err
	}
	return v.lie(evidence, format, args...)
}

// rewind goes back to the tree of the first entries that were shown.
func (v *Verifier) rewind(ctx context.Context, text string, size int64) error {
	s := &v.s
	if size == s.Edge.Size || !s.Started {
		return nil
	}
	if size == 0 {
		s.Edge, s.Started, s.Leaves, s.Roots = Edge{}, false, nil, nil
		return nil
	}
	root, _ := v.rootAt(size)
	edge, err := v.edgeAt(ctx, size)
	if err != nil {
		return err
	}
	if edge.Root() != root {
		return v.accuse(ctx, []string{s.Head, text}, "the proof is wrong: that of entry %d in the tree of %d entries", size,
			size)
	}
	keep := int64(len(s.Leaves)) - (s.Edge.Size - size)
	s.Leaves, s.Roots, s.Edge = s.Leaves[:keep], s.Roots[:keep], edge
	return nil
}
