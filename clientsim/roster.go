package clientsim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// ErrNoPackages says that an account has no KeyPackage left to claim.
var ErrNoPackages = errors.New("clientsim: no KeyPackages to claim")

// Claim fetches one KeyPackage of each device of the given accounts. The key
// makes a repetition after a lost answer the same claim.
func (p *Phone) Claim(ctx context.Context, convo string, dids []syntax.DID) ([][]byte, error) {
	return p.claim(ctx, claimCall(dids, p.suite, convo, newKey()))
}

func (p *Phone) claim(ctx context.Context, call Call) ([][]byte, error) {
	out, err := p.claimAny(ctx, call)
	if err != nil {
		return nil, err
	}
	packages := make([][]byte, len(out.KeyPackages))
	for i := range out.KeyPackages {
		packages[i] = out.KeyPackages[i].KeyPackage
	}
	if len(out.Missing) > 0 {
		return nil, fmt.Errorf("%s: of %v: %w", p.Name, out.Missing, ErrNoPackages)
	}
	return packages, nil
}

// claimAny claims what there is. A KeyPackage that says of itself that it is
// for one use goes to one claim.
func (p *Phone) claimAny(ctx context.Context, call Call) (*mlsapi.GetKeyPackagesOutput, error) {
	answer, err := p.net.Do(ctx, p.Account, call)
	if err != nil {
		return nil, err
	}
	out, err := mlsapi.DecodeGetKeyPackagesOutput(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: getKeyPackages: %w", p.Name, err)
	}
	var oneTime [][]byte
	for _, kp := range out.KeyPackages {
		last, err := isLastResort(kp.KeyPackage)
		if err != nil {
			return nil, fmt.Errorf("%s: getKeyPackages: %w", p.Name, err)
		}
		if kp.LastResort == nil || *kp.LastResort != last {
			return nil, fmt.Errorf("%s: getKeyPackages says lastResort %s of a KeyPackage that says %t", p.Name, show(kp.LastResort), last)
		}
		if !last {
			oneTime = append(oneTime, kp.KeyPackage)
		}
	}
	if err := p.model.Claimed(call.Key, oneTime); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return out, nil
}

// Create makes a convo with these members, until it is acknowledged.
func (p *Phone) Create(ctx context.Context, members ...syntax.DID) (string, error) {
	var packages [][]byte
	if len(members) > 0 {
		var err error
		if packages, err = p.Claim(ctx, "", members); err != nil {
			return "", err
		}
	}
	draft, err := p.DraftCreate(members, packages)
	if err != nil {
		return "", err
	}
	answer, err := p.Deliver(ctx, draft)
	if err != nil {
		return "", err
	}
	out, err := mlsapi.DecodeCreateConvoOutput(answer.Body)
	if err != nil {
		return "", err
	}
	return out.ID, nil
}

// Add adds members, until it is acknowledged, and reads the log up to there.
// A commit that lost its epoch to another is made anew from the same
// KeyPackages: nobody has seen its Welcome.
func (p *Phone) Add(ctx context.Context, convo string, dids ...syntax.DID) error {
	packages, err := p.Claim(ctx, convo, dids)
	if err != nil {
		return err
	}
	return p.commit(ctx, convo, func() (*Draft, error) { return p.DraftAdd(convo, dids, packages) })
}

// Remove removes a member: as the creator, or after that member has left.
func (p *Phone) Remove(ctx context.Context, convo string, did syntax.DID) error {
	return p.commit(ctx, convo, func() (*Draft, error) {
		group, err := p.Group(convo)
		if err != nil || !slices.Contains(group.Members(), did.String()) {
			return nil, err // another member's commit has done it
		}
		return p.DraftRemove(convo, did)
	})
}

// commit makes a commit in the present epoch, again and again until one is
// accepted or a draft is no longer wanted.
func (p *Phone) commit(ctx context.Context, convo string, draft func() (*Draft, error)) error {
	for range epochPatience {
		if err := p.Sync(ctx, convo); err != nil {
			return err
		}
		d, err := draft()
		if err != nil || d == nil {
			return err
		}
		_, err = p.Deliver(ctx, d)
		if err == nil {
			return p.Sync(ctx, convo)
		}
		if ErrorName(err) != mlsapi.ErrEpochMismatch {
			return err
		}
	}
	return fmt.Errorf("%s: lost the epoch %d times", p.Name, epochPatience)
}

// Leave leaves a convo.
func (p *Phone) Leave(ctx context.Context, convo string) error {
	draft, err := p.DraftLeave(convo)
	if err != nil {
		return err
	}
	_, err = p.Deliver(ctx, draft)
	return err
}

// Convo asks the server how a convo stands.
func (p *Phone) Convo(ctx context.Context, convo string) (*mlsapi.ConvoView, error) {
	answer, err := p.net.Do(ctx, p.Account, convoCall(convo))
	if err != nil {
		return nil, err
	}
	out, err := mlsapi.DecodeGetConvoOutput(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: getConvo: %w", p.Name, err)
	}
	return &out.Convo, nil
}

// Roster asks the server for the members.
func (p *Phone) Roster(ctx context.Context, convo string) ([]syntax.DID, error) {
	view, err := p.Convo(ctx, convo)
	if err != nil {
		return nil, err
	}
	var dids []syntax.DID
	for i := range view.Members {
		dids = append(dids, view.Members[i].DID)
	}
	return dids, nil
}

// Tidy commits the removal of everyone who has left: any member may, and the
// leaver cannot.
func (p *Phone) Tidy(ctx context.Context, convo string) error {
	for {
		var gone syntax.DID
		err := p.commit(ctx, convo, func() (_ *Draft, err error) {
			if gone, err = p.leaver(ctx, convo); err != nil || gone == "" {
				return nil, err
			}
			return p.DraftRemove(convo, gone)
		})
		if err != nil || gone == "" {
			return err
		}
	}
}

// leaver finds someone who is in the group and no longer in the roster. It
// asks anew for every commit: who left may have been added again meanwhile.
func (p *Phone) leaver(ctx context.Context, convo string) (syntax.DID, error) {
	roster, err := p.Roster(ctx, convo)
	if err != nil {
		return "", err
	}
	group, err := p.Group(convo)
	if err != nil {
		return "", err
	}
	for _, id := range group.Members() {
		if !slices.Contains(roster, syntax.DID(id)) {
			return syntax.DID(id), nil
		}
	}
	return "", nil
}
