package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

// This file fetches and confirms Welcomes, publishes and claims KeyPackages, and changes consent.

// welcomeOf names the Welcome of a listener's device in a convo.
func welcomeOf(r *convo, p *listener) string { return r.id + " " + p.DID.String() }

// welcome fetches a Welcome of a random listener, or confirms one. The listener may have none.
func (l *load) welcome(ctx context.Context, rng *rand.Rand) error {
	r, p := l.someone(rng)
	if p == nil {
		return nil
	}
	call, in := xrpc.WelcomeCall(r.id, p.pkg.Ref), welcomeInput{do: fetch}
	if rng.IntN(3) == 0 {
		call, in = xrpc.ConfirmCall(r.id, p.pkg.Ref, true, ""), welcomeInput{do: confirm}
	}
	_, err := l.calls.watch(ctx, rng, p.Account, call, func(begun int64, answer xrpc.Answer, err error) {
		l.keepWelcome(welcomeOf(r, p), begun, in, answer, err)
	})
	if _, ok := welcomeRefusal(err); ok {
		return nil
	}
	return l.unexpected(err)
}

// invited is a device that was added to a convo.
type invited struct {
	to     *convo
	device *listener
}

// someone returns a convo and one of its listeners: mostly one of those that were added last, whose
// Welcome may still wait. nil: the roster of the convo does not change.
func (l *load) someone(rng *rand.Rand) (*convo, *listener) {
	const last = 12
	l.mu.RLock()
	recent := l.invited[max(0, len(l.invited)-last):]
	l.mu.RUnlock()
	if len(recent) > 0 && rng.IntN(4) > 0 {
		i := recent[rng.IntN(len(recent))]
		return i.to, i.device
	}
	r := l.some(rng)
	if r.steady {
		return r, nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	candidates := slices.Concat(r.members, r.nonMembers)
	return r, candidates[rng.IntN(len(candidates))]
}

// welcomeRefusal says what a refusal means for a Welcome.
func welcomeRefusal(err error) (welcomeState, bool) {
	switch xrpc.ErrorName(err) {
	case mlsapi.ErrNotMember, mlsapi.ErrConvoNotFound, mlsapi.ErrWelcomeNotFound:
		return welcomeState{state: none}, true
	case mlsapi.ErrWelcomeConsumed:
		return welcomeState{state: consumed}, true
	}
	return welcomeState{}, false
}

// keepWelcome keeps an attempt to fetch or confirm a Welcome.
func (l *load) keepWelcome(object string, begun int64, in welcomeInput, answer xrpc.Answer, err error) {
	if state, ok := welcomeRefusal(err); ok {
		l.welcomes.add(object, begun, in, state)
		if in.do == fetch {
			// A server that loses the answer to the COMMIT fetches again. A confirmation in between
			// has then consumed what the first time fetched.
			l.welcomes.add(object, begun, in, welcomeState{state: maybe})
		}
		return
	}
	if err != nil {
		l.welcomes.addUntil(object, begun, never, in, welcomeState{state: maybe})
		return
	}
	if in.do == confirm {
		l.welcomes.add(object, begun, in, welcomeState{state: consumed})
		return
	}
	out, err := xrpc.Decode[mlsapi.GetWelcomeOutput](answer.Body)
	if err != nil {
		l.w.Broken("%v", err)
		return
	}
	l.welcomes.add(object, begun, in, welcomeState{fetched, history.DigestOf(out.Welcome)})
}

// publish publishes some one-time KeyPackages, unless the account has as many as it may have.
func (l *load) publish(ctx context.Context, rng *rand.Rand) error {
	s := l.stocks[rng.IntN(len(l.stocks))]
	packages, err := s.make(4)
	if err != nil {
		return err
	}
	begun := l.packages.now()
	out, err := ask[mlsapi.PublishKeyPackagesOutput](ctx, l.calls, rng, s.Account, xrpc.PublishManyCall(packages, l.w.Suite, xrpc.NewKey()))
	if err != nil {
		return l.unexpected(err)
	}
	for i, result := range out.Results {
		if result.Error != nil && *result.Error == mlsapi.ErrTooManyKeyPackages {
			continue
		}
		if result.Status != mlsapi.ResultStatusPublished {
			l.w.Broken("a new KeyPackage is %s: %s", result.Status, xrpc.Show(result.Message))
			continue
		}
		l.packages.add(packages[i].Ref, begun, publish, nil)
	}
	return nil
}

// make makes one-time KeyPackages.
func (s *stock) make(n int) (packages []mlsclient.KeyPackage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		kp, err := s.device.KeyPackage()
		if err != nil {
			return nil, err
		}
		packages = append(packages, kp)
	}
	return packages, nil
}

// claim claims a KeyPackage. There may be none, and a budget can be used up.
func (l *load) claim(ctx context.Context, rng *rand.Rand) error {
	s, by := l.stocks[rng.IntN(len(l.stocks))], l.writers[rng.IntN(len(l.writers))]
	if rng.IntN(2) == 0 {
		by = l.listeners[rng.IntN(len(l.listeners))].Account
	}
	begun, key := l.packages.now(), xrpc.NewKey()
	out, err := ask[mlsapi.GetKeyPackagesOutput](ctx, l.calls, rng, by, xrpc.ClaimCall([]syntax.DID{s.DID}, l.w.Suite, "", key))
	if err != nil {
		return l.unexpected(err)
	}
	for _, kp := range out.KeyPackages {
		if kp.KeyPackageRef == nil {
			l.w.Broken("a claimed KeyPackage without a KeyPackageRef")
			continue
		}
		l.packages.add(*kp.KeyPackageRef, begun, claim, key)
	}
	return nil
}

// setConsent sets an invitation policy, or blocks or unblocks an account.
func (l *load) setConsent(ctx context.Context, rng *rand.Rand) error {
	who := l.consenter[rng.IntN(len(l.consenter))]
	object, value, call := policyOf(who), "", xrpc.Call{}
	if rng.IntN(2) == 0 {
		value = policies()[rng.IntN(len(policies()))]
		call = xrpc.SetPolicyCall(value, xrpc.NewKey())
	} else {
		object, value, call = blockOf(who), "blocked", xrpc.BlockCall(l.stocks[0].DID, xrpc.NewKey())
		if rng.IntN(2) == 0 {
			value, call = "free", xrpc.UnblockCall(l.stocks[0].DID, xrpc.NewKey())
		}
	}
	begun := l.consents.now()
	if _, err := l.calls.do(ctx, rng, who, call); err != nil {
		return l.unexpected(err)
	}
	l.consents.add(object, begun, registerInput{value}, "")
	return nil
}

// clashConsent sets different policies with the same idempotency key at once. At most one of them
// is set.
func (l *load) clashConsent(ctx context.Context, rng *rand.Rand) error {
	who, key, begun := l.consenter[rng.IntN(len(l.consenter))], xrpc.NewKey(), l.consents.now()
	var all sync.WaitGroup
	policies := policies()
	errs := make([]error, len(policies))
	for i, policy := range policies {
		own := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		all.Go(func() {
			_, err := l.calls.do(ctx, own, who, xrpc.SetPolicyCall(policy, key))
			switch {
			case err == nil:
				l.consents.add(policyOf(who), begun, registerInput{policy}, "")
			case xrpc.ErrorName(err) != mlsapi.ErrIdempotencyConflict:
				errs[i] = l.unexpected(err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// policies are all invitation policies.
func policies() []string {
	return []string{
		mlsapi.SetInvitationPolicyInputPolicyEveryone, mlsapi.SetInvitationPolicyInputPolicyShared, mlsapi.SetInvitationPolicyInputPolicyNobody,
	}
}

func policyOf(who *xrpc.Account) string { return "policy of " + who.DID.String() }

func blockOf(who *xrpc.Account) string { return "block by " + who.DID.String() }

// readConsent reads what setConsent sets.
func (l *load) readConsent(ctx context.Context, rng *rand.Rand) error {
	who := l.consenter[rng.IntN(len(l.consenter))]
	begun := l.consents.now()
	if rng.IntN(2) == 0 {
		out, err := ask[mlsapi.GetInvitationPolicyOutput](ctx, l.calls, rng, who, xrpc.PolicyCall())
		if err != nil {
			return l.unexpected(err)
		}
		l.consents.add(policyOf(who), begun, registerInput{}, out.Policy)
		return nil
	}
	out, err := ask[mlsapi.GetBlocksOutput](ctx, l.calls, rng, who, xrpc.BlocksCall())
	if err != nil {
		return l.unexpected(err)
	}
	value := "free"
	if len(out.Blocks) > 0 {
		value = "blocked"
	}
	l.consents.add(blockOf(who), begun, registerInput{}, value)
	return nil
}
