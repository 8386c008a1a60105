package scenario

import (
	"bytes"
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// ExternalRejoin makes a device lose its state, once with its signature key and once without. The
// device rejoins by external commit. The answer is lost, and once the app is killed on the way. The
// others read the commit in the log. The lost device's leaf is gone.
func ExternalRejoin(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 3))
	alice, bob := phones[0], phones[1]
	for _, keepKey := range []bool{false, true} {
		Check(bob.Send(ctx, convo, fmt.Sprintf("before the loss, key kept: %t", keepKey)))
		Check(bob.LoseState(keepKey))
		Check(alice.Send(ctx, convo, fmt.Sprintf("bob cannot read this, key kept: %t", keepKey)))
		rejoinLosing(ctx, w, bob, convo, keepKey)
		Check(w.SyncAll(ctx, convo, phones...))
		onlyLeaf(w, bob, alice, convo, len(phones))
		for _, p := range phones {
			Check(p.Send(ctx, convo, fmt.Sprintf("welcome back, says %s, key kept: %t", p.Name, keepKey)))
		}
		Check(bob.Rotate(ctx, convo))
	}
	Check(w.SyncAll(ctx, convo, phones...))
}

// rejoinLosing makes a device rejoin although the answer is lost. The same bytes under the same key
// get the first answer.
func rejoinLosing(ctx context.Context, w *testbed.World, p *client.Phone, convo string, kill bool) {
	info := Must(p.GroupInfo(ctx, convo))
	d := Must(p.DraftRejoin(convo, info))
	if kill {
		Check(w.DeliverAfterKill(ctx, p, d))
	} else {
		Must(w.DeliverWithLostAnswer(ctx, p, d))
	}
	Check(p.Sync(ctx, convo))
}

// onlyLeaf checks that another member sees one leaf of the account, with the phone's present key.
func onlyLeaf(w *testbed.World, p, other *client.Phone, convo string, leaves int) {
	group := Must(other.Group(convo))
	if n := len(group.Leaves()); n != leaves {
		w.Broken("the group has %d leaves after a rejoin, want %d", n, leaves)
	}
	for _, leaf := range group.Leaves() {
		if leaf.Identity == p.Account.DID.String() && !bytes.Equal(leaf.SignatureKey, p.Device.SignatureKey()) {
			w.Broken("%s is back, and its old leaf %d as well", p.Name, leaf.Index)
		}
	}
}

// OwnDevice makes a member add a second device by a commit with a Welcome. A third device joins by
// external commit. All three devices read and write, and the roster has one person. Then one device
// removes another.
func OwnDevice(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 2))
	alice, phone := phones[0], phones[1]
	tablet := Must(w.SecondDevice(phone, "tablet"))
	Check(tablet.Publish(ctx, 1))
	Check(w.WithLostAnswer("submitCommit", func() error { return phone.AddOwn(ctx, convo, tablet) }))
	Check(tablet.Join(ctx, convo))
	Check(tablet.Send(ctx, convo, "from the tablet"))
	laptop := Must(w.SecondDevice(phone, "laptop"))
	Check(laptop.Rejoin(ctx, convo))
	devices := []*client.Phone{alice, phone, tablet, laptop}
	for _, p := range devices {
		Check(p.Send(ctx, convo, "to all four devices, from "+p.Name))
	}
	Check(w.SyncAll(ctx, convo, devices...))
	leaves(w, alice, convo, 4)
	Check(laptop.RemoveOwn(ctx, convo, tablet.Device.SignatureKey()))
	w.Retire(tablet)
	Check(w.SyncAll(ctx, convo, alice, phone, laptop))
	leaves(w, alice, convo, 3)
	Check(phone.Send(ctx, convo, "the tablet was sold"))
}

func leaves(w *testbed.World, p *client.Phone, convo string, want int) {
	group := Must(p.Group(convo))
	if n := len(group.Leaves()); n != want {
		w.Broken("the group has %d leaves, want %d", n, want)
	}
}

// RemovedCannotReturn makes a removed member, a member that left and an outsider try to join by
// external commit. They use an old GroupInfo and the present GroupInfo, which a friend leaked. A
// member that is added again comes back by its Welcome.
func RemovedCannotReturn(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 4))
	alice, bob, carol, dave := phones[0], phones[1], phones[2], phones[3]
	old := Must(bob.GroupInfo(ctx, convo))
	Check(alice.Remove(ctx, convo, bob.Account.DID))
	Check(carol.Leave(ctx, convo))
	Check(dave.Sync(ctx, convo))
	leaked := Must(dave.GroupInfo(ctx, convo))
	outsider := Must(w.Phone("outsider"))
	for _, who := range []struct {
		phone *client.Phone
		want  string
	}{{bob, mlsapi.ErrNotMember}, {carol, mlsapi.ErrNotMember}, {outsider, mlsapi.ErrConvoNotFound}} {
		if _, err := who.phone.GroupInfo(ctx, convo); xrpc.ErrorName(err) != who.want {
			w.Broken("%s asked for the GroupInfo: %v, want %s", who.phone.Name, err, who.want)
		}
		for name, info := range map[string][]byte{"an old": old, "a leaked": leaked} {
			Check(w.CheckRefusedJoin(ctx, who.phone, convo, info, name, who.want))
		}
	}
	Check(alice.CommitRemovals(ctx, convo))
	Check(alice.Add(ctx, convo, bob.Account.DID))
	Check(bob.Join(ctx, convo))
	Check(dave.Send(ctx, convo, "he was asked back"))
	Check(w.SyncAll(ctx, convo, alice, bob, dave))
}
