package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// WelcomeDamaged makes a member invite two accounts with a Welcome that the server accepts and no
// device can join with. Both report it, and fetch the same bytes again. The server knows no
// GroupInfo at first. So the first one asks another member, who is not the creator, for a new
// invitation. The commit of that brings a GroupInfo, and the second one comes back by itself. In
// the end everybody reads what is new.
func WelcomeDamaged(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 4)
	if err != nil {
		return err
	}
	alice, dave, lost := phones[0], phones[1], phones[2:]
	alice.HidesGroupInfo = true
	convo, err := alice.Create(ctx, dave.Account.DID)
	if err != nil {
		return err
	}
	if err := dave.Join(ctx, convo); err != nil {
		return err
	}
	alice.SpoilsWelcomes = true
	if err := alice.Add(ctx, convo, testbed.DIDs(lost)...); err != nil {
		return err
	}
	alice.SpoilsWelcomes, alice.HidesGroupInfo = false, false
	if err := alice.Send(ctx, convo, "nobody who was invited can read this"); err != nil {
		return err
	}
	if err := reportsFailures(ctx, w, convo, lost); err != nil {
		return err
	}
	return comeBack(ctx, w, convo, alice, dave, lost)
}

// reportsFailures makes phones try to join with a damaged Welcome. A server of our own must count
// one failed join of each, though each phone tries twice under its lease.
func reportsFailures(ctx context.Context, w *testbed.World, convo string, lost []*client.Phone) error {
	count := func() (n int, err error) {
		if w.Server != nil {
			n, err = w.Server.FailedJoins(ctx)
		}
		return n, err
	}
	before, err := count()
	if err != nil {
		return err
	}
	for _, p := range lost {
		if err := p.Join(ctx, convo); !errors.Is(err, client.ErrWelcomeLost) {
			w.Broken("%s joined with a damaged Welcome: %v", p.Name, err)
		}
	}
	after, err := count()
	if err == nil && w.Server != nil && after != before+len(lost) {
		w.Broken("the server counted %d failed joins, want %d", after-before, len(lost))
	}
	return err
}

// comeBack lets the phones that lost their Welcomes come back one by one, with a member's help if
// they need it.
func comeBack(ctx context.Context, w *testbed.World, convo string, alice, member *client.Phone, lost []*client.Phone) error {
	for i, p := range lost {
		asked := p.Device
		if err := p.ComeBack(ctx, convo, member); err != nil {
			return err
		}
		if again := p.Device != asked; again != (i == 0) { // the first one's invitation brings the GroupInfo
			w.Broken("%s was invited again: %t", p.Name, again)
		}
		if err := w.SyncAll(ctx, convo, alice, member); err != nil {
			return err
		}
		if err := onlyLeaf(w, p, alice, convo, 4); err != nil {
			return err
		}
		// A device that is back is not replaced any more.
		if err := refusesInvitation(ctx, w, convo, member, p); err != nil {
			return err
		}
	}
	all := append([]*client.Phone{alice, member}, lost...)
	for _, p := range all {
		if err := p.Send(ctx, convo, fmt.Sprintf("everybody reads this, says %s", p.Name)); err != nil {
			return err
		}
	}
	return w.SyncAll(ctx, convo, all...)
}

// refusesInvitation checks that a member cannot replace the leaf of one who is in the group.
func refusesInvitation(ctx context.Context, w *testbed.World, convo string, member, p *client.Phone) error {
	guest, err := w.SecondDevice(p, p.Name+"'s spare")
	if err != nil {
		return err
	}
	w.Retire(guest)
	if err := guest.Publish(ctx, 1); err != nil {
		return err
	}
	if err := member.InviteAgain(ctx, convo, p.Account.DID); xrpc.ErrorName(err) != mlsapi.ErrAlreadyMember {
		w.Broken("%s replaced the leaf of %s, who is back: %v", member.Name, p.Name, err)
	}
	return nil
}

// WelcomeSilenceKilled uses a server that treats silence as success. Two apps are killed before
// they keep their Welcomes, and after the grace the Welcomes are consumed. The server says to each
// which way back it has: the first one needs a new invitation, because no GroupInfo is known; the
// second one an external commit.
func WelcomeSilenceKilled(ctx context.Context, w *testbed.World) error {
	if err := w.Restart(ctx, map[string]string{
		"MLSD_WELCOME_GRACE": shortGrace, "MLSD_WELCOME_ON_GRACE_EXPIRY": "consume",
	}); err != nil {
		return err
	}
	err := silenceKilled(ctx, w)
	return errors.Join(err, w.Restart(ctx, nil))
}

func silenceKilled(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 4)
	if err != nil {
		return err
	}
	alice, dave, lost := phones[0], phones[1], phones[2:]
	alice.HidesGroupInfo = true
	convo, err := alice.Create(ctx, testbed.DIDs(phones[1:])...)
	if err != nil {
		return err
	}
	if err := dave.Join(ctx, convo); err != nil {
		return err
	}
	for _, p := range lost {
		if _, err := p.FetchWelcome(ctx, convo); err != nil { // it stays in memory
			return err
		}
		p.Kill()
	}
	alice.HidesGroupInfo = false
	if err := alice.Send(ctx, convo, "two of us have no keys"); err != nil {
		return err
	}
	for _, p := range lost {
		if err := p.Launch(); err != nil {
			return err
		}
		if err := graceOver(ctx, p, convo); err != nil {
			return err
		}
	}
	if err := tellsWayBack(ctx, w, lost[0], convo, mlsapi.NSIDAddMembers); err != nil {
		return err
	}
	if err := lost[0].ComeBack(ctx, convo, dave); err != nil {
		return err
	}
	if err := tellsWayBack(ctx, w, lost[1], convo, mlsapi.NSIDProcessExternalCommit); err != nil {
		return err
	}
	if err := lost[1].ComeBack(ctx, convo, dave); err != nil {
		return err
	}
	for _, p := range phones {
		if err := p.Sync(ctx, convo); err != nil {
			return err
		}
		if err := p.Send(ctx, convo, "silence was no consent, says "+p.Name); err != nil {
			return err
		}
	}
	return w.SyncAll(ctx, convo, phones...)
}

// graceOver fetches a Welcome until it is consumed.
func graceOver(ctx context.Context, p *client.Phone, convo string) error {
	return xrpc.Until(ctx, graceLimit, func() (bool, error) {
		_, err := p.FetchWelcome(ctx, convo)
		if xrpc.ErrorName(err) == mlsapi.ErrWelcomeConsumed {
			return true, nil
		}
		return false, err
	})
}

// tellsWayBack checks that a phone without its Welcome's bytes learns which method leads back.
func tellsWayBack(ctx context.Context, w *testbed.World, p *client.Phone, convo, nsid string) error {
	err := p.Join(ctx, convo)
	if !errors.Is(err, client.ErrWelcomeLost) {
		return fmt.Errorf("%s joined without its Welcome: %w", p.Name, err)
	}
	var named *xrpc.CallError
	method := nsid[strings.LastIndexByte(nsid, '.')+1:]
	if !errors.As(err, &named) || !strings.Contains(named.Message, method) {
		w.Broken("a consumed Welcome: %v, want the way back by %s", err, method)
	}
	return nil
}
