package verifier

import (
	"context"
	"time"
)

// newGeneration takes the first head of another generation.
func (v *Verifier) newGeneration(ctx context.Context, text string, h *Head) error {
	s := &v.s
	common, err := v.common(ctx, h)
	if err != nil {
		return err
	}
	back := &WentBack{From: max(s.Edge.Size, s.Acked, s.HeadSize), To: h.Size, Common: common, Generation: h.Generation,
		Evidence: []string{s.Head, text}}
	lost := s.Started && common < s.Edge.Size || h.Size < s.Acked
	if before := v.newest(); before != nil && !lost {
		ok, err := v.isPrefix(ctx, h, before.Size, before.Root)
		if err != nil {
			return err
		}
		lost = !ok
	}
	if err := v.rewind(ctx, text, common); err != nil {
		return err
	}
	s.Generation, s.Head, s.HeadSize, s.Unheaded, s.Silent, s.Doubted = h.Generation, text, h.Size, 0, time.Time{}, false
	s.Since, s.Waiting, s.Acked, s.Tags = h.At, nil, min(s.Acked, common), map[string]Hash{}
	s.Lost = lost
	v.markEarly()
	for seq := range s.Sent {
		if lost && seq > common { // the entry is lost, or may have another place now
			v.forgetSent(seq)
		}
	}
	v.addBack(*back) // even if nothing was lost
	if err := v.remember(ctx, text, h, ""); err != nil || !lost {
		return err
	}
	return back
}

// firstHead keeps what was acknowledged before the device's first head, which is of a later generation
// than the first one. If the head has fewer entries, some are lost.
func (v *Verifier) firstHead(text string, h *Head) (back *WentBack) {
	s := &v.s
	s.Since = h.At
	v.markEarly()
	if h.Size < s.Acked {
		back = &WentBack{From: s.Acked, To: h.Size, Generation: h.Generation, Evidence: []string{text}}
		v.addBack(*back)
		s.Lost, s.Sent, s.Early = true, map[int64]Seen{}, map[int64]bool{}
	}
	s.Acked = min(s.Acked, h.Size)
	return back
}

// common returns how many of the shown entries are under a head. This is the largest remembered
// size such that the head begins with the tree of that size.
func (v *Verifier) common(ctx context.Context, h *Head) (int64, error) {
	s := &v.s
	if !s.Started {
		return 0, nil
	}
	// the answer is in (low, high], or low is not known
	low, high := s.Edge.Size-int64(len(s.Roots)), min(s.Edge.Size, h.Size)
	ok, err := v.isPrefix(ctx, h, s.Edge.Size, s.Edge.Root())
	if err != nil || ok {
		return s.Edge.Size, err
	}
	for low < high {
		middle := (low + high + 1) / 2
		root, _ := v.rootAt(middle)
		ok, err := v.isPrefix(ctx, h, middle, root)
		if err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle - 1
		}
	}
	if _, ok := v.rootAt(low); !ok || low <= s.Edge.Size-int64(len(s.Roots)) {
		return 0, nil
	}
	return low, nil
}
