package clientsim

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"mlsd/api/mlsapi"
)

// deviceID names the phone as its KeyPackages do.
func (p *Phone) deviceID() string {
	sum := sha256.Sum256(p.device.SignatureKey())
	return hex.EncodeToString(sum[:])
}

// registered takes the answer to registerPushTarget.
func (p *Phone) registered(b *Bell, call Call, answer Answer) (secret string, err error) {
	out, err := mlsapi.DecodeRegisterPushTargetOutput(answer.Body)
	if err != nil {
		return "", fmt.Errorf("%s: registerPushTarget: %w", p.Name, err)
	}
	if out.Secret == nil || len(*out.Secret) != 43 {
		return "", fmt.Errorf("%s: registerPushTarget: no secret in %q", p.Name, answer.Body)
	}
	p.model.Settled(p.Account, call)
	b.signedWith(*out.Secret)
	return *out.Secret, nil
}

// Register has the phone's device told at b, and returns what its calls are
// signed with.
func (p *Phone) Register(ctx context.Context, b *Bell) (secret string, err error) {
	call := registerCall(b.Device, b.URL, newKey())
	answer, err := p.net.Do(ctx, p.Account, call)
	if err != nil {
		return "", err
	}
	return p.registered(b, call, answer)
}

// Unregister has the device told no more, and reports whether it was.
func (p *Phone) Unregister(ctx context.Context, b *Bell) (removed bool, err error) {
	call := unregisterCall(b.Device, newKey())
	answer, err := p.net.Do(ctx, p.Account, call)
	if err != nil {
		return false, err
	}
	out, err := mlsapi.DecodeUnregisterPushTargetOutput(answer.Body)
	if err != nil {
		return false, fmt.Errorf("%s: unregisterPushTarget: %w", p.Name, err)
	}
	p.model.Settled(p.Account, call)
	return out.Removed, nil
}

// bellFor registers the phone's device at a place of its own.
func (p *Phone) bellFor(ctx context.Context, r *Receiver) (*Bell, error) {
	b := r.Bell(p.deviceID())
	_, err := p.Register(ctx, b)
	return b, err
}

// read reports whether the phone has read a text.
func (p *Phone) read(convo, text string) (bool, error) {
	inbox, err := p.Inbox(convo)
	return slices.ContainsFunc(inbox, func(i Item) bool { return i.Text == text }), err
}

// woken lets the phone fetch when it is called, and at no other time, until it
// has read a text. seen is how many calls it has acted upon: a call that came
// before the text, and none after it, is a wake-up that was lost.
func (w *World) woken(ctx context.Context, p *Phone, b *Bell, convo, text string, seen int) error {
	err := until(ctx, pushPatience, func() (bool, error) {
		n := len(b.Rings())
		if n == seen {
			return false, nil
		}
		seen = n
		if err := p.Sync(ctx, convo); err != nil {
			return false, err
		}
		return p.read(convo, text)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		w.Broken("%s was called %d times, and never after %q was there", p.Name, len(b.Rings()), text)
		return nil
	}
	return err
}

// hushed: b is not called for two messages that a witness is woken by. The
// first call that is made for the one shows before the other has been heard.
func (w *World) hushed(ctx context.Context, b *Bell, sender, witness *Phone, at *Bell, convo, why string) error {
	before := len(b.Rings())
	for i := range 2 {
		seen := len(at.Rings())
		text := fmt.Sprintf("%s, %d", why, i)
		if err := sender.Send(ctx, convo, text); err != nil {
			return err
		}
		if err := w.woken(ctx, witness, at, convo, text, seen); err != nil {
			return err
		}
	}
	if n := len(b.Rings()); n != before {
		w.Broken("%s: %d calls came all the same", why, n-before)
	}
	return nil
}

// unspoken are the words that no push may have in it: the names of convos,
// groups and accounts, what was said, and the beginning of each ciphertext.
func (w *World) unspoken(ctx context.Context) ([]string, error) {
	var words []string
	for _, p := range w.phones {
		words = append(words, p.Account.DID.String(), p.Account.DID.Identifier())
	}
	for _, c := range w.model.snapshot() {
		words = append(words, c.id, hex.EncodeToString(c.groupID), base64.StdEncoding.EncodeToString(c.groupID))
		for text := range c.sent {
			words = append(words, text)
		}
		members := w.membersOf(&c)
		if len(members) == 0 {
			continue
		}
		log, _, err := w.pages(ctx, members[0], func(last *mlsapi.MessageView) Call {
			if last == nil {
				return messagesCall(c.id, "all", 0, 100)
			}
			return messagesCall(c.id, "all", last.Seq, 100)
		})
		if err != nil {
			return nil, err
		}
		for _, m := range log {
			words = append(words, m.ID, base64.StdEncoding.EncodeToString(m.Ciphertext)[:24])
		}
	}
	return words, nil
}

// withReceiver plays a story with a receiver, and judges what it was called with.
func (w *World) withReceiver(ctx context.Context, story func(*Receiver) error) error {
	r, err := NewReceiver()
	if err != nil {
		return err
	}
	if err := story(r); err != nil {
		return errors.Join(err, r.Close())
	}
	words, err := w.unspoken(ctx)
	if err == nil {
		w.checkPushes(r, words)
	}
	return errors.Join(err, r.Close())
}
