package repository

import (
	"bytes"

	"github.com/bluesky-social/indigo/atproto/repo/mst"
	"github.com/ipfs/go-cid"
	"github.com/ipld/go-car"
	carutil "github.com/ipld/go-car/util"

	. "mlsd/clientsim/steps"
)

// Proof returns a CAR file which proves what the account has signed about path: the record, or that
// there is none. It has the commit, the nodes of the tree on the way to path, and the record.
func (s *State) Proof(path string) (_ []byte, err error) {
	defer CatchIn(&err, "proof of %s", path)
	var file bytes.Buffer
	Check(car.WriteHeader(&car.CarHeader{Roots: []cid.Cid{s.commit.cid}, Version: 1}, &file))
	blocks := append([]block{s.commit}, Must(wayTo(s.tree.Root, []byte(path)))...)
	if record, ok := s.records[path]; ok {
		blocks = append(blocks, record)
	}
	for _, b := range blocks {
		Check(carutil.LdWrite(&file, b.cid.Bytes(), b.data))
	}
	return file.Bytes(), nil
}

// wayTo returns the nodes in which a reader looks for key, from the root on. Their CIDs are known.
func wayTo(node *mst.Node, key []byte) (way []block, err error) {
	for node != nil {
		content := node.NodeData()
		data, id, err := content.Bytes()
		if err != nil {
			return nil, err
		}
		way = append(way, block{*id, data})
		node = childFor(node, key)
	}
	return way, nil
}

// childFor returns the child of node that can have key. It returns nil if node has the key, or if
// nothing below node can have it.
func childFor(node *mst.Node, key []byte) (child *mst.Node) {
	for _, e := range node.Entries {
		switch {
		case !e.IsValue():
			child = e.Child
		case bytes.Equal(e.Key, key):
			return nil
		case bytes.Compare(e.Key, key) > 0:
			return child
		default:
			child = nil // it is before the entry, and key is behind it
		}
	}
	return child
}
