package mlsclient

import (
	"bytes"
	"slices"

	"mlsd/mls"
)

// span is a part of an object, in bytes.
type span struct{ from, to int }

// mutate flips bits of an object. judge must refuse each changed object, unless the flip is in one
// of the spans that only members with secrets can check. judge must accept a flip in these spans,
// so that the list of spans is no longer than needed. The sixth object of a kind, and every
// sixtieth after it, gets a flip in every byte. The other objects get a few flips.
func (j *judge) mutate(kind string, object []byte, unchecked []span, judge func([]byte) error) {
	j.t.Helper()
	j.changed[kind]++
	every := j.changed[kind]%60 == 6
	for i := range object {
		if !every && j.flips.IntN(len(object)) >= 6 {
			continue
		}
		bad := bytes.Clone(object)
		bad[i] ^= 1 << j.flips.IntN(8)
		accepted := judge(bad) == nil
		want := false
		for _, s := range unchecked {
			want = want || s.from <= i && i < s.to
		}
		if accepted != want {
			j.t.Errorf("step %d: %s with a bit of byte %d of %d flipped: accepted %v", j.steps, kind, i, len(object), accepted)
		}
		if !accepted {
			j.mutants[kind]++
		}
	}
}

// Sizes of both tags, a MAC of suites 1, 2 and 3: alone, and with its length.
const (
	tagSize   = 32
	tagVector = 1 + tagSize
)

// mutateCommit changes a valid commit. Only members can check the membership_tag and the
// confirmation_tag of a member's commit, but the GroupInfo with the commit repeats the
// confirmation_tag.
func (j *judge) mutateCommit(staged *Staged, change *mls.Change, pending *mls.ProposalMessage) {
	j.t.Helper()
	kind, end := "commit", len(staged.Commit)
	membership := span{end - tagSize, end}
	confirmation := span{membership.from - tagVector, membership.from - 1}
	switch {
	case change.External:
		kind, membership, confirmation = "external commit", span{}, membership
	case pending != nil:
		kind = "commit by reference"
	}
	apply := func(commit []byte) (*mls.Change, error) { return j.apply(commit, pendingOf(pending)...) }
	j.mutate(kind, staged.Commit, []span{membership}, func(commit []byte) error {
		changed, err := apply(commit)
		if err != nil {
			return err
		}
		info, err := mls.ParseGroupInfo(staged.GroupInfo)
		if err != nil {
			return err
		}
		return changed.Next.Matches(&info)
	})
	for _, s := range []span{confirmation, membership} {
		if s.from == s.to {
			continue
		}
		bad := bytes.Clone(staged.Commit)
		bad[s.from+j.flips.IntN(tagSize)] ^= 1
		if _, err := apply(bad); err != nil {
			j.t.Errorf("step %d: %s with another tag: %v", j.steps, kind, err)
		}
		j.membersRefuse(bad, change)
	}
	bad := bytes.Clone(staged.Commit)
	bad[j.flips.IntN(end)] ^= 1 << j.flips.IntN(8)
	j.membersRefuse(bad, change)
}

// membersRefuse checks that a member's library also refuses a changed commit.
func (j *judge) membersRefuse(commit []byte, change *mls.Change) {
	j.t.Helper()
	for _, m := range j.members {
		g := j.group(m)
		leaf := uint32(g.state.OwnLeafIndex())
		is := func(r mls.Removal) bool { return r.Leaf == leaf }
		if leaf == change.Committer && !change.External || slices.ContainsFunc(change.Removes, is) {
			continue // this member would refuse the unchanged commit
		}
		copied, err := copyGroup(g.state)
		j.must("copy", err)
		if _, err := (&goGroup{device: m, state: copied}).Process(commit); err == nil {
			j.t.Errorf("step %d: the library accepts a changed commit", j.steps)
		}
		return
	}
}

// mutateProposal changes a proposal that a commit refers to. With another signature or content, it
// is another proposal, and the commit does not refer to it.
func (j *judge) mutateProposal(message []byte, staged *Staged) {
	j.t.Helper()
	end := len(message)
	j.mutate("proposal", message, []span{{end - tagSize, end}}, func(proposal []byte) error {
		pending, err := mls.ParseProposal(proposal)
		if err != nil {
			return err
		}
		_, err = j.apply(staged.Commit, pending)
		return err
	})
}

// mutateGroupInfo changes a GroupInfo and its tree. The result is checked against the group, and by
// itself.
func (j *judge) mutateGroupInfo(message []byte, g *mls.Group) {
	j.t.Helper()
	j.mutate("GroupInfo", message, nil, func(bad []byte) error {
		if _, err := verifyGroupInfo(bad); err == nil {
			return nil
		}
		info, err := mls.ParseGroupInfo(bad)
		if err != nil {
			return err
		}
		return g.Matches(&info)
	})
	hash := g.Tree.Hash()
	j.mutate("tree", g.Tree.Encode(), nil, func(bad []byte) error {
		tree, err := mls.ParseTree(g.CipherSuite, bad)
		if err != nil {
			return err
		}
		if bytes.Equal(tree.Hash(), hash) {
			j.t.Errorf("step %d: a changed tree has the same hash", j.steps)
		}
		return tree.Verify(g.GroupID)
	})
}
