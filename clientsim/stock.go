package clientsim

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
)

// DraftStock journals the publication of several KeyPackages at once.
func (p *Phone) DraftStock(packages []KeyPackage) (*Draft, error) {
	if p.device == nil {
		return nil, ErrKilled
	}
	return p.journal(&Draft{Kind: kindStock, Call: publishManyCall(packages, p.suite, newKey())}, nil)
}

// Stock publishes n fresh one-time KeyPackages, and a last-resort one if it is
// asked for, in as few requests as the contract allows.
func (p *Phone) Stock(ctx context.Context, n int, lastResort bool) error {
	if p.device == nil {
		return ErrKilled
	}
	var packages []KeyPackage
	for range n {
		kp, err := p.device.KeyPackage()
		if err != nil {
			return err
		}
		packages = append(packages, kp)
	}
	if lastResort {
		kp, err := p.device.LastResort()
		if err != nil {
			return err
		}
		packages = append(packages, kp)
	}
	for len(packages) > 0 {
		batch := packages[:min(len(packages), maxStock)]
		packages = packages[len(batch):]
		results, err := p.publishMany(ctx, batch)
		if err != nil {
			return err
		}
		for i, r := range results {
			if r.Status != mlsapi.ResultStatusPublished || show(r.KeyPackageRef) != show(&batch[i].Ref) {
				return fmt.Errorf("%s: publishKeyPackages: KeyPackage %s is %s as %s: %s", p.Name, batch[i].Ref, r.Status,
					show(r.KeyPackageRef), show(r.Message))
			}
		}
	}
	return nil
}

// maxStock is how many KeyPackages one publishKeyPackages takes.
const maxStock = 100

// publishMany publishes KeyPackages and returns what became of each.
func (p *Phone) publishMany(ctx context.Context, packages []KeyPackage) ([]mlsapi.Result, error) {
	d, err := p.DraftStock(packages)
	if err != nil {
		return nil, err
	}
	answer, err := p.Deliver(ctx, d)
	if err != nil {
		return nil, err
	}
	out, err := mlsapi.DecodePublishKeyPackagesOutput(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: publishKeyPackages: %w", p.Name, err)
	}
	if len(out.Results) != len(packages) {
		return nil, fmt.Errorf("%s: publishKeyPackages: %d results for %d KeyPackages", p.Name, len(out.Results), len(packages))
	}
	return out.Results, nil
}

// Stats asks how many KeyPackages the account has left.
func (p *Phone) Stats(ctx context.Context) (*mlsapi.GetKeyPackageStatsOutput, error) {
	answer, err := p.net.Do(ctx, p.Account, statsCall())
	if err != nil {
		return nil, err
	}
	out, err := mlsapi.DecodeGetKeyPackageStatsOutput(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: getKeyPackageStats: %w", p.Name, err)
	}
	return out, nil
}
