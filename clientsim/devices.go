package clientsim

import (
	"bytes"
	"context"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Rotate commits a rotation of this device's keys, until it is acknowledged.
func (p *Phone) Rotate(ctx context.Context, convo string) error {
	return p.commit(ctx, convo, func() (*Draft, error) { return p.DraftCommit(convo, Change{}) })
}

// AddOwn brings the account's other devices into the convo, those that are not
// in it yet.
func (p *Phone) AddOwn(ctx context.Context, convo string) error {
	packages, err := p.Claim(ctx, convo, []syntax.DID{p.Account.DID})
	if err != nil {
		return err
	}
	return p.commit(ctx, convo, func() (*Draft, error) {
		group, err := p.Group(convo)
		if err != nil {
			return nil, err
		}
		missing, err := outside(group, packages)
		if err != nil || len(missing) == 0 {
			return nil, err
		}
		return p.DraftCommit(convo, Change{Add: missing})
	})
}

// outside picks the KeyPackages of devices that are not in the group. A claim
// serves every device of an account, also the one that claims.
func outside(group Group, packages [][]byte) ([][]byte, error) {
	var missing [][]byte
	leaves := group.Leaves()
	for _, message := range packages {
		leaf, err := packageLeaf(message)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(leaves, func(l Leaf) bool { return bytes.Equal(l.SignatureKey, leaf.SignatureKey) }) {
			missing = append(missing, message)
		}
	}
	return missing, nil
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
