package mls

import (
	"bytes"
	"slices"
)

// step is a parent on a filtered direct path, and the child of this parent that is not on the path.
type step struct{ parent, copath nodeIndex }

// filteredPath returns the filtered direct path of a leaf (§4.1.2), upwards. A parent is on this
// path if the resolution of its other child is not empty.
func (t *Tree) filteredPath(leaf uint32) []step {
	var path []step
	for x := leafNodeIndex(leaf); x != t.root(); x = x.parent() {
		copath := x.sibling()
		if !t.resolve(copath, func(nodeIndex) bool { return false }) {
			path = append(path, step{x.parent(), copath})
		}
	}
	return path
}

// applyPath checks the UpdatePath and merges it into the tree (§7.5, §12.4.2). The tree must have
// the hashes from after the proposals.
func (a *applier) applyPath() error {
	path := a.c.parts.path
	if path == nil {
		return nil
	}
	leaf := a.change.Committer
	steps := a.tree.filteredPath(leaf)
	if err := a.checkPath(path, leaf, steps); err != nil {
		return err
	}
	a.tree.blankPath(leaf)
	var hash []byte // hash of the node above
	for i, s := range slices.Backward(steps) {
		a.tree.parents[s.parent/2] = &parentNode{encryptionKey: path.nodes[i].encryptionKey, parentHash: hash}
		hash = a.tree.parentHash(s.parent, s.copath)
	}
	if !bytes.Equal(path.leaf.parentHash, hash) {
		return refuseCommit(ErrMalformed, "LeafNode.parent_hash", "7.9.2", "not that of the path")
	}
	before, wasMember := a.tree.Member(leaf)
	a.tree.leaves[leaf] = &path.leaf
	a.tree.rehashPath(leaf)
	if after := path.leaf.member(leaf); wasMember {
		a.change.Updates = append(a.change.Updates, Update{before, after})
	} else {
		a.change.Adds = append(a.change.Adds, Addition{Member: after})
	}
	return nil
}

// checkPath checks an UpdatePath before it is merged into the tree. It checks the leaf's source,
// keys and signature (§7.3). Each step must have a node with a new key (§12.4.2). Each node in the
// resolution of the copath child, except new members, must have a ciphertext of the right size
// (§7.6).
func (a *applier) checkPath(path *updatePath, leaf uint32, steps []step) error {
	if path.leaf.source != leafFromCommit {
		return refuseCommit(ErrMalformed, "LeafNode.leaf_node_source", "7.3", "not commit")
	}
	if len(path.nodes) != len(steps) {
		return refuseCommit(ErrMalformed, "UpdatePath.nodes", "7.5", "not one for each node of the filtered direct path")
	}
	keys := a.tree.encryptionKeys()
	if a.change.External {
		for _, m := range a.change.Removes { // the committer's own older leaf (§12.2)
			addKey(keys, m.EncryptionKey)
		}
	}
	if !addKey(keys, path.leaf.encryptionKey) {
		return refuseCommit(ErrMalformed, "LeafNode.encryption_key", "12.4.2", "a key of the tree")
	}
	for i, s := range steps {
		node := &path.nodes[i]
		switch {
		case !a.tree.suite.validHPKEKey(node.encryptionKey):
			return refuseCommit(ErrMalformed, "UpdatePathNode.encryption_key", "5.1.1",
				a.tree.suite.wrongHPKEKey(node.encryptionKey))
		case !addKey(keys, node.encryptionKey):
			return refuseCommit(ErrMalformed, "UpdatePathNode.encryption_key", "12.4.2", "a key of the tree")
		}
		want := 0
		a.tree.resolve(s.copath, func(x nodeIndex) bool {
			if !x.isLeaf() || !contains(a.added, x.leaf()) {
				want++
			}
			return true
		})
		if err := a.checkSecrets(node.secrets, want); err != nil {
			return err
		}
	}
	return a.tree.suite.verifyLeaf(&path.leaf, a.g.GroupID, leaf)
}

// checkSecrets checks the number and the sizes of encrypted path secrets.
func (a *applier) checkSecrets(list []byte, want int) error {
	const tag = 16 // bytes of the AEAD's tag in every suite
	suite := a.tree.suite
	r := newReader("Commit", list)
	r.in = place{"UpdatePathNode", "7.6"}
	for ; len(r.s) > 0 && want > 0; want-- {
		kem, ciphertext := r.opaque("kem_output"), r.opaque("ciphertext")
		if r.err == nil && (!suite.validKEMOutput(kem) || len(ciphertext) != suite.hashSize()+tag) {
			r.malformed("encrypted_path_secret", "not an HPKE ciphertext of the suite")
		}
	}
	if want != 0 || len(r.s) > 0 {
		r.malformed("encrypted_path_secret", "not one for each node to encrypt to")
	}
	return r.finish()
}

// encryptionKeys returns the set of all encryption keys in the tree.
func (t *Tree) encryptionKeys() map[string]struct{} {
	keys := make(map[string]struct{}, len(t.leaves))
	for _, l := range t.leaves {
		if l != nil {
			addKey(keys, l.encryptionKey)
		}
	}
	for _, p := range t.parents {
		if p != nil {
			addKey(keys, p.encryptionKey)
		}
	}
	return keys
}
