package client

import (
	"bytes"
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
)

// Rotate commits a rotation of this device's keys, until it is acknowledged.
func (p *Phone) Rotate(ctx context.Context, convo string) error {
	return p.Commit(ctx, convo, func() (*Draft, error) { return p.DraftCommit(convo, mlsclient.Change{}) })
}

// AddOwn adds another device of this account to the convo. A claim returns KeyPackages of every
// device of the account, also of this one and of lost ones. AddOwn takes the other device's.
func (p *Phone) AddOwn(ctx context.Context, convo string, other *Phone) (err error) {
	defer Catch(&err)
	packages := Must(p.Claim(ctx, convo, []syntax.DID{p.Account.DID}))
	for _, message := range packages {
		leaf := Must(mlsclient.PackageLeaf(message))
		if bytes.Equal(leaf.SignatureKey, other.Device.SignatureKey()) {
			return p.Commit(ctx, convo, func() (*Draft, error) {
				return p.DraftCommit(convo, mlsclient.Change{Add: [][]byte{message}})
			})
		}
	}
	return fmt.Errorf("%s: of %s: %w", p.Name, other.Name, ErrNoPackages)
}

// RemoveOwn removes another device of this account, known by its signature key. That device is lost
// and will not come back.
func (p *Phone) RemoveOwn(ctx context.Context, convo string, key []byte) error {
	return p.Commit(ctx, convo, func() (_ *Draft, err error) {
		defer Catch(&err)
		group := Must(p.Group(convo))
		for _, leaf := range group.Leaves() {
			if bytes.Equal(leaf.SignatureKey, key) {
				return p.DraftCommit(convo, mlsclient.Change{Remove: []uint32{leaf.Index}})
			}
		}
		return nil, nil // another device's commit removed it
	})
}
