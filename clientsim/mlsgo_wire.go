package clientsim

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"
)

// copyGroup clones a group through its serialised form. What the copy lacks,
// the secrets of past epochs, is never needed: the log is read in order.
func copyGroup(g *group.Group) (*group.Group, error) {
	state, err := g.MarshalState()
	if err != nil {
		return nil, err
	}
	return group.UnmarshalGroupState(state)
}

// MLSMessage wire formats (RFC 9420 §6).
const (
	formatWelcome    = 3
	formatGroupInfo  = 4
	formatKeyPackage = 5
)

// wrap puts the MLSMessage header, version mls10 and the wire format, before
// an object: the library marshals these three bare.
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

// refOf is the KeyPackageRef (RFC 9420 §5.2) over the bare KeyPackage; the
// library's KeyPackage.Hash is something else.
func refOf(bare []byte, cs ciphersuite.CipherSuite) string {
	return hex.EncodeToString(ciphersuite.MakeKeyPackageRef(bare, cs.HashFunction()).AsSlice())
}

// headerEpoch reads the epoch out of a commit's or message's own header, for
// the checker: what a row says of itself is the server's word, this is not.
func headerEpoch(message []byte) (uint64, error) {
	parsed, err := framing.UnmarshalMLSMessage(message)
	if err != nil {
		return 0, fmt.Errorf("header: %w", err)
	}
	if public, ok := parsed.AsPublic(); ok {
		return public.Content.Epoch, nil
	}
	if private, ok := parsed.AsPrivate(); ok {
		return private.Epoch, nil
	}
	return 0, fmt.Errorf("header: wire format %d has no epoch", parsed.WireFormat())
}
