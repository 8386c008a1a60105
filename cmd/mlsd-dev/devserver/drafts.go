package devserver

import (
	"context"
	"encoding/json"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
)

// Draft is the answer of the operations that make a request and do not send it.
type Draft struct {
	Method syntax.NSID     `json:"method"`
	Input  json.RawMessage `json:"input"`
}

// drafted returns a draft that the caller sends itself. The device does not send it.
func drafted(p *client.Phone, d *client.Draft) any {
	Check(p.Save(map[string][]byte{client.OutboxPrefix + d.Call.Key: nil}))
	return Draft{d.Call.Method, d.Call.Body}
}

// forgotten is drafted for a group that the device does not enter: it would have to see the answer.
func forgotten(p *client.Phone, d *client.Draft) any {
	Check(p.Drop(d))
	return Draft{d.Call.Method, d.Call.Body}
}

// draftPublish makes a KeyPackage. The device can join by it.
func draftPublish(_ context.Context, p *client.Phone, _ Operation) any {
	return drafted(p, Must(p.DraftPublish()))
}

func draftCreate(ctx context.Context, p *client.Phone, in Operation) any {
	var packages [][]byte
	if len(in.DIDs) > 0 {
		packages = Must(p.Claim(ctx, "", in.DIDs))
	}
	return forgotten(p, Must(p.DraftCreate(in.DIDs, packages)))
}

// draftInvite stages a commit. The device applies it when it reads it in the log.
func draftInvite(ctx context.Context, p *client.Phone, in Operation) any {
	packages := Must(p.Claim(ctx, in.ConvoID, in.DIDs))
	Check(p.Sync(ctx, in.ConvoID))
	return drafted(p, Must(p.DraftAdd(in.ConvoID, in.DIDs, packages)))
}

// draftCommit is draftInvite for a rotation of the device's keys.
func draftCommit(ctx context.Context, p *client.Phone, in Operation) any {
	Check(p.Sync(ctx, in.ConvoID))
	return drafted(p, Must(p.DraftCommit(in.ConvoID, mlsclient.Change{})))
}

func draftRejoin(ctx context.Context, p *client.Phone, in Operation) any {
	info := Must(p.GroupInfo(ctx, in.ConvoID))
	return forgotten(p, Must(p.DraftRejoin(in.ConvoID, info)))
}
