package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// ExternalRejoin makes a device lose its state, once with its signature key and once without, and
// rejoin by external commit. The answer is lost, and once the app is killed on the way. The others
// read the commit in the log. The lost device's leaf is gone.
func ExternalRejoin(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob := phones[0], phones[1]
	for _, keepKey := range []bool{false, true} {
		if err := bob.Send(ctx, convo, fmt.Sprintf("before the loss, key kept: %t", keepKey)); err != nil {
			return err
		}
		if err := bob.LoseState(keepKey); err != nil {
			return err
		}
		if err := alice.Send(ctx, convo, fmt.Sprintf("bob cannot read this, key kept: %t", keepKey)); err != nil {
			return err
		}
		if err := rejoinLosing(ctx, w, bob, convo, keepKey); err != nil {
			return err
		}
		if err := w.SyncAll(ctx, convo, phones...); err != nil {
			return err
		}
		if err := onlyLeaf(w, bob, alice, convo, len(phones)); err != nil {
			return err
		}
		for _, p := range phones {
			if err := p.Send(ctx, convo, fmt.Sprintf("welcome back, says %s, key kept: %t", p.Name, keepKey)); err != nil {
				return err
			}
		}
		if err := bob.Rotate(ctx, convo); err != nil {
			return err
		}
	}
	return w.SyncAll(ctx, convo, phones...)
}

// rejoinLosing makes a device rejoin although the answer is lost. The same bytes under the same key
// get the first answer.
func rejoinLosing(ctx context.Context, w *testbed.World, p *client.Phone, convo string, kill bool) error {
	info, err := p.GroupInfo(ctx, convo)
	if err != nil {
		return err
	}
	d, err := p.DraftRejoin(convo, info)
	if err != nil {
		return err
	}
	if !kill {
		if _, err := w.DeliverWithLostAnswer(ctx, p, "processExternalCommit", d); err != nil {
			return err
		}
		return p.Sync(ctx, convo)
	}
	if err := w.WithLostAnswer("processExternalCommit", func() error {
		if _, err := w.Net.Once(ctx, p.Account, d.Call); err == nil {
			return errors.New("the answer was not lost")
		}
		return nil
	}); err != nil {
		return err
	}
	p.Kill()
	if err := p.Launch(); err != nil {
		return err
	}
	if err := p.Flush(ctx); err != nil {
		return err
	}
	return p.Sync(ctx, convo)
}

// onlyLeaf checks that another member sees one leaf of the account, with the phone's present key.
func onlyLeaf(w *testbed.World, p, other *client.Phone, convo string, leaves int) error {
	group, err := other.Group(convo)
	if err != nil {
		return err
	}
	if n := len(group.Leaves()); n != leaves {
		w.Broken("the group has %d leaves after a rejoin, want %d", n, leaves)
	}
	for _, leaf := range group.Leaves() {
		if leaf.Identity == p.Account.DID.String() && !bytes.Equal(leaf.SignatureKey, p.Device.SignatureKey()) {
			w.Broken("%s is back, and its old leaf %d as well", p.Name, leaf.Index)
		}
	}
	return nil
}

// OwnDevice makes a member add a second device by a commit with a Welcome. A third one joins by
// external commit. All three read and write, and the roster has one person. Then one of them
// removes another.
func OwnDevice(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	alice, phone := phones[0], phones[1]
	tablet, err := w.SecondDevice(phone, "tablet")
	if err != nil {
		return err
	}
	if err := tablet.Publish(ctx, 1); err != nil {
		return err
	}
	if err := w.WithLostAnswer("submitCommit", func() error { return phone.AddOwn(ctx, convo, tablet) }); err != nil {
		return err
	}
	if err := tablet.Join(ctx, convo); err != nil {
		return err
	}
	if err := tablet.Send(ctx, convo, "from the tablet"); err != nil {
		return err
	}
	laptop, err := w.SecondDevice(phone, "laptop")
	if err != nil {
		return err
	}
	if err := laptop.Rejoin(ctx, convo); err != nil {
		return err
	}
	devices := []*client.Phone{alice, phone, tablet, laptop}
	for _, p := range devices {
		if err := p.Send(ctx, convo, "to all four devices, from "+p.Name); err != nil {
			return err
		}
	}
	if err := w.SyncAll(ctx, convo, devices...); err != nil {
		return err
	}
	if err := leaves(w, alice, convo, 4); err != nil {
		return err
	}
	if err := laptop.RemoveOwn(ctx, convo, tablet.Device.SignatureKey()); err != nil {
		return err
	}
	w.Retire(tablet)
	if err := w.SyncAll(ctx, convo, alice, phone, laptop); err != nil {
		return err
	}
	if err := leaves(w, alice, convo, 3); err != nil {
		return err
	}
	return phone.Send(ctx, convo, "the tablet was sold")
}

func leaves(w *testbed.World, p *client.Phone, convo string, want int) error {
	group, err := p.Group(convo)
	if err != nil {
		return err
	}
	if n := len(group.Leaves()); n != want {
		w.Broken("the group has %d leaves, want %d", n, want)
	}
	return nil
}

// RemovedCannotReturn makes a removed member, one that left and a stranger try to join by external
// commit, with an old GroupInfo and with the present one, which a friend leaked. A member that is
// added again comes back by its Welcome.
func RemovedCannotReturn(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 4)
	if err != nil {
		return err
	}
	alice, bob, carol, dave := phones[0], phones[1], phones[2], phones[3]
	old, err := bob.GroupInfo(ctx, convo)
	if err != nil {
		return err
	}
	if err := alice.Remove(ctx, convo, bob.Account.DID); err != nil {
		return err
	}
	if err := carol.Leave(ctx, convo); err != nil { // her leaf is still in the group
		return err
	}
	if err := dave.Sync(ctx, convo); err != nil {
		return err
	}
	leaked, err := dave.GroupInfo(ctx, convo)
	if err != nil {
		return err
	}
	stranger, err := w.Phone("stranger")
	if err != nil {
		return err
	}
	for _, who := range []struct {
		phone *client.Phone
		want  string
	}{{bob, mlsapi.ErrNotMember}, {carol, mlsapi.ErrNotMember}, {stranger, mlsapi.ErrConvoNotFound}} {
		if _, err := who.phone.GroupInfo(ctx, convo); xrpc.ErrorName(err) != who.want {
			w.Broken("%s asked for the GroupInfo: %v, want %s", who.phone.Name, err, who.want)
		}
		for name, info := range map[string][]byte{"an old": old, "a leaked": leaked} {
			if err := w.CheckRefusedJoin(ctx, who.phone, convo, info, name, who.want); err != nil {
				return err
			}
		}
	}
	if err := alice.CommitRemovals(ctx, convo); err != nil {
		return err
	}
	if err := alice.Add(ctx, convo, bob.Account.DID); err != nil {
		return err
	}
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	if err := dave.Send(ctx, convo, "he was asked back"); err != nil {
		return err
	}
	return w.SyncAll(ctx, convo, alice, bob, dave)
}
