package scenario

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// HiddenHandshakes makes members commit in PrivateMessages and in PublicMessages, each with and
// without the new GroupInfo. The server can read only the header of a PrivateMessage. The server
// says what it could check. It follows the tree by public commits, and learns the tree again from a
// GroupInfo. It hands out the GroupInfo of the present epoch, or none.
func HiddenHandshakes(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 3))
	laptop := Must(w.SecondDevice(phones[1], "laptop"))
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
		Check(errs.Wrap(p.Rotate(ctx, convo), "commit %d", i))
		checked(ctx, w, p, convo, step.level, !step.quiet)
		if !step.treeKnown {
			notWithoutTree(ctx, w, p, laptop, convo)
		}
		Check(p.Send(ctx, convo, fmt.Sprintf("after commit %d", i)))
	}
	Check(laptop.Rejoin(ctx, convo))
	Check(w.SyncAll(ctx, convo, append(phones, laptop)...))
}

// checked checks what the server says about the last commit, and whether it has a GroupInfo.
func checked(ctx context.Context, w *testbed.World, p *client.Phone, convo, level string, info bool) {
	view := Must(p.Convo(ctx, convo))
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
}

// notWithoutTree checks that the server refuses an external commit that it cannot verify, even if a
// member has passed the GroupInfo on.
func notWithoutTree(ctx context.Context, w *testbed.World, member, joiner *client.Phone, convo string) {
	group := Must(member.Group(convo))
	info := Must(group.GroupInfo())
	Check(w.CheckRefusedJoin(ctx, joiner, convo, info, "an unpublished", mlsapi.ErrGroupInfoNotFound))
}
