package mlsclient

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	mlsext "github.com/thomas-vilte/mls-go/extensions"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"
	"github.com/thomas-vilte/mls-go/treesync"
)

// copyGroup clones a group by serialising it. The copy lacks the secrets of past epochs, which are
// not needed: the log is read in order.
func copyGroup(g *group.Group) (*group.Group, error) {
	state, err := g.MarshalState()
	if err != nil {
		return nil, err
	}
	return group.UnmarshalGroupState(state)
}

// MLSMessage wire formats (RFC 9420 §6).
const (
	formatPrivateMessage = 2
	formatWelcome        = 3
	formatGroupInfo      = 4
	formatKeyPackage     = 5
)

// wrap puts the MLSMessage header, version mls10 and the wire format, before an object. The library
// marshals these objects without it.
func wrap(format byte, object []byte) []byte {
	return append([]byte{0, 1, 0, format}, object...)
}

func unwrap(format byte, message []byte) ([]byte, error) {
	object, ok := bytes.CutPrefix(message, []byte{0, 1, 0, format})
	if !ok {
		return nil, fmt.Errorf("not an MLSMessage of wire format %d", format)
	}
	return object, nil
}

// readPackage parses a framed KeyPackage.
func readPackage(message []byte) (*keypackages.KeyPackage, error) {
	raw, err := unwrap(formatKeyPackage, message)
	if err != nil {
		return nil, err
	}
	return keypackages.UnmarshalKeyPackage(raw)
}

// PackageLeaf returns the leaf of a KeyPackage. It has no index yet.
func PackageLeaf(message []byte) (Leaf, error) {
	kp, err := readPackage(message)
	if err != nil {
		return Leaf{}, fmt.Errorf("key package: %w", err)
	}
	return Leaf{Identity: string(kp.LeafNode.Credential.Identity), SignatureKey: kp.LeafNode.SignatureKeyBytes}, nil
}

// SpoilWelcome returns a Welcome whose encrypted_group_info does not decrypt. A Welcome ends with
// the tag of that encryption (RFC 9420 §12.4.3.1).
func SpoilWelcome(welcome []byte) []byte {
	spoilt := bytes.Clone(welcome)
	spoilt[len(spoilt)-1] ^= 1
	return spoilt
}

// IsLastResort reports whether a KeyPackage has the last_resort extension.
func IsLastResort(message []byte) (bool, error) {
	kp, err := readPackage(message)
	if err != nil {
		return false, fmt.Errorf("key package: %w", err)
	}
	return slices.ContainsFunc(kp.Extensions, func(e keypackages.Extension) bool {
		return e.Type == mlsext.ExtensionTypeLastResort
	}), nil
}

// readGroupInfo parses a framed GroupInfo and its tree.
func readGroupInfo(message []byte) (*group.Info, *treesync.RatchetTree, error) {
	raw, err := unwrap(formatGroupInfo, message)
	if err != nil {
		return nil, nil, err
	}
	info, err := group.UnmarshalGroupInfo(raw)
	if err != nil {
		return nil, nil, err
	}
	for _, ext := range info.Extensions {
		if ext.Type == mlsext.ExtensionTypeRatchetTree {
			tree, err := treesync.UnmarshalTreeFromExtension(ext.Data, info.GroupContext.CipherSuite)
			return info, tree, err
		}
	}
	return nil, nil, errors.New("no ratchet tree in the GroupInfo")
}

// leavesOf lists the devices in a tree.
func leavesOf(tree *treesync.RatchetTree) []Leaf {
	var leaves []Leaf
	for i := range tree.NumLeaves {
		node := tree.GetLeaf(treesync.LeafIndex(i))
		if node == nil || node.LeafData == nil || node.State != treesync.NodeStatePresent {
			continue
		}
		leaves = append(leaves, Leaf{
			Index: i, Identity: string(node.LeafData.Credential.Identity), SignatureKey: node.LeafData.SigKeyBytes(),
		})
	}
	return leaves
}

// ReadInfo reads a GroupInfo without the group's secrets.
func ReadInfo(groupInfo []byte) (*Info, error) {
	info, tree, err := readGroupInfo(groupInfo)
	if err != nil {
		return nil, fmt.Errorf("read a GroupInfo: %w", err)
	}
	read := &Info{GroupID: info.GroupContext.GroupID.AsSlice(), Epoch: info.GroupContext.Epoch.AsUint64(),
		Leaves: leavesOf(tree)}
	for _, leaf := range read.Leaves {
		if leaf.Index == uint32(info.Signer) {
			read.Signer = leaf.Identity
		}
	}
	return read, nil
}

// PackageRef is the KeyPackageRef of a framed KeyPackage.
func PackageRef(message []byte) ([]byte, error) {
	kp, err := readPackage(message)
	if err != nil {
		return nil, fmt.Errorf("key package: %w", err)
	}
	return hex.DecodeString(refOf(message[len(wrap(formatKeyPackage, nil)):], kp.CipherSuite))
}

// refOf is the KeyPackageRef (RFC 9420 §5.2) of a KeyPackage without its MLSMessage header. The
// library's KeyPackage.Hash is something else.
func refOf(bare []byte, cs ciphersuite.CipherSuite) string {
	return hex.EncodeToString(ciphersuite.MakeKeyPackageRef(bare, cs.HashFunction()).AsSlice())
}

// IsPublic reports whether a handshake is a PublicMessage.
func IsPublic(message []byte) bool { return bytes.HasPrefix(message, []byte{0, 1, 0, 1}) }

// HeaderEpoch reads the epoch from a message's own header. The checks use it instead of the epoch
// that the server states.
//
// It reads no further, because the library cannot read every proposal.
func HeaderEpoch(message []byte) (uint64, error) {
	if !IsPublic(message) && !bytes.HasPrefix(message, []byte{0, 1, 0, formatPrivateMessage}) {
		return 0, errors.New("header: neither a PublicMessage nor a PrivateMessage")
	}
	_, rest, err := cutVector(message[4:])
	if err != nil {
		return 0, fmt.Errorf("header: group_id: %w", err)
	}
	if len(rest) < 8 {
		return 0, errors.New("header: no epoch")
	}
	return binary.BigEndian.Uint64(rest), nil
}

// cutVector splits a vector with its length (RFC 9420 §2.1.2) from what follows it.
func cutVector(b []byte) (content, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errors.New("no vector")
	}
	size, n := 1<<(b[0]>>6), uint64(b[0]&0x3f)
	if size > 4 || len(b) < size {
		return nil, nil, errors.New("no length of a vector")
	}
	for _, next := range b[1:size] {
		n = n<<8 | uint64(next)
	}
	if n > uint64(len(b)-size) {
		return nil, nil, errors.New("a vector that is cut off")
	}
	return b[size : size+int(n)], b[size+int(n):], nil
}
