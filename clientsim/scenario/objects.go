package scenario

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// playObjects sends objects that only some libraries make, or understand, through the server. Each
// group has members of one library, until the objects are committed. agents are the libraries to
// choose from.
func playObjects(ctx context.Context, w *testbed.World, agents []mlsclient.Library) error {
	w.Suite = mlsclient.SuiteX25519
	o := &objects{libraryGroup: libraryGroup{w: w}}
	for _, library := range agents {
		var err error
		switch library.Name {
		case "openmls":
			err = o.openMLS(ctx, library)
		case "ts-mls":
			err = o.tsMLS(ctx, library)
		}
		if err != nil {
			return fmt.Errorf("objects of %s: %w", library.Name, err)
		}
	}
	if len(o.accepted) > 0 {
		w.Note("objects: %s: accepted, members agree", strings.Join(o.accepted, ", "))
	}
	return nil
}

// objects is a group of one library.
type objects struct {
	libraryGroup
	accepted []string // what the server accepted and all members understood
}

// found makes a group of n phones of the library. Their KeyPackages must pass a check.
func (o *objects) found(ctx context.Context, library mlsclient.Library, n int, check func(message []byte) error) error {
	o.first = nil
	for i := range n {
		p, err := o.w.PhoneOf(fmt.Sprintf("%s-objects-%d", library.Name, i), library)
		if err != nil {
			return err
		}
		p.Device.HideHandshakes(false)
		// OpenMLS takes no GREASE extensions. Its capabilities have GREASE values anyway.
		if greaser, ok := p.Device.(mlsclient.Greaser); ok {
			if err := greaser.Grease(); err != nil {
				return err
			}
		}
		kp, err := p.Device.KeyPackage()
		if err != nil {
			return err
		}
		if err := check(kp.Message); err != nil {
			return fmt.Errorf("the KeyPackage of %s: %w", p.Name, err)
		}
		draft, err := p.DraftPackage(kp)
		if err != nil {
			return err
		}
		if _, err := p.Deliver(ctx, draft); err != nil {
			return err
		}
		o.first = append(o.first, p)
	}
	if err := o.create(ctx); err != nil {
		return err
	}
	return o.agree(ctx)
}

// openMLS plays a group of OpenMLS. ts-mls and mls-go do not have SelfRemove, and mls-go cannot read
// custom proposals.
func (o *objects) openMLS(ctx context.Context, library mlsclient.Library) error {
	if err := o.found(ctx, library, 4, mlsclient.CheckGrease); err != nil {
		return err
	}
	o.accepted = append(o.accepted, "GREASE capabilities")
	alice, bob, leaver := o.first[0], o.first[1], o.first[3]
	if err := o.selfRemove(ctx, leaver, alice); err != nil {
		return fmt.Errorf("SelfRemove: %w", err)
	}
	carol := o.first[2]
	if err := o.custom(ctx, bob, carol); err != nil {
		return fmt.Errorf("custom proposal: %w", err)
	}
	if err := o.psk(ctx, carol, bob); err != nil {
		return fmt.Errorf("PSK: %w", err)
	}
	// Another library accepts the leaves. Its device is also the one that the final checks copy.
	guest, err := o.phone(ctx, library.Name+"-objects-guest", mlsclient.Go())
	if err != nil {
		return err
	}
	if err := o.adds(bob, guest)(ctx); err != nil {
		return err
	}
	return o.agree(ctx)
}

// selfRemove makes a member ask for its removal, and another member commit it by reference. The
// owner stays on the roster until it leaves.
func (o *objects) selfRemove(ctx context.Context, leaver, by *client.Phone) error {
	proposal, err := leaver.Propose(ctx, o.convo, mlsclient.SelfRemove, nil)
	if err != nil {
		return err
	}
	o.members = slices.DeleteFunc(o.members, func(p *client.Phone) bool { return p == leaver })
	if err := o.commits(ctx, "SelfRemove", proposal, by, mlsapi.ConvoViewCommitLevelVerified); err != nil {
		return err
	}
	group, err := by.Group(o.convo)
	if err != nil {
		return err
	}
	if slices.Contains(group.Members(), leaver.Account.DID.String()) {
		return errors.New("the device is still in the group")
	}
	return leaver.Leave(ctx, o.convo)
}

// custom makes a member propose what only the application knows, and another member commit it by
// reference. The server does not know what the commit does.
func (o *objects) custom(ctx context.Context, from, by *client.Phone) error {
	proposal, err := from.Propose(ctx, o.convo, mlsclient.Custom, []byte("a receipt"))
	if err != nil {
		return err
	}
	return o.commits(ctx, "custom proposal", proposal, by, mlsapi.ConvoViewCommitLevelStructure)
}

// psk gives all members a PSK by another way than the server. A member proposes it, and another
// member commits it by reference.
func (o *objects) psk(ctx context.Context, from, by *client.Phone) error {
	id, secret := []byte("shown on a screen"), mlsclient.RandomBytes(32)
	for _, p := range o.members {
		keeper, ok := p.Device.(mlsclient.PSKKeeper)
		if !ok {
			return fmt.Errorf("the library of %s takes no PSK", p.Name)
		}
		if err := keeper.KeepPSK(id, secret); err != nil {
			return err
		}
	}
	proposal, err := from.Propose(ctx, o.convo, mlsclient.PSK, id)
	if err != nil {
		return err
	}
	return o.commits(ctx, "PSK by reference", proposal, by, mlsapi.ConvoViewCommitLevelVerified)
}

// tsMLS plays a group of ts-mls. OpenMLS 0.9.2 leaves ReInit out of its commits, and mls-go 1.6.0
// cannot store a closed group.
func (o *objects) tsMLS(ctx context.Context, library mlsclient.Library) error {
	if err := o.found(ctx, library, 3, mlsclient.CheckGreaseExtensions); err != nil {
		return err
	}
	o.accepted = append(o.accepted, "GREASE extensions")
	if err := o.reInit(ctx, o.first[0], o.first[1]); err != nil {
		return fmt.Errorf("ReInit: %w", err)
	}
	return nil
}

// reInit makes a member propose to close the group, and another member commit it by reference.
// Then the convo takes no messages, and names the successor.
func (o *objects) reInit(ctx context.Context, from, by *client.Phone) error {
	successor := mlsclient.RandomBytes(16)
	proposal, err := from.Propose(ctx, o.convo, mlsclient.ReInit, successor)
	if err != nil {
		return err
	}
	if err := o.commits(ctx, "ReInit", proposal, by, mlsapi.ConvoViewCommitLevelVerified); err != nil {
		return err
	}
	for _, p := range o.members {
		view, err := p.Convo(ctx, o.convo)
		if err != nil {
			return err
		}
		if view.ClosedAt == nil || view.SuccessorGroupID == nil || *view.SuccessorGroupID != hex.EncodeToString(successor) {
			return fmt.Errorf("%s is told that the successor is %s", p.Name, xrpc.Show(view.SuccessorGroupID))
		}
		late := mlsclient.FakeMessage(p.Threads[o.convo].GroupID, uint64(view.Epoch), 100)
		call := xrpc.SendCall(o.convo, p.Account.DID, uint64(view.Epoch), late, xrpc.NewKey())
		if got := o.w.Refusal(ctx, p.Account, call); got.Name != mlsapi.ErrConvoClosed {
			return fmt.Errorf("a message of %s to the closed convo: %w", p.Name, got)
		}
	}
	return nil
}

// commits makes a member commit a proposal that was sent, by reference. Then all members must
// agree, and the server must have checked the commit at the given level.
func (o *objects) commits(ctx context.Context, what string, proposal []byte, by *client.Phone, level string) error {
	if err := by.Rotate(ctx, o.convo); err != nil {
		return err
	}
	if err := o.agree(ctx); err != nil {
		return err
	}
	view, err := by.Convo(ctx, o.convo)
	if err != nil {
		return err
	}
	if xrpc.Show(view.CommitLevel) != xrpc.Show(&level) {
		return fmt.Errorf("the commit level is %s, want %s", xrpc.Show(view.CommitLevel), level)
	}
	answer, err := o.w.Net.Do(ctx, by.Account, xrpc.CommitsCall(o.convo, uint64(view.Epoch)))
	if err != nil {
		return err
	}
	log, err := xrpc.Decode[mlsapi.GetCommitsOutput](answer.Body)
	if err != nil {
		return err
	}
	if len(log.Commits) != 1 {
		return fmt.Errorf("%d commits create epoch %d", len(log.Commits), view.Epoch)
	}
	refers, err := mlsclient.RefersTo(log.Commits[0].CommitData, proposal)
	if err != nil {
		return err
	}
	if !refers {
		return errors.New("the commit does not refer to the proposal")
	}
	o.accepted = append(o.accepted, fmt.Sprintf("%s (%s)", what, level))
	return nil
}
