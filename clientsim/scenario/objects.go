package scenario

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// playObjects sends objects through the server that only some libraries make or understand. Each
// group has members of one library until the objects are committed. agents are the libraries to
// choose from.
func playObjects(ctx context.Context, w *testbed.World, agents []mlsclient.Library) {
	w.Suite = mlsclient.SuiteX25519
	o := &objects{libraryGroup: libraryGroup{w: w}}
	for _, library := range agents {
		w.Progress("objects of " + library.Name)
		switch library.Name {
		case "openmls":
			o.openMLS(ctx, library)
		case "ts-mls":
			o.tsMLS(ctx, library)
		}
	}
	if len(o.accepted) > 0 {
		w.Note("objects: %s: accepted, members agree", strings.Join(o.accepted, ", "))
	}
}

// objects is a group of one library.
type objects struct {
	libraryGroup
	accepted []string // what the server accepted and all members understood
}

// found makes a group of n phones of the library. Their KeyPackages must pass a check.
func (o *objects) found(ctx context.Context, library mlsclient.Library, n int, valid func(message []byte) error) {
	o.first = nil
	for i := range n {
		p := Must(o.w.PhoneOf(fmt.Sprintf("%s-objects-%d", library.Name, i), library))
		p.Device.HideHandshakes(false)
		// OpenMLS takes no GREASE extensions, but its capabilities have GREASE values.
		if greaser, ok := p.Device.(mlsclient.Greaser); ok {
			Check(greaser.Grease())
		}
		kp := Must(p.Device.KeyPackage())
		Check(errs.Wrap(valid(kp.Message), "the KeyPackage of %s", p.Name))
		draft := Must(p.DraftPackage(kp))
		Must(p.Deliver(ctx, draft))
		o.first = append(o.first, p)
	}
	o.create(ctx)
	agree(ctx, o.w, o.convo, o.members)
}

// openMLS plays a group of OpenMLS. ts-mls and mls-go do not have SelfRemove, and mls-go cannot
// read custom proposals.
func (o *objects) openMLS(ctx context.Context, library mlsclient.Library) {
	o.found(ctx, library, 4, mlsclient.CheckGrease)
	o.accepted = append(o.accepted, "GREASE capabilities")
	alice, bob, leaver := o.first[0], o.first[1], o.first[3]
	o.selfRemove(ctx, leaver, alice)
	carol := o.first[2]
	o.custom(ctx, bob, carol)
	o.psk(ctx, carol, bob)
	// Another library accepts the leaves. The final checks copy the device of that library.
	guest := o.phone(ctx, library.Name+"-objects-guest", mlsclient.Go())
	o.adds(ctx, bob, guest)
	agree(ctx, o.w, o.convo, o.members)
}

// selfRemove makes a member ask for its removal, and another member commit the removal by
// reference. Then the owner is off the roster, and its own departure changes nothing.
func (o *objects) selfRemove(ctx context.Context, leaver, by *client.Phone) {
	proposal := Must(leaver.Propose(ctx, o.convo, mlsclient.SelfRemove, nil))
	o.members = slices.DeleteFunc(o.members, func(p *client.Phone) bool { return p == leaver })
	o.commits(ctx, "SelfRemove", proposal, by, mlsapi.ConvoViewCommitLevelVerified)
	group := Must(by.Group(o.convo))
	if slices.Contains(group.Members(), leaver.Account.DID.String()) {
		Fail("SelfRemove: the device is still in the group")
	}
	Check(leaver.Leave(ctx, o.convo))
}

// custom makes a member send a proposal that only the application knows, and another member commit
// it by reference. The server does not know what the commit does.
func (o *objects) custom(ctx context.Context, from, by *client.Phone) {
	proposal := Must(from.Propose(ctx, o.convo, mlsclient.Custom, []byte("a receipt")))
	o.commits(ctx, "custom proposal", proposal, by, mlsapi.ConvoViewCommitLevelStructure)
}

// psk gives all members a PSK by another way than the server. A member proposes it, and another
// member commits it by reference.
func (o *objects) psk(ctx context.Context, from, by *client.Phone) {
	id, secret := []byte("shown on a screen"), mlsclient.RandomBytes(32)
	for _, p := range o.members {
		keeper, ok := p.Device.(mlsclient.PSKKeeper)
		if !ok {
			Fail("the library of %s takes no PSK", p.Name)
		}
		Check(keeper.KeepPSK(id, secret))
	}
	proposal := Must(from.Propose(ctx, o.convo, mlsclient.PSK, id))
	o.commits(ctx, "PSK by reference", proposal, by, mlsapi.ConvoViewCommitLevelVerified)
}

// tsMLS plays a group of ts-mls. OpenMLS 0.9.2 leaves ReInit out of its commits, and mls-go 1.6.0
// cannot store a closed group.
func (o *objects) tsMLS(ctx context.Context, library mlsclient.Library) {
	o.found(ctx, library, 3, mlsclient.CheckGreaseExtensions)
	o.accepted = append(o.accepted, "GREASE extensions")
	o.reInit(ctx, o.first[0], o.first[1])
}

// reInit makes a member propose to close the group, and another member commit it by reference.
// Then the convo takes no messages, and names the successor.
func (o *objects) reInit(ctx context.Context, from, by *client.Phone) {
	successor := mlsclient.RandomBytes(16)
	proposal := Must(from.Propose(ctx, o.convo, mlsclient.ReInit, successor))
	o.commits(ctx, "ReInit", proposal, by, mlsapi.ConvoViewCommitLevelVerified)
	for _, p := range o.members {
		view := Must(p.Convo(ctx, o.convo))
		if view.ClosedAt == nil || view.SuccessorGroupID == nil || *view.SuccessorGroupID != hex.EncodeToString(successor) {
			Fail("%s is told that the successor is %s", p.Name, xrpc.Show(view.SuccessorGroupID))
		}
		late := mlsclient.FakeMessage(p.Threads[o.convo].GroupID, uint64(view.Epoch), 100)
		call := xrpc.SendCall(o.convo, p.Account.DID, uint64(view.Epoch), late, xrpc.NewKey())
		if got := o.w.Refusal(ctx, p.Account, call); got.Name != mlsapi.ErrConvoClosed {
			Fail("a message of %s to the closed convo: %w", p.Name, got)
		}
	}
}

// commits makes a member commit a proposal that was sent, by reference. Then all members must
// agree, and the server must have checked the commit at the given level.
func (o *objects) commits(ctx context.Context, what string, proposal []byte, by *client.Phone, level string) {
	Check(by.Rotate(ctx, o.convo))
	agree(ctx, o.w, o.convo, o.members)
	view := Must(by.Convo(ctx, o.convo))
	if xrpc.Show(view.CommitLevel) != xrpc.Show(&level) {
		Fail("%s: the commit level is %s, want %s", what, xrpc.Show(view.CommitLevel), level)
	}
	log := Must(xrpc.Ask[mlsapi.GetCommitsOutput](ctx, o.w.Net, by.Account, xrpc.CommitsCall(o.convo, uint64(view.Epoch))))
	if len(log.Commits) != 1 {
		Fail("%s: %d commits create epoch %d", what, len(log.Commits), view.Epoch)
	}
	refers := Must(mlsclient.RefersTo(log.Commits[0].CommitData, proposal))
	if !refers {
		Fail("%s: the commit does not refer to the proposal", what)
	}
	o.accepted = append(o.accepted, fmt.Sprintf("%s (%s)", what, level))
}
