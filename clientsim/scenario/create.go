package scenario

import (
	"bytes"
	"context"
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// CreateExisting repeats createConvo for a group that exists. Under the first key, the call is a
// replay. Under another key, or from another caller, the group is taken, and the answer does not
// say who is in the group.
func CreateExisting(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 3))
	alice, mallory := phones[0], phones[2]
	packages := Must(alice.Claim(ctx, "", testbed.DIDs(phones[1:2])))
	d := Must(alice.DraftCreate(testbed.DIDs(phones[1:2]), packages))
	Must(alice.Deliver(ctx, d))
	again, err := w.Net.Do(ctx, alice.Account, d.Call)
	if err != nil || !again.Replayed() {
		w.Broken("createConvo retried with its key: replay %t, %v", again.Replayed(), err)
	}
	taken(ctx, w, alice.Account, d, testbed.DIDs(phones))
	taken(ctx, w, mallory.Account, d, testbed.DIDs(phones))
	convo := w.Model.Snapshot()[0].ID
	Check(phones[1].Join(ctx, convo))
	Check(phones[1].Send(ctx, convo, "one convo"))
}

// taken creates the draft's group again, as another caller and under another key.
func taken(ctx context.Context, w *testbed.World, who *xrpc.Account, d *client.Draft, secret []syntax.DID) {
	in := Must(mlsapi.DecodeCreateConvoInput(d.Call.Body))
	key := xrpc.NewKey()
	// A GroupInfo of another signer is refused anyway.
	in.IdempotencyKey, in.GroupInfo = &key, nil
	_, err := w.Net.Do(ctx, who, xrpc.Procedure(mlsapi.NSIDCreateConvo, "", key, in))
	var named *xrpc.CallError
	if !errors.As(err, &named) || named.Name != mlsapi.ErrGroupAlreadyExists || named.Status != 409 {
		w.Broken("createConvo with a group that exists: %v, want GroupAlreadyExists", err)
		return
	}
	for _, did := range secret {
		if bytes.Contains([]byte(named.Message), []byte(did)) {
			w.Broken("GroupAlreadyExists says who is in the group: %q", named.Message)
		}
	}
}
