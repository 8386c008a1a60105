package clientsim

import (
	"bytes"
	"context"
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// CreateExisting repeats createConvo for a group that exists: with its own key
// it is a replay; with another key, or from another caller, the group is
// taken, and nothing is said about who is in it.
func CreateExisting(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, mallory := phones[0], phones[2]
	packages, err := alice.Claim(ctx, "", dids(phones[1:2]))
	if err != nil {
		return err
	}
	d, err := alice.DraftCreate(dids(phones[1:2]), packages)
	if err != nil {
		return err
	}
	if _, err := alice.Deliver(ctx, d); err != nil {
		return err
	}
	again, err := w.net.Do(ctx, alice.Account, d.Call)
	if err != nil || !again.Replayed() {
		w.Broken("createConvo retried with its key: replay %t, %v", again.Replayed(), err)
	}
	if err := w.taken(ctx, alice.Account, d, dids(phones)); err != nil {
		return err
	}
	if err := w.taken(ctx, mallory.Account, d, dids(phones)); err != nil {
		return err
	}
	convo := w.model.snapshot()[0].id
	if err := phones[1].Join(ctx, convo); err != nil {
		return err
	}
	return phones[1].Send(ctx, convo, "one convo")
}

// taken creates the draft's group once more, as who and under another key.
func (w *World) taken(ctx context.Context, who *Account, d *Draft, secret []syntax.DID) error {
	in, err := mlsapi.DecodeCreateConvoInput(d.Call.Body)
	if err != nil {
		return err
	}
	key := newKey()
	// Another's GroupInfo is refused for its signer, wherever it stands.
	in.IdempotencyKey, in.GroupInfo = &key, nil
	_, err = w.net.Do(ctx, who, procedure(mlsapi.NSIDCreateConvo, "", key, in))
	var named *CallError
	if !errors.As(err, &named) || named.Name != mlsapi.ErrGroupAlreadyExists || named.Status != 409 {
		w.Broken("createConvo with a group that exists: %v, want GroupAlreadyExists", err)
		return nil
	}
	for _, did := range secret {
		if bytes.Contains([]byte(named.Message), []byte(did)) {
			w.Broken("GroupAlreadyExists tells who is in the group: %q", named.Message)
		}
	}
	return nil
}
