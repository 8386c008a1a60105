package testbed

import (
	"bytes"
	"context"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// This file checks what the server says about the group of a convo: its roster, how far it could
// check the last commit, and the GroupInfo that it hands out.

// checkRoster checks that the server's members are those of the model, that each leaf belongs to
// the member that the server names, and that the commit level follows from the log.
func (w *World) checkRoster(ctx context.Context, p *client.Phone, c *history.ConvoModel, v *history.View) {
	convo := Must(p.Convo(ctx, c.ID))
	group := Must(p.Group(c.ID))
	var roster []syntax.DID
	for _, m := range convo.Members {
		roster = append(roster, m.DID)
		if m.LeafIndex != nil && !holds(group, *m.LeafIndex, m.DID) {
			w.Broken("getConvo says that leaf %d is %s's, in epoch %d of %s", *m.LeafIndex, m.DID, convo.Epoch, c.ID)
		}
	}
	slices.Sort(roster)
	if want := c.Live(); !slices.Equal(want, roster) {
		w.Broken("the roster of %s is %v, want %v", c.ID, roster, want)
	}
	level, _, known := c.Followed(v)
	if known && xrpc.Show(convo.CommitLevel) != xrpc.Show(&level) {
		w.Broken("the commit level of %s in epoch %d is %s, want %q", c.ID, convo.Epoch, xrpc.Show(convo.CommitLevel), level)
	}
}

// holds reports whether a leaf of the group belongs to a device of did.
func holds(group mlsclient.Group, leaf int64, did syntax.DID) bool {
	return slices.ContainsFunc(group.Leaves(), func(l mlsclient.Leaf) bool {
		return int64(l.Index) == leaf && l.Identity == did.String()
	})
}

// checkTree checks the GroupInfo that the server hands out. It must be the present epoch's and show
// the members' group. There must be one if and only if the last commit came with one.
func (w *World) checkTree(ctx context.Context, p *client.Phone, c *history.ConvoModel, v *history.View) {
	_, sent, known := c.Followed(v)
	message, err := p.GroupInfo(ctx, c.ID)
	if xrpc.ErrorName(err) == mlsapi.ErrGroupInfoNotFound {
		if known && sent {
			w.Report(history.Violation{Kind: history.Lost, Convo: c.ID, Who: p.Name,
				What: "the GroupInfo that came with the last commit is not there"})
		}
		return
	}
	Check(err)
	if known && !sent {
		w.Broken("getGroupInfo knows a GroupInfo of %s that no phone has sent", c.ID)
	}
	info, group := Must(mlsclient.ReadInfo(message)), Must(p.Group(c.ID))
	same := slices.EqualFunc(info.Leaves, group.Leaves(), func(a, b mlsclient.Leaf) bool {
		return a.Index == b.Index && a.Identity == b.Identity && bytes.Equal(a.SignatureKey, b.SignatureKey)
	})
	if !bytes.Equal(info.GroupID, c.GroupID) || int64(info.Epoch) != v.Epoch || !same {
		w.Broken("getGroupInfo shows group %x in epoch %d with %d leaves, and %s has %x in %d with %d",
			info.GroupID, info.Epoch, len(info.Leaves), p.Name, c.GroupID, v.Epoch, len(group.Leaves()))
	}
}
