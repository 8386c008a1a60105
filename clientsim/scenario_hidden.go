package clientsim

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
)

// HiddenHandshakes has members commit in PrivateMessages, of which the server
// reads no more than the header, and in PublicMessages, each with and without the
// new epoch's GroupInfo. The server says what it could check; it follows the
// tree by public commits and learns it anew from a GroupInfo; and it hands out
// the present epoch's GroupInfo or none.
func HiddenHandshakes(ctx context.Context, w *World) error {
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
		p.device.HideHandshakes(step.hidden)
		p.quiet = step.quiet
		if err := p.Rotate(ctx, convo); err != nil {
			return fmt.Errorf("commit %d: %w", i, err)
		}
		if err := w.checked(ctx, p, convo, step.level, !step.quiet); err != nil {
			return err
		}
		if !step.treeKnown {
			if err := w.notWithoutTree(ctx, p, laptop, convo); err != nil {
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

// checked: the server says this of the last commit, and has a GroupInfo or not.
func (w *World) checked(ctx context.Context, p *Phone, convo, level string, info bool) error {
	view, err := p.Convo(ctx, convo)
	if err != nil {
		return err
	}
	if show(view.CommitLevel) != show(&level) {
		w.Broken("the commit level in epoch %d is %s, want %q", view.Epoch, show(view.CommitLevel), level)
	}
	want := ""
	if !info {
		want = mlsapi.ErrGroupInfoNotFound
	}
	if _, err := p.GroupInfo(ctx, convo); ErrorName(err) != want || want == "" && err != nil {
		w.Broken("getGroupInfo in epoch %d: %v, want %q", view.Epoch, err, want)
	}
	return nil
}

// notWithoutTree: an external commit that nobody can verify is not taken, even
// if a member has handed the GroupInfo over.
func (w *World) notWithoutTree(ctx context.Context, member, joiner *Phone, convo string) error {
	group, err := member.Group(convo)
	if err != nil {
		return err
	}
	info, err := group.GroupInfo()
	if err != nil {
		return err
	}
	return w.shutOut(ctx, joiner, convo, info, "an unpublished", mlsapi.ErrGroupInfoNotFound)
}
