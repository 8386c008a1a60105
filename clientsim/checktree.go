package clientsim

import (
	"bytes"
	"context"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// This file checks what the server says of the group behind a convo: the roster,
// what it could check of the last commit, and the GroupInfo that it hands out.

// checkRoster: the members are those of the model, a leaf that is said to be a
// member's is the member's, and the commit level is what the log leads to.
func (w *World) checkRoster(ctx context.Context, p *Phone, c *convoModel, v *view) {
	convo, err := p.Convo(ctx, c.id)
	if err != nil {
		w.Broken("%v", err)
		return
	}
	group, err := p.Group(c.id)
	if err != nil {
		w.Broken("%v", err)
		return
	}
	var roster []syntax.DID
	for _, m := range convo.Members {
		roster = append(roster, m.DID)
		if m.LeafIndex != nil && !holds(group, *m.LeafIndex, m.DID) {
			w.Broken("getConvo says that leaf %d is %s's, in epoch %d of %s", *m.LeafIndex, m.DID, convo.Epoch, c.id)
		}
	}
	slices.Sort(roster)
	if want := c.live(); !slices.Equal(want, roster) {
		w.Broken("the roster of %s is %v, want %v", c.id, roster, want)
	}
	level, _, known := c.followed(v)
	if known && show(convo.CommitLevel) != show(&level) {
		w.Broken("the commit level of %s in epoch %d is %s, want %q", c.id, convo.Epoch, show(convo.CommitLevel), level)
	}
}

// holds reports whether a leaf of the group is a device of did.
func holds(group Group, leaf int64, did syntax.DID) bool {
	return slices.ContainsFunc(group.Leaves(), func(l Leaf) bool {
		return int64(l.Index) == leaf && l.Identity == did.String()
	})
}

// followed says what a server that sees the handshakes alone could check of the
// last commit, and whether it has been given the present epoch's GroupInfo. It
// is known only to one who sees the whole log, and if every commit in it is
// known to the model.
func (c *convoModel) followed(v *view) (level string, info, known bool) {
	tree := c.withInfo
	level, info = mlsapi.ConvoViewCommitLevelHeader, c.withInfo
	if tree {
		level = mlsapi.ConvoViewCommitLevelVerified
	}
	if m := c.members[v.did]; m == nil || m.from > 1 {
		return "", false, false
	}
	for i := range v.log {
		entry := &v.log[i]
		if !isCommit(entry) {
			continue
		}
		made, ok := c.commits[digestOf(entry.Ciphertext)]
		switch {
		case !ok:
			return "", false, false
		case !made.public:
			level, tree = mlsapi.ConvoViewCommitLevelHeader, made.withInfo
		case tree:
			level = mlsapi.ConvoViewCommitLevelVerified
		default:
			level, tree = mlsapi.ConvoViewCommitLevelStructure, made.withInfo
		}
		info = made.withInfo
	}
	return level, info, true
}

// checkTree: the GroupInfo that the server hands out is the present epoch's and
// shows the group as its members have it, and there is one exactly if whoever
// made the epoch has sent it.
func (w *World) checkTree(ctx context.Context, p *Phone, c *convoModel, v *view) {
	_, sent, known := c.followed(v)
	message, err := p.GroupInfo(ctx, c.id)
	if ErrorName(err) == mlsapi.ErrGroupInfoNotFound {
		if known && sent {
			w.Report(Violation{Kind: Lost, Convo: c.id, Who: p.Name, What: "the GroupInfo that came with the last commit is not there"})
		}
		return
	}
	if err != nil {
		w.Broken("%v", err)
		return
	}
	if known && !sent {
		w.Broken("getGroupInfo knows a GroupInfo of %s that nobody has sent", c.id)
	}
	info, err := ReadInfo(message)
	if err != nil {
		w.Broken("%s: %v", p.Name, err)
		return
	}
	group, err := p.Group(c.id)
	if err != nil {
		w.Broken("%v", err)
		return
	}
	same := slices.EqualFunc(info.Leaves, group.Leaves(), func(a, b Leaf) bool {
		return a.Index == b.Index && a.Identity == b.Identity && bytes.Equal(a.SignatureKey, b.SignatureKey)
	})
	if !bytes.Equal(info.GroupID, c.groupID) || int64(info.Epoch) != v.epoch || !same {
		w.Broken("getGroupInfo shows group %x in epoch %d with %d leaves, and %s has %x in %d with %d",
			info.GroupID, info.Epoch, len(info.Leaves), p.Name, c.groupID, v.epoch, len(group.Leaves()))
	}
}
