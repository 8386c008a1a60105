package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// shortGrace is a Welcome grace that is short enough for a test to wait. Even on a busy machine, a
// phone reports a failure before its end.
const shortGrace = "3s"

// graceLimit is how long a scenario waits for the end of a short grace.
const graceLimit = time.Minute

// WelcomeDamaged makes a member invite two accounts with a Welcome that the server accepts and that
// no device can join with. Both phones report the Welcome, and fetch the same bytes again. The
// server has no GroupInfo at first. So the first phone asks another member, who is not the creator,
// for a new invitation. The commit of the invitation brings a GroupInfo, and the second phone comes
// back by itself. In the end, everybody reads the new messages.
func WelcomeDamaged(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 4))
	alice, dave, lost := phones[0], phones[1], phones[2:]
	alice.HidesGroupInfo = true
	convo := Must(alice.Create(ctx, dave.Account.DID))
	Check(dave.Join(ctx, convo))
	alice.SpoilsWelcomes = true
	Check(alice.Add(ctx, convo, testbed.DIDs(lost)...))
	alice.SpoilsWelcomes, alice.HidesGroupInfo = false, false
	Check(alice.Send(ctx, convo, "nobody who was invited can read this"))
	reportsFailures(ctx, w, convo, lost)
	comeBack(ctx, w, convo, alice, dave, lost)
}

// reportsFailures makes phones try to join with a damaged Welcome. A server of our own must count
// one failed join for each phone, although each phone tries twice under its lease.
func reportsFailures(ctx context.Context, w *testbed.World, convo string, lost []*client.Phone) {
	count := func() (n int, err error) {
		if w.Server != nil {
			n, err = w.Server.FailedJoins(ctx)
		}
		return n, err
	}
	before := Must(count())
	for _, p := range lost {
		if err := p.Join(ctx, convo); !errors.Is(err, client.ErrWelcomeLost) {
			w.Broken("%s joined with a damaged Welcome: %v", p.Name, err)
		}
	}
	after, err := count()
	if err == nil && w.Server != nil && after != before+len(lost) {
		w.Broken("the server counted %d failed joins, want %d", after-before, len(lost))
	}
	Check(err)
}

// comeBack lets the phones that lost their Welcomes come back one by one, with a member's help if
// they need it.
func comeBack(ctx context.Context, w *testbed.World, convo string, alice, member *client.Phone, lost []*client.Phone) {
	for i, p := range lost {
		asked := p.Device
		Check(p.ComeBack(ctx, convo, member))
		if again := p.Device != asked; again != (i == 0) { // the first phone's invitation brings the GroupInfo
			w.Broken("%s was invited again: %t", p.Name, again)
		}
		Check(w.SyncAll(ctx, convo, alice, member))
		onlyLeaf(w, p, alice, convo, 4)
		// A device that is back cannot be replaced.
		refusesInvitation(ctx, w, convo, member, p)
	}
	all := append([]*client.Phone{alice, member}, lost...)
	for _, p := range all {
		Check(p.Send(ctx, convo, fmt.Sprintf("everybody reads this, says %s", p.Name)))
	}
	Check(w.SyncAll(ctx, convo, all...))
}

// onlyLeaf checks that another member sees one leaf of the account, with the phone's present key.
func onlyLeaf(w *testbed.World, p, other *client.Phone, convo string, leaves int) {
	group := Must(other.Group(convo))
	if n := len(group.Leaves()); n != leaves {
		w.Broken("the group has %d leaves after its return, want %d", n, leaves)
	}
	for _, leaf := range group.Leaves() {
		if leaf.Identity == p.Account.DID.String() && !bytes.Equal(leaf.SignatureKey, p.Device.SignatureKey()) {
			w.Broken("%s is back, and its old leaf %d as well", p.Name, leaf.Index)
		}
	}
}

// refusesInvitation checks that a member cannot replace the leaf of a member who is in the group.
func refusesInvitation(ctx context.Context, w *testbed.World, convo string, member, p *client.Phone) {
	guest := Must(w.SecondDevice(p, p.Name+"'s spare"))
	w.Retire(guest)
	Check(guest.Publish(ctx, 1))
	if err := member.InviteAgain(ctx, convo, p.Account.DID); xrpc.ErrorName(err) != mlsapi.ErrAlreadyMember {
		w.Broken("%s replaced the leaf of %s, who is back: %v", member.Name, p.Name, err)
	}
}

// WelcomeSilenceKilled uses a server that treats silence as success. Two apps are killed before
// they keep their Welcomes, and after the grace the Welcomes are consumed. The server tells each
// phone its way back. The first phone needs a new invitation, because the server has no GroupInfo.
// The second phone needs an external commit.
func WelcomeSilenceKilled(ctx context.Context, w *testbed.World) {
	withSettings(ctx, w, map[string]string{"MLSD_WELCOME_GRACE": shortGrace, "MLSD_WELCOME_ON_GRACE_EXPIRY": "consume"},
		silenceKilled)
}

func silenceKilled(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 4))
	alice, dave, lost := phones[0], phones[1], phones[2:]
	alice.HidesGroupInfo = true
	convo := Must(alice.Create(ctx, testbed.DIDs(phones[1:])...))
	Check(dave.Join(ctx, convo))
	for _, p := range lost {
		Must(p.FetchWelcome(ctx, convo))
		p.Kill()
	}
	alice.HidesGroupInfo = false
	Check(alice.Send(ctx, convo, "two of us have no keys"))
	for _, p := range lost {
		Check(p.Launch())
		graceOver(ctx, p, convo)
	}
	tellsWayBack(ctx, w, lost[0], convo, mlsapi.NSIDAddMembers)
	Check(lost[0].ComeBack(ctx, convo, dave))
	tellsWayBack(ctx, w, lost[1], convo, mlsapi.NSIDProcessExternalCommit)
	Check(lost[1].ComeBack(ctx, convo, dave))
	for _, p := range phones {
		Check(p.Sync(ctx, convo))
		Check(p.Send(ctx, convo, "silence was no consent, says "+p.Name))
	}
	Check(w.SyncAll(ctx, convo, phones...))
}

// graceOver fetches a Welcome until it is consumed.
func graceOver(ctx context.Context, p *client.Phone, convo string) {
	Check(xrpc.Until(ctx, graceLimit, func() (bool, error) {
		_, err := p.FetchWelcome(ctx, convo)
		if xrpc.ErrorName(err) == mlsapi.ErrWelcomeConsumed {
			return true, nil
		}
		return false, err
	}))
}

// tellsWayBack checks that a phone without its Welcome's bytes learns which method leads back.
func tellsWayBack(ctx context.Context, w *testbed.World, p *client.Phone, convo, nsid string) {
	err := p.Join(ctx, convo)
	if !errors.Is(err, client.ErrWelcomeLost) {
		Fail("%s joined without its Welcome: %w", p.Name, err)
	}
	var named *xrpc.CallError
	method := nsid[strings.LastIndexByte(nsid, '.')+1:]
	if !errors.As(err, &named) || !strings.Contains(named.Message, method) {
		w.Broken("a consumed Welcome: %v, want the way back by %s", err, method)
	}
}
