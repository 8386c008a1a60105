package mlsclient

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	mlsext "github.com/thomas-vilte/mls-go/extensions"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"

	. "mlsd/clientsim/steps"
)

// copyGroup clones a group by serialising it. The copy lacks the secrets of past epochs, which are
// not needed: the log is read in order.
func copyGroup(g *group.Group) (_ *group.Group, err error) {
	defer Catch(&err)
	state := Must(g.MarshalState())
	return group.UnmarshalGroupState(state)
}

// MLSMessage wire formats (RFC 9420 §6).
const (
	formatPrivateMessage = 2
	formatWelcome        = 3
	formatGroupInfo      = 4
	formatKeyPackage     = 5
)

// wrap puts the MLSMessage header before an object: version mls10 and the wire format. The library
// marshals these objects without the header.
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
func readPackage(message []byte) (_ *keypackages.KeyPackage, err error) {
	defer Catch(&err)
	raw := Must(unwrap(formatKeyPackage, message))
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

// readGroupInfo reads a GroupInfo. It also returns the ratchet tree, but does not parse it.
func readGroupInfo(message []byte) (info *group.Info, tree []byte, err error) {
	defer Catch(&err)
	raw := Must(unwrap(formatGroupInfo, message))
	info = Must(group.UnmarshalGroupInfo(raw))
	for _, ext := range info.Extensions {
		if ext.Type == mlsext.ExtensionTypeRatchetTree {
			return info, ext.Data, nil
		}
	}
	return nil, nil, errors.New("no ratchet tree in the GroupInfo")
}

// leavesOf lists the devices in the data of a ratchet_tree extension (RFC 9420 §12.4.3.3). It
// skips encryption keys, because the library does not know the keys of all suites.
func leavesOf(extension []byte) (leaves []Leaf, err error) {
	nodes, _, err := cutVector(extension)
	one := func() byte { // the next byte
		if err == nil && len(nodes) == 0 {
			err = errors.New("a node that is cut off")
		}
		if err != nil {
			return 0
		}
		defer func() { nodes = nodes[1:] }()
		return nodes[0]
	}
	vectors := func(n int) (last []byte) { // the content of the last of the next n
		for i := 0; i < n && err == nil; i++ {
			last, nodes, err = cutVector(nodes)
		}
		return last
	}
	for index := uint32(0); err == nil && len(nodes) > 0; index++ {
		const parent, fromKeyPackage, fromCommit = 2, 1, 3
		switch {
		case one() == 0: // blank
			continue
		case one() == parent:
			vectors(3) // encryption_key, parent_hash, unmerged_leaves
			continue
		}
		leaf := Leaf{Index: index / 2, SignatureKey: vectors(2)} // after encryption_key
		one()
		one() // credential_type
		leaf.Identity = string(vectors(1))
		vectors(5) // capabilities
		switch one() {
		case fromKeyPackage:
			for range 16 { // lifetime
				one()
			}
		case fromCommit:
			vectors(1) // parent_hash
		}
		vectors(2) // extensions, signature
		leaves = append(leaves, leaf)
	}
	return leaves, err
}

// ReadInfo reads a GroupInfo without the group's secrets.
func ReadInfo(groupInfo []byte) (*Info, error) {
	info, tree, err := readGroupInfo(groupInfo)
	if err != nil {
		return nil, fmt.Errorf("read a GroupInfo: %w", err)
	}
	read := &Info{GroupID: info.GroupContext.GroupID.AsSlice(), Epoch: info.GroupContext.Epoch.AsUint64()}
	if read.Leaves, err = leavesOf(tree); err != nil {
		return nil, fmt.Errorf("read a GroupInfo's tree: %w", err)
	}
	for _, leaf := range read.Leaves {
		if leaf.Index == uint32(info.Signer) {
			read.Signer = leaf.Identity
		}
	}
	return read, nil
}

// PackageRef returns the KeyPackageRef of a framed KeyPackage.
func PackageRef(message []byte) ([]byte, error) {
	if _, err := readPackage(message); err != nil {
		return nil, fmt.Errorf("key package: %w", err)
	}
	return hex.DecodeString(refOf(message[len(wrap(formatKeyPackage, nil)):]))
}

// refOf returns the KeyPackageRef (RFC 9420 §5.2) of a KeyPackage without its MLSMessage header.
// The library's KeyPackage.Hash is something else. All suites of the simulator have SHA-256.
func refOf(bare []byte) string {
	return hex.EncodeToString(ciphersuite.MakeKeyPackageRef(bare, sha256.New).AsSlice())
}

// IsPublic reports whether a handshake is a PublicMessage.
func IsPublic(message []byte) bool { return bytes.HasPrefix(message, []byte{0, 1, 0, 1}) }

// HeaderEpoch reads the epoch from a message's own header. The checks use this epoch instead of the
// epoch that the server states. HeaderEpoch reads no further, because the library cannot read every
// proposal.
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

// cutVector splits a vector with its length (RFC 9420 §2.1.2) from the bytes after it.
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
