package client

import (
	"bytes"
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// DraftPublishMany journals the publication of several KeyPackages at once.
func (p *Phone) DraftPublishMany(packages []mlsclient.KeyPackage) (*Draft, error) {
	if p.Device == nil {
		return nil, ErrKilled
	}
	return p.Journal(&Draft{Kind: kindPublishMany, Call: xrpc.PublishManyCall(packages, p.Suite, xrpc.NewKey())}, nil)
}

// PublishMany publishes n fresh one-time KeyPackages, and a last-resort one if lastResort is set.
// It uses as few requests as the contract allows.
func (p *Phone) PublishMany(ctx context.Context, n int, lastResort bool) (err error) {
	defer Catch(&err)
	if p.Device == nil {
		return ErrKilled
	}
	var packages []mlsclient.KeyPackage
	for range n {
		kp := Must(p.Device.KeyPackage())
		packages = append(packages, kp)
	}
	if lastResort {
		packages = append(packages, Must(p.Device.LastResort()))
	}
	for len(packages) > 0 {
		batch := packages[:min(len(packages), maxPackagesAtOnce)]
		packages = packages[len(batch):]
		results := Must(p.publishMany(ctx, batch))
		for i, r := range results {
			if r.Status != mlsapi.ResultStatusPublished || xrpc.Show(r.KeyPackageRef) != xrpc.Show(&batch[i].Ref) {
				return fmt.Errorf("%s: publishKeyPackages: KeyPackage %s is %s as %s: %s", p.Name, batch[i].Ref, r.Status,
					xrpc.Show(r.KeyPackageRef), xrpc.Show(r.Message))
			}
		}
	}
	return nil
}

// maxPackagesAtOnce is how many KeyPackages one publishKeyPackages takes.
const maxPackagesAtOnce = 100

// publishMany publishes KeyPackages and returns the result of each.
func (p *Phone) publishMany(ctx context.Context, packages []mlsclient.KeyPackage) (_ []mlsapi.Result, err error) {
	defer Catch(&err)
	d := Must(p.DraftPublishMany(packages))
	answer := Must(p.Deliver(ctx, d))
	out, err := xrpc.Decode[mlsapi.PublishKeyPackagesOutput](answer.Body)
	Check(errs.Wrap(err, "%s: publishKeyPackages", p.Name))
	if len(out.Results) != len(packages) {
		return nil, fmt.Errorf("%s: publishKeyPackages: %d results for %d KeyPackages", p.Name, len(out.Results),
			len(packages))
	}
	return out.Results, nil
}

// Stats asks for the account's KeyPackage counts.
func (p *Phone) Stats(ctx context.Context) (*mlsapi.GetKeyPackageStatsOutput, error) {
	return ask[mlsapi.GetKeyPackageStatsOutput](ctx, p, xrpc.StatsCall())
}

// Rotate rotates this device's keys with a commit, and retries until the commit is acknowledged.
func (p *Phone) Rotate(ctx context.Context, convo string) error {
	return p.Commit(ctx, convo, func() (*Draft, error) { return p.DraftCommit(convo, mlsclient.Change{}) })
}

// AddOwn adds another device of this account to the convo. A claim returns KeyPackages of every
// device of the account, also of this device and of lost devices. AddOwn takes the KeyPackage of
// the other device.
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
