package testbed

import (
	"context"
	"errors"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

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

// WithReceiver runs play with a receiver. Like all With…, it is a step.
func (w *World) WithReceiver(play func(*client.Receiver)) {
	r := Must(client.NewReceiver())
	err := Attempt(func() { play(r) })
	Check(errors.Join(err, r.Close()))
}
