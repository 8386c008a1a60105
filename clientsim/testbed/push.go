package testbed

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// checkPushes reports every call to r that differs from docs/PUSH.md. No call may contain one of
// the secrets.
func (w *World) checkPushes(r *client.Receiver, secrets []string) {
	for _, fault := range r.Faults(secrets) {
		w.Broken("%s", fault)
	}
}

// FetchesWhenPushed lets the phone fetch only when it is pushed to, until it has read a text. seen
// is the number of pushes that it has handled. If no push follows the text, a wake-up was lost.
func (w *World) FetchesWhenPushed(ctx context.Context, p *client.Phone, b *client.PushTarget, convo, text string,
	seen int) error {
	err := xrpc.Until(ctx, client.PushTimeout, func() (bool, error) {
		n := len(b.Pushes())
		if n == seen {
			return false, nil
		}
		seen = n
		if err := p.Sync(ctx, convo); err != nil {
			return false, err
		}
		return p.HasRead(convo, text)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		w.Broken("%s was called %d times, and never after %q was there", p.Name, len(b.Pushes()), text)
		return nil
	}
	return err
}

// NotPushed sends two messages and checks that b gets no push for them. A witness gets a push for
// each message. When the second push has come, a push to b for the first message would have come.
func (w *World) NotPushed(ctx context.Context, b *client.PushTarget, sender, witness *client.Phone,
	at *client.PushTarget, convo, why string) (err error) {
	defer Catch(&err)
	before := len(b.Pushes())
	for i := range 2 {
		seen := len(at.Pushes())
		text := fmt.Sprintf("%s, %d", why, i)
		Check(sender.Send(ctx, convo, text))
		Check(w.FetchesWhenPushed(ctx, witness, at, convo, text, seen))
	}
	if n := len(b.Pushes()); n != before {
		w.Broken("%s: %d pushes came", why, n-before)
	}
	return nil
}

// wordsNotToPush returns the words that no push may contain: the names of convos, groups and
// accounts, message texts, and the beginning of each ciphertext.
func (w *World) wordsNotToPush(ctx context.Context) (_ []string, err error) {
	defer Catch(&err)
	var words []string
	for _, p := range w.phones {
		words = append(words, p.Account.DID.String(), p.Account.DID.Identifier())
	}
	for _, c := range w.Model.Snapshot() {
		words = append(words, c.ID, hex.EncodeToString(c.GroupID), base64.StdEncoding.EncodeToString(c.GroupID))
		for text := range c.Sent {
			words = append(words, text)
		}
		members := w.membersOf(&c)
		if len(members) == 0 {
			continue
		}
		log, _ := Must2(w.wholeLog(ctx, w.Net, members[0].Account, c.ID))
		for _, m := range log {
			words = append(words, m.ID, base64.StdEncoding.EncodeToString(m.Ciphertext)[:24])
		}
	}
	return words, nil
}

// WithReceiver runs play with a receiver, and then checks the calls to it. Like all With…, it is a
// step.
func (w *World) WithReceiver(ctx context.Context, play func(*client.Receiver)) {
	r := Must(client.NewReceiver())
	err := Attempt(func() {
		play(r)
		w.checkPushes(r, Must(w.wordsNotToPush(ctx)))
	})
	Check(errors.Join(err, r.Close()))
}
