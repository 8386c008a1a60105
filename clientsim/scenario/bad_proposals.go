package scenario

import (
	"context"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// mostBadProposals is how many bad proposals a member sends to one group at most.
const mostBadProposals = 6

// BadProposals makes a member send proposals that no commit should contain to one group after
// another, in clear and encrypted. Every other member can still commit, and the creator removes the
// attacker.
func BadProposals(ctx context.Context, w *testbed.World) {
	attackWithProposals(ctx, w, mlsclient.Go())
}

// BadProposalsLibraries is BadProposals with honest members of each agent's library.
func BadProposalsLibraries(ctx context.Context, w *testbed.World) {
	for _, library := range startAgents(ctx, w) {
		attackWithProposals(ctx, w, library)
	}
}

// attackWithProposals attacks groups whose honest members use one library.
func attackWithProposals(ctx context.Context, w *testbed.World, honest mlsclient.Library) {
	refused, accepted := 0, 0
	for range w.Attacks {
		m := newMisbehavior(ctx, w, honest)
		for range 1 + w.RNG.IntN(mostBadProposals) {
			if m.proposesBadly(ctx) {
				accepted++
			} else {
				refused++
			}
		}
		m.recovers(ctx)
	}
	if w.Attacks > 1 && (refused == 0 || accepted == 0) {
		Fail("%d bad proposals were refused and %d accepted: nothing was tried", refused, accepted)
	}
	w.Note("%s: %d bad proposals refused, %d accepted; in all %d groups everybody committed, and the attacker was removed",
		honest.Name, refused, accepted, w.Attacks)
}

// proposesBadly makes mallory send one bad proposal. The server must refuse it by name if it can
// read it, except a PSK, which only members can judge.
func (m *misbehavior) proposesBadly(ctx context.Context) (accepted bool) {
	hidden := m.w.RNG.IntN(2) == 0
	m.mallory.Device.HideHandshakes(hidden)
	name, proposal, err := mlsclient.BadProposal(m.group(), m.w.RNG)
	Check(err)
	draft, _ := Must2(m.mallory.DraftProposal(m.convo, mlsclient.Raw, proposal))
	_, err = m.mallory.Deliver(ctx, draft)
	refusals := []string{mlsapi.ErrInvalidMessage, mlsapi.ErrNotPermitted}
	switch psk := name == mlsclient.UnknownPSK || name == mlsclient.LaterPSK; {
	case (hidden || psk) && err != nil:
		m.w.Broken("%s, hidden %v: %v, although the server cannot judge it", name, hidden, err)
	case !hidden && name == mlsclient.LeavesItself && err == nil: // the members' library supports it
	case !hidden && !psk && !slices.Contains(refusals, xrpc.ErrorName(err)):
		m.w.Broken("%s in clear: %v, want one of %v", name, err, refusals)
	}
	return err == nil
}

// recovers makes every honest member commit, removes mallory, and makes everybody commit again.
func (m *misbehavior) recovers(ctx context.Context) {
	m.mallory.Device.HideHandshakes(false)
	honest := []*client.Phone{m.alice, m.bob, m.carol}
	for _, p := range honest {
		p.Device.HideHandshakes(m.w.RNG.IntN(2) == 0)
	}
	commit := func() {
		m.w.RNG.Shuffle(len(honest), func(i, j int) { honest[i], honest[j] = honest[j], honest[i] })
		for _, p := range honest {
			Check(p.Sync(ctx, m.convo))
			Check(p.Rotate(ctx, m.convo))
		}
	}
	commit()
	Check(m.alice.Sync(ctx, m.convo))
	attacked := func() bool {
		return slices.Contains(Must(m.alice.Group(m.convo)).Members(), m.mallory.Account.DID.String())
	}
	if attacked() { // it may have left: see LeavesItself
		Check(m.alice.Remove(ctx, m.convo, m.mallory.Account.DID))
	}
	commit()
	agree(ctx, m.w, m.convo, honest)
	if attacked() {
		Fail("the attacker is still in the group")
	}
}
