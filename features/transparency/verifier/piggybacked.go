package verifier

import (
	"context"
	"time"
)

// Head checks a head that came with an answer or an event, or the Message that a member has sent
// inside an encrypted message. from names the member; "" means the server. The head can be older or
// newer than what was shown. Errors: *Lie, *WentBack, *OtherKey, ErrReadAgain, ErrNotSigned, and
// errors of the source.
func (v *Verifier) Head(ctx context.Context, text, from string) error {
	if err := v.lied(); err != nil {
		return err
	}
	if len(v.s.Keys) == 0 {
		if err := v.refresh(ctx, nil); err != nil {
			return err
		}
	}
	if from != "" {
		return v.memberHead(ctx, text, from)
	}
	h, err := Open(text, keyList(v.s.Keys))
	switch {
	case err != nil:
		return v.lie([]string{text}, "the server's head is not signed with the key that it had: %v", err)
	case h.Service != v.s.Service || h.ConvoID != v.s.ConvoID:
		return v.lie([]string{text}, "the server gives a head of another log: %s/%s", h.Service, h.ConvoID)
	}
	if h.Generation > v.s.Generation {
		if err := v.refresh(ctx, nil); err != nil { // asks the server for its newest head
			return err
		}
	}
	switch {
	case h.Generation > v.s.Generation:
		return v.lie([]string{v.s.Head, text},
			"the server has given a head of generation %d, and says it is in generation %d", h.Generation, v.s.Generation)
	case h.Generation < v.s.Generation:
		return nil // the head was on its way when the server went back
	}
	if err := v.remember(ctx, text, h, ""); err != nil {
		return err
	}
	v.s.Unheaded = int(max(0, v.s.Edge.Size-h.Size))
	if v.s.Unheaded < AskEvery {
		v.s.Silent = time.Time{}
	}
	return nil
}
