package scenario

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// HiddenHandshakes makes members commit in PrivateMessages, whose header alone the server can read,
// and in PublicMessages, each with and without the new GroupInfo. The server says what it could
// check. It follows the tree by public commits, and learns it again from a GroupInfo. It hands out
// the present epoch's GroupInfo or none.
func HiddenHandshakes(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	laptop, err := w.SecondDevice(phones[1], "laptop")
	if err != nil {
		return err
	}
	for i, step := range []struct {
		hidden, quiet bool
		level         string
		treeKnown     bool
	}{
		{hidden: false, quiet: false, level: mlsapi.ConvoViewCommitLevelVerified, treeKnown: true},
		{hidden: true, quiet: false, level: mlsapi.ConvoViewCommitLevelHeader, treeKnown: true},
		{hidden: false, quiet: false, level: mlsapi.ConvoViewCommitLevelVerified, treeKnown: true},
		{hidden: true, quiet: true, level: mlsapi.ConvoViewCommitLevelHeader},
		{hidden: false, quiet: true, level: mlsapi.ConvoViewCommitLevelStructure},
		{hidden: false, quiet: false, level: mlsapi.ConvoViewCommitLevelStructure, treeKnown: true},
		{hidden: false, quiet: true, level: mlsapi.ConvoViewCommitLevelVerified, treeKnown: true},
		{hidden: false, quiet: true, level: mlsapi.ConvoViewCommitLevelVerified, treeKnown: true},
		{hidden: true, quiet: false, level: mlsapi.ConvoViewCommitLevelHeader, treeKnown: true},
	} {
		p := phones[i%len(phones)]
		p.Device.HideHandshakes(step.hidden)
		p.HidesGroupInfo = step.quiet
		if err := p.Rotate(ctx, convo); err != nil {
			return fmt.Errorf("commit %d: %w", i, err)
		}
		if err := checked(ctx, w, p, convo, step.level, !step.quiet); err != nil {
			return err
		}
		if !step.treeKnown {
			if err := notWithoutTree(ctx, w, p, laptop, convo); err != nil {
				return err
			}
		}
		if err := p.Send(ctx, convo, fmt.Sprintf("after commit %d", i)); err != nil {
			return err
		}
	}
	if err := laptop.Rejoin(ctx, convo); err != nil {
		return err
	}
	return w.SyncAll(ctx, convo, append(phones, laptop)...)
}

// checked checks what the server says about the last commit, and whether it has a GroupInfo.
func checked(ctx context.Context, w *testbed.World, p *client.Phone, convo, level string, info bool) error {
	view, err := p.Convo(ctx, convo)
	if err != nil {
		return err
	}
	if xrpc.Show(view.CommitLevel) != xrpc.Show(&level) {
		w.Broken("the commit level in epoch %d is %s, want %q", view.Epoch, xrpc.Show(view.CommitLevel), level)
	}
	want := ""
	if !info {
		want = mlsapi.ErrGroupInfoNotFound
	}
	if _, err := p.GroupInfo(ctx, convo); xrpc.ErrorName(err) != want || want == "" && err != nil {
		w.Broken("getGroupInfo in epoch %d: %v, want %q", view.Epoch, err, want)
	}
	return nil
}

// notWithoutTree checks that the server refuses an external commit that it cannot verify, even if a
// member passed the GroupInfo on.
func notWithoutTree(ctx context.Context, w *testbed.World, member, joiner *client.Phone, convo string) error {
	group, err := member.Group(convo)
	if err != nil {
		return err
	}
	info, err := group.GroupInfo()
	if err != nil {
		return err
	}
	return w.CheckRefusedJoin(ctx, joiner, convo, info, "an unpublished", mlsapi.ErrGroupInfoNotFound)
}
