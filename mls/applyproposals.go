package mls

import (
	"slices"
	"strconv"
)

// applyProposals applies the checked proposals to the tree, in the order of RFC 9420 §12.3.
func (a *applier) applyProposals() error {
	for _, p := range a.proposals {
		if p.Type == ProposalGroupContextExtensions {
			a.context, a.change.Context, a.change.ContextBy = p.Extensions, true, p.by
		}
	}
	for _, p := range a.proposals {
		if p.Type == ProposalUpdate {
			before, _ := a.tree.Member(p.leaf)
			a.tree.leaves[p.leaf] = p.Proposal.leaf
			a.tree.blankPath(p.leaf)
			a.change.Updates = append(a.change.Updates, Update{before, p.Proposal.leaf.member(p.leaf)})
		}
	}
	for _, p := range a.proposals {
		if leaf, ok := p.removes(); ok {
			gone, _ := a.tree.Member(leaf)
			a.tree.leaves[leaf] = nil
			a.tree.blankPath(leaf)
			a.change.Removes = append(a.change.Removes, Removal{gone, p.by})
		}
	}
	a.tree.truncate()
	from := 0
	for _, p := range a.proposals {
		if p.Type == ProposalAdd {
			leaf, err := a.tree.blankLeaf(from)
			if err != nil {
				return err
			}
			a.tree.add(leaf, &p.KeyPackage.leaf)
			a.added = append(a.added, leaf)
			a.change.Adds = append(a.change.Adds, Addition{p.KeyPackage.leaf.member(leaf), p.KeyPackage.Ref,
				p.KeyPackage.NotAfter})
			from = int(leaf) + 1
		}
	}
	a.change.Committer = a.c.Sender
	if a.change.External {
		leaf, err := a.tree.blankLeaf(from)
		if err != nil {
			return err
		}
		a.change.Committer = leaf
	}
	a.tree.rehash()
	return nil
}

// removes returns the leaf that a Remove or a SelfRemove removes.
func (p *sentProposal) removes() (leaf uint32, ok bool) {
	if p.Type == ProposalSelfRemove {
		return p.leaf, true
	}
	return p.Removed, p.Type == ProposalRemove
}

// blankPath blanks every parent above a leaf.
func (t *Tree) blankPath(leaf uint32) {
	for x := leafNodeIndex(leaf); x != t.root(); {
		x = x.parent()
		t.parents[x/2] = nil
	}
}

// truncate drops right halves without a member (§7.7). A tree without any member keeps one leaf.
func (t *Tree) truncate() {
	last := len(t.leaves) - 1
	for last > 0 && t.leaves[last] == nil {
		last--
	}
	n := 1
	for n <= last {
		n *= 2
	}
	t.resize(n)
}

// blankLeaf returns the leftmost blank leaf. It extends the tree if there is none (§7.7, §12.1.1).
// The leaves before from must not be blank.
func (t *Tree) blankLeaf(from int) (uint32, error) {
	for i := from; i < len(t.leaves); i++ {
		if t.leaves[i] == nil {
			return uint32(i), nil
		}
	}
	n := len(t.leaves)
	if 2*n > MaxTreeLeaves {
		return 0, refuseTree(ErrUnsupported, "nodes", "", "more than "+strconv.Itoa(MaxTreeLeaves)+" leaves")
	}
	t.resize(2 * n)
	return uint32(n), nil
}

// add sets a new member's leaf. The leaf is unmerged in every parent above it (§12.1.1). The
// previous tree shares the parents, so they are replaced, not changed.
func (t *Tree) add(leaf uint32, l *leafNode) {
	t.leaves[leaf] = l
	for x := leafNodeIndex(leaf); x != t.root(); {
		x = x.parent()
		if p := t.parents[x/2]; p != nil {
			at, _ := slices.BinarySearch(p.unmerged, leaf)
			unmerged := slices.Insert(slices.Clone(p.unmerged), at, leaf)
			t.parents[x/2] = &parentNode{p.encryptionKey, p.parentHash, unmerged}
		}
	}
}
