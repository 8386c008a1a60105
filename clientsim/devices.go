package clientsim

import (
	"bytes"
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Rotate commits a rotation of this device's keys, until it is acknowledged.
func (p *Phone) Rotate(ctx context.Context, convo string) error {
	return p.commit(ctx, convo, func() (*Draft, error) { return p.DraftCommit(convo, Change{}) })
}

// AddOwn brings another device of this account into the convo. Its KeyPackage is
// one of those that a claim serves, which are of every device of the account,
// also of the one that claims and of those that are lost.
func (p *Phone) AddOwn(ctx context.Context, convo string, other *Phone) error {
	packages, err := p.Claim(ctx, convo, []syntax.DID{p.Account.DID})
	if err != nil {
		return err
	}
	for _, message := range packages {
		leaf, err := packageLeaf(message)
		if err != nil {
			return err
		}
		if bytes.Equal(leaf.SignatureKey, other.device.SignatureKey()) {
			return p.commit(ctx, convo, func() (*Draft, error) {
				return p.DraftCommit(convo, Change{Add: [][]byte{message}})
			})
		}
	}
	return fmt.Errorf("%s: of %s: %w", p.Name, other.Name, ErrNoPackages)
}

// RemoveOwn removes another device of this account, known by its signature
// key: one that is lost and will not come back.
func (p *Phone) RemoveOwn(ctx context.Context, convo string, key []byte) error {
	return p.commit(ctx, convo, func() (*Draft, error) {
		group, err := p.Group(convo)
		if err != nil {
			return nil, err
		}
		for _, leaf := range group.Leaves() {
			if bytes.Equal(leaf.SignatureKey, key) {
				return p.DraftCommit(convo, Change{Remove: []uint32{leaf.Index}})
			}
		}
		return nil, nil // another device's commit has done it
	})
}
