package devserver

import (
	"context"
	"encoding/json"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
)

// Draft is the answer of the operations that make a request and do not send it.
type Draft struct {
	Method syntax.NSID     `json:"method"`
	Input  json.RawMessage `json:"input"`
}

// drafted returns a draft that the caller sends itself. The device does not send it.
func drafted(p *client.Phone, d *client.Draft) (any, error) {
	return Draft{d.Call.Method, d.Call.Body}, p.Save(map[string][]byte{client.OutboxPrefix + d.Call.Key: nil})
}

// forgotten is drafted for a group that the device does not enter: it would have to see the answer.
func forgotten(p *client.Phone, d *client.Draft) (any, error) {
	return Draft{d.Call.Method, d.Call.Body}, p.Drop(d)
}

// draftPublish makes a KeyPackage. The device can join by it.
func draftPublish(_ context.Context, p *client.Phone, _ Operation) (any, error) {
	d, err := p.DraftPublish()
	if err != nil {
		return nil, err
	}
	return drafted(p, d)
}

func draftCreate(ctx context.Context, p *client.Phone, in Operation) (any, error) {
	var packages [][]byte
	if len(in.DIDs) > 0 {
		var err error
		if packages, err = p.Claim(ctx, "", in.DIDs); err != nil {
			return nil, err
		}
	}
	d, err := p.DraftCreate(in.DIDs, packages)
	if err != nil {
		return nil, err
	}
	return forgotten(p, d)
}

// draftInvite stages a commit. The device applies it when it reads it in the log.
func draftInvite(ctx context.Context, p *client.Phone, in Operation) (any, error) {
	packages, err := p.Claim(ctx, in.ConvoID, in.DIDs)
	if err != nil {
		return nil, err
	}
	return draftedCommit(ctx, p, in, func() (*client.Draft, error) { return p.DraftAdd(in.ConvoID, in.DIDs, packages) })
}

// draftCommit is draftInvite for a rotation of the device's keys.
func draftCommit(ctx context.Context, p *client.Phone, in Operation) (any, error) {
	return draftedCommit(ctx, p, in,
		func() (*client.Draft, error) { return p.DraftCommit(in.ConvoID, mlsclient.Change{}) })
}

func draftedCommit(ctx context.Context, p *client.Phone, in Operation, draft func() (*client.Draft, error)) (any,
	error) {
	if err := p.Sync(ctx, in.ConvoID); err != nil {
		return nil, err
	}
	d, err := draft()
	if err != nil {
		return nil, err
	}
	return drafted(p, d)
}

func draftRejoin(ctx context.Context, p *client.Phone, in Operation) (any, error) {
	info, err := p.GroupInfo(ctx, in.ConvoID)
	if err != nil {
		return nil, err
	}
	d, err := p.DraftRejoin(in.ConvoID, info)
	if err != nil {
		return nil, err
	}
	return forgotten(p, d)
}
