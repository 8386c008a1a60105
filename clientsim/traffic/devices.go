package traffic

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// This file fetches and confirms Welcomes, publishes and claims KeyPackages, and changes consent.

// welcomeOf names the Welcome of a listener's device in a convo.
func welcomeOf(r *Convo, p *Listener) string { return r.ID + " " + p.DID.String() }

// welcome fetches a Welcome of a random listener, or confirms one. The listener may have none.
func (t *Traffic) welcome(ctx context.Context, rng *rand.Rand) {
	r, p := t.someone(rng)
	if p == nil {
		return
	}
	call, in := xrpc.WelcomeCall(r.ID, p.pkg.Ref), welcomeInput{do: fetch}
	if rng.IntN(3) == 0 {
		call, in = xrpc.ConfirmCall(r.ID, p.pkg.Ref, true, ""), welcomeInput{do: confirm}
	}
	_, err := t.calls.watch(ctx, rng, p.Account, call, func(begun int64, answer xrpc.Answer, err error) {
		t.keepWelcome(welcomeOf(r, p), begun, in, answer, err)
	})
	if _, ok := welcomeRefusal(err); !ok {
		Check(err)
	}
}

// invited is a device that was added to a convo.
type invited struct {
	to     *Convo
	device *Listener
}

// someone returns a convo and one of its listeners, mostly a listener that was added lately, whose
// Welcome may still wait. The listener is nil if the roster of the convo does not change.
func (t *Traffic) someone(rng *rand.Rand) (*Convo, *Listener) {
	const last = 12
	t.mu.RLock()
	recent := t.invited[max(0, len(t.invited)-last):]
	t.mu.RUnlock()
	if len(recent) > 0 && rng.IntN(4) > 0 {
		i := recent[rng.IntN(len(recent))]
		return i.to, i.device
	}
	r := t.some(rng)
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

// keepWelcome records an attempt to fetch or confirm a Welcome.
func (t *Traffic) keepWelcome(object string, begun int64, in welcomeInput, answer xrpc.Answer, err error) {
	if state, ok := welcomeRefusal(err); ok {
		t.welcomes.add(object, begun, in, state)
		if in.do == fetch {
			// A server that loses the answer to the COMMIT fetches again. In between, a confirmation can
			// have consumed the Welcome of the first fetch.
			t.welcomes.add(object, begun, in, welcomeState{state: maybe})
		}
		return
	}
	if err != nil {
		t.welcomes.addUntil(object, begun, never, in, welcomeState{state: maybe})
		return
	}
	if in.do == confirm {
		t.welcomes.add(object, begun, in, welcomeState{state: consumed})
		return
	}
	out, err := xrpc.Decode[mlsapi.GetWelcomeOutput](answer.Body)
	if err != nil {
		t.w.Broken("%v", err)
		return
	}
	t.welcomes.add(object, begun, in, welcomeState{fetched, history.DigestOf(out.Welcome)})
}

// publish publishes some one-time KeyPackages, unless the account has as many as it may have.
func (t *Traffic) publish(ctx context.Context, rng *rand.Rand) {
	s := t.stocks[rng.IntN(len(t.stocks))]
	packages := s.make(4)
	begun := t.packages.now()
	out := Must(ask[mlsapi.PublishKeyPackagesOutput](ctx, t.calls, rng, s.Account,
		xrpc.PublishManyCall(packages, t.w.Suite, xrpc.NewKey())))
	for i, result := range out.Results {
		if result.Error != nil && *result.Error == mlsapi.ErrTooManyKeyPackages {
			continue
		}
		if result.Status != mlsapi.ResultStatusPublished {
			t.w.Broken("a new KeyPackage is %s: %s", result.Status, xrpc.Show(result.Message))
			continue
		}
		t.packages.add(packages[i].Ref, begun, publish, nil)
	}
}

// make makes one-time KeyPackages.
func (s *stock) make(n int) (packages []mlsclient.KeyPackage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		packages = append(packages, Must(s.device.KeyPackage()))
	}
	return packages
}

// claim claims a KeyPackage. The claim can fail: no KeyPackage is left, or a budget is used up.
func (t *Traffic) claim(ctx context.Context, rng *rand.Rand) {
	s, by := t.stocks[rng.IntN(len(t.stocks))], t.Writers[rng.IntN(len(t.Writers))]
	if rng.IntN(2) == 0 {
		by = t.Listeners[rng.IntN(len(t.Listeners))].Account
	}
	begun, key := t.packages.now(), xrpc.NewKey()
	out := Must(ask[mlsapi.GetKeyPackagesOutput](ctx, t.calls, rng, by,
		xrpc.ClaimCall([]syntax.DID{s.DID}, t.w.Suite, "", key)))
	for _, kp := range out.KeyPackages {
		if kp.KeyPackageRef == nil {
			t.w.Broken("a claimed KeyPackage without a KeyPackageRef")
			continue
		}
		t.packages.add(*kp.KeyPackageRef, begun, claim, key)
	}
}

// setConsent sets an invitation policy, or blocks or unblocks an account.
func (t *Traffic) setConsent(ctx context.Context, rng *rand.Rand) {
	who := t.consenter[rng.IntN(len(t.consenter))]
	object, value, call := policyOf(who), "", xrpc.Call{}
	if rng.IntN(2) == 0 {
		value = policies()[rng.IntN(len(policies()))]
		call = xrpc.SetPolicyCall(value, xrpc.NewKey())
	} else {
		object, value, call = blockOf(who), "blocked", xrpc.BlockCall(t.stocks[0].DID, xrpc.NewKey())
		if rng.IntN(2) == 0 {
			value, call = "free", xrpc.UnblockCall(t.stocks[0].DID, xrpc.NewKey())
		}
	}
	begun := t.consents.now()
	Must(t.calls.do(ctx, rng, who, call))
	t.consents.add(object, begun, registerInput{value}, "")
}

// clashConsent sets different policies with the same idempotency key at once. The server accepts at
// most one of them.
func (t *Traffic) clashConsent(ctx context.Context, rng *rand.Rand) {
	who, key, begun := t.consenter[rng.IntN(len(t.consenter))], xrpc.NewKey(), t.consents.now()
	var all []func()
	for i, policy := range policies() {
		own := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		all = append(all, func() {
			_, err := t.calls.do(ctx, own, who, xrpc.SetPolicyCall(policy, key))
			switch {
			case err == nil:
				t.consents.add(policyOf(who), begun, registerInput{policy}, "")
			case xrpc.ErrorName(err) != mlsapi.ErrIdempotencyConflict:
				Check(t.try(func() { Check(err) }))
			}
		})
	}
	AtOnce(all...)
}

// policies returns all invitation policies.
func policies() []string {
	return []string{
		mlsapi.SetInvitationPolicyInputPolicyEveryone, mlsapi.SetInvitationPolicyInputPolicyShared,
		mlsapi.SetInvitationPolicyInputPolicyNobody,
	}
}

func policyOf(who *xrpc.Account) string { return "policy of " + who.DID.String() }

func blockOf(who *xrpc.Account) string { return "block by " + who.DID.String() }

// readConsent reads what setConsent sets.
func (t *Traffic) readConsent(ctx context.Context, rng *rand.Rand) {
	who := t.consenter[rng.IntN(len(t.consenter))]
	begun := t.consents.now()
	if rng.IntN(2) == 0 {
		out := Must(ask[mlsapi.GetInvitationPolicyOutput](ctx, t.calls, rng, who, xrpc.PolicyCall()))
		t.consents.add(policyOf(who), begun, registerInput{}, out.Policy)
		return
	}
	out := Must(ask[mlsapi.GetBlocksOutput](ctx, t.calls, rng, who, xrpc.BlocksCall()))
	value := "free"
	if len(out.Blocks) > 0 {
		value = "blocked"
	}
	t.consents.add(blockOf(who), begun, registerInput{}, value)
}
