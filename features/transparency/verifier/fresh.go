package verifier

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Refresh asks for a head of the whole log, and checks that it continues what was shown. Errors:
// *Lie, *WentBack, ErrReadAgain, and errors of the source.
func (v *Verifier) Refresh(ctx context.Context) error {
	if err := v.lied(); err != nil {
		return err
	}
	return v.refresh(ctx, nil)
}

func (v *Verifier) refresh(ctx context.Context, senders []string) error {
	atLeast := max(v.s.Edge.Size, v.s.Acked)
	answer, err := v.source.Head(ctx, v.s.ConvoID, senders)
	if err != nil {
		return err
	}
	if len(v.s.Keys) == 0 {
		v.s.Keys = answer.Keys
	}
	h, err := v.open(answer.Head)
	if err != nil {
		return err
	}
	v.learn(answer)
	if err := v.fresh(ctx, answer.Head, h, atLeast); err != nil {
		return err
	}
	if len(senders) == 0 && v.s.Edge.Size == h.Size { // not while entries are being read
		v.s.Doubted = false
	}
	for _, one := range answer.Senders {
		if !slices.Contains(senders, one.DID) {
			continue
		}
		if err := v.learnSender(one); err != nil {
			return err
		}
	}
	return nil
}

// ask asks for a head. If the server refuses, entries can still be read, until the refusals are a
// finding.
func (v *Verifier) ask(ctx context.Context) error {
	err := v.refresh(ctx, nil)
	if err == nil || v.s.Lie != nil || errors.As(err, new(*WentBack)) || errors.Is(err, ErrReadAgain) {
		return err
	}
	if err = v.unanswered(err); v.s.Lie != nil {
		return err
	}
	return nil
}

// unanswered counts a question without an answer while entries come. The error is a Lie if there
// have been too many.
func (v *Verifier) unanswered(err error) error {
	if v.s.Silent.IsZero() {
		v.s.Silent = v.now()
	}
	v.s.Unheaded++
	if quiet := v.now().Sub(v.s.Silent); v.s.Unheaded >= SilentAfter && quiet >= SilentFor {
		return v.lie([]string{v.s.Head}, "the server is silent: it shows entries, and has given no head for %s (%v)",
			quiet.Round(time.Second), err)
	}
	return err
}

// open reads a head that the server has given.
func (v *Verifier) open(text string) (*Head, error) {
	h, err := Open(text, keyList(v.s.Keys))
	switch {
	case err != nil:
		return nil, v.lie([]string{text}, "the server's head is not signed with the key that it had: %v", err)
	case h.Service != v.s.Service || h.ConvoID != v.s.ConvoID:
		return nil, v.lie([]string{text}, "the server gives a head of another log: %s/%s", h.Service, h.ConvoID)
	case h.Generation < v.s.Generation && v.s.Head != "":
		return nil, v.lie([]string{v.s.Head, text}, "the server gives a head of generation %d after one of generation %d",
			h.Generation, v.s.Generation)
	}
	return h, nil
}

// learn accepts new keys that have signed a head together with a known key.
func (v *Verifier) learn(answer Answer) {
	for _, key := range answer.Keys {
		if slices.Contains(v.s.Keys, key) {
			continue
		}
		if _, err := Open(answer.Head, keyList([]string{key})); err == nil {
			v.s.Keys = append(v.s.Keys, key)
		}
	}
}

// fresh checks a head that the server has just given.
func (v *Verifier) fresh(ctx context.Context, text string, h *Head, atLeast int64) error {
	s := &v.s
	var back *WentBack
	switch {
	case s.Head == "" && !s.Started:
		s.Generation = h.Generation // the first generation
		if h.Generation > 0 {       // the acknowledgements may be of an earlier generation
			back = v.firstHead(text, h)
			atLeast = s.Acked
		}
	case h.Generation > s.Generation:
		return v.newGeneration(ctx, text, h)
	}
	// Two signed heads can be compared without reading entries. If the earlier head is among what was
	// shown, continues compares it.
	if before := v.newest(); before != nil {
		if root, ok := v.rootAt(before.Size); !ok || !s.Started || root != before.Root || h.Size < before.Size {
			if err := v.extends(ctx, text, h); err != nil {
				return err
			}
		}
	}
	if h.Size < atLeast {
		return v.doubtUnder(ctx, text, h, []string{s.Head},
			"the head is stale: it has %d entries, and the server has shown or acknowledged %d", h.Size, atLeast)
	}
	if err := v.continues(ctx, text, h); err != nil {
		return err
	}
	if err := v.remember(ctx, text, h, ""); err != nil {
		return err
	}
	s.Head, s.HeadSize, s.Unheaded, s.Silent = text, h.Size, 0, time.Time{}
	if back != nil {
		return back
	}
	return nil
}
