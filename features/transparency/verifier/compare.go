package verifier

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// newest returns the newest checked head, or nil.
func (v *Verifier) newest() *Head {
	h, err := Open(v.s.Head, keyList(v.s.Keys))
	if err != nil {
		return nil // no head was checked
	}
	return h
}

// extends checks that one of the server's heads begins with the newest checked head of its
// generation.
func (v *Verifier) extends(ctx context.Context, text string, h *Head) error {
	before := v.newest()
	if before == nil || before.Generation != h.Generation {
		return nil
	}
	ok, err := v.isPrefix(ctx, h, before.Size, before.Root)
	if err != nil || ok {
		return err
	}
	if h.Size < before.Size {
		return v.accuse(ctx, []string{v.s.Head, text}, "the head is stale: it has %d entries, and an earlier one %d", h.Size,
			before.Size)
	}
	return v.accuse(ctx, []string{v.s.Head, text},
		"the server has rewritten the log, or its proof is wrong: its head of %d entries does not begin with the %d of an "+
			"earlier one", h.Size, before.Size)
}

// continues checks that the log of a head begins with the entries that were shown.
func (v *Verifier) continues(ctx context.Context, text string, h *Head) error {
	if !v.s.Started {
		return nil
	}
	ok, err := v.isPrefix(ctx, h, v.s.Edge.Size, v.s.Edge.Root())
	if err != nil || ok {
		return err
	}
	// Two heads can be compared without a request.
	for _, w := range v.s.Waiting {
		if w.Size == h.Size && w.Root != h.Root {
			return v.twoHeads(w, text, h, "")
		}
	}
	return v.doubtUnder(ctx, text, h, []string{v.s.Head}, "%s", v.explain(ctx, h))
}

// isPrefix reports whether the server can prove that the tree of h begins with the tree of the
// given size and root.
func (v *Verifier) isPrefix(ctx context.Context, h *Head, size int64, root Hash) (bool, error) {
	switch {
	case size == 0:
		return true, nil
	case size > h.Size:
		return false, nil
	case size == h.Size:
		return root == h.Root, nil
	}
	proof, err := v.source.Consistency(ctx, v.s.ConvoID, size, h.Size)
	if err != nil {
		return false, err
	}
	return tlog.CheckTree(proof, h.Size, h.Root, size, root) == nil, nil
}

// explain says which of the shown entries is not under a head.
func (v *Verifier) explain(ctx context.Context, h *Head) string {
	const differs = "the log that I was shown is not the one that is signed: "
	first := v.s.Edge.Size - int64(len(v.s.Leaves)) + 1
	for i, shown := range v.s.Leaves {
		seq := first + int64(i)
		if seq > h.Size {
			break
		}
		leaf, proof, err := v.source.Inclusion(ctx, v.s.ConvoID, seq, h.Size)
		if err != nil {
			return fmt.Sprintf("%sthe server gives no proof for entry %d (%v)", differs, seq, err)
		}
		if tlog.CheckRecord(proof, h.Size, h.Root, seq-1, leaf) != nil {
			return fmt.Sprintf("the proof is wrong: that of entry %d in the tree of %d entries", seq, h.Size)
		}
		if leaf != shown {
			return fmt.Sprintf("%sentry %d is the first that differs in its bytes, sender, time or place", differs, seq)
		}
	}
	return fmt.Sprintf("the proof is wrong: it does not lead from the %d entries that I was shown to the signed head "+
		"of %d", v.s.Edge.Size, h.Size)
}

// remember compares a head with the other heads of its generation and with the shown entries. If
// fewer entries were shown than the head has, the second comparison is made later.
func (v *Verifier) remember(ctx context.Context, text string, h *Head, from string) error {
	for _, w := range v.s.Waiting {
		if w.Size == h.Size && w.Root != h.Root {
			return v.twoHeads(w, text, h, from)
		}
	}
	root, ok := v.rootAt(h.Size)
	ok = ok && v.s.Started
	if ok && root == h.Root {
		v.adopt(text, h.Size)
		return nil
	}
	if !ok && h.Size <= v.s.Edge.Size { // too old to compare
		return nil
	}
	v.s.Waiting = append(v.s.Waiting, waiting{text, h.Size, h.Root, from})
	if len(v.s.Waiting) > maxWaiting {
		v.s.Waiting = slices.Delete(v.s.Waiting, 0, 1)
	}
	if ok {
		return v.doubt(ctx, []string{text},
			"there are two logs: the head of %d entries that %s has is not that of the log that I was shown", h.Size,
			nameOf(from))
	}
	return nil
}

// adopt makes a head the newest checked head, if it is newer. The shown entries must begin with it.
func (v *Verifier) adopt(text string, size int64) {
	if size > v.s.HeadSize {
		v.s.Head, v.s.HeadSize = text, size
	}
}

func (v *Verifier) twoHeads(w waiting, text string, h *Head, from string) error {
	return v.lie([]string{w.Text, text}, "there are two heads of %d entries: %s has one, and %s another", h.Size,
		nameOf(w.From), nameOf(from))
}

// meet compares the heads that waited for the entry that was just shown.
func (v *Verifier) meet(ctx context.Context) error {
	for _, w := range v.s.Waiting {
		root, ok := v.rootAt(w.Size)
		if w.Size > v.s.Edge.Size || !ok {
			continue
		}
		if w.Root == root {
			v.adopt(w.Text, w.Size)
			continue
		}
		h, err := Open(w.Text, keyList(v.s.Keys))
		if err != nil {
			return err
		}
		why := v.explain(ctx, h)
		if w.From != "" {
			return v.doubt(ctx, []string{w.Text},
				"there are two logs: the head of %d entries that %s has is not that of the log that I was shown (%s)", w.Size,
				w.From, why)
		}
		return v.doubt(ctx, []string{w.Text}, "%s", why)
	}
	v.s.Waiting = slices.DeleteFunc(v.s.Waiting, func(w waiting) bool { return w.Size <= v.s.Edge.Size })
	return nil
}
