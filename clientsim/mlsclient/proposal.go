package mlsclient

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/thomas-vilte/mls-go/keypackages"

	. "mlsd/clientsim/steps"
)

// Proposal is a kind of proposal that only some libraries make.
type Proposal string

const (
	// SelfRemove asks for the removal of the device itself (0x000A, draft-ietf-mls-extensions).
	SelfRemove Proposal = "selfRemove"
	// Custom is a proposal of type 0xF001, whose content the application defines. The argument is
	// that content.
	Custom Proposal = "custom"
	// PSK brings an external PSK into the group (RFC 9420 §12.1.4). The argument is its id.
	PSK Proposal = "psk"
	// ReInit closes the group (RFC 9420 §12.1.5). The argument is the successor's group_id.
	ReInit Proposal = "reInit"
	// Raw is any proposal, valid or not. The argument is its encoding.
	Raw Proposal = "raw"
)

// Proposer is a group whose library makes some of these proposals.
type Proposer interface {
	// Propose returns an MLSMessage holding a proposal, in clear unless it is a Raw proposal of a
	// device that hides its handshakes. The next commit of the device, or of
	// a member that processed the proposal, refers to it. It is an error if the library cannot make
	// such a proposal.
	Propose(kind Proposal, argument []byte) ([]byte, error)
}

// Greaser is a device that may make GREASE extensions (RFC 9420 §13.5).
type Greaser interface {
	// Grease gives the device's coming KeyPackages and their leaves a GREASE extension, if its
	// library takes one.
	Grease() error
}

// PSKKeeper is a device whose library takes external PSKs.
type PSKKeeper interface {
	// KeepPSK stores an external PSK under its id.
	KeepPSK(id, secret []byte) error
}

// RefersTo reports whether a commit in clear refers to a member's proposal in clear, in a cipher
// suite with SHA-256. The ProposalRef (RFC 9420 §5.2) is the hash of the proposal's
// AuthenticatedContent: the MLSMessage without its version and its membership_tag.
func RefersTo(commit, proposal []byte) (bool, error) {
	const versionSize, tagSize = 2, 1 + sha256.Size
	if len(proposal) < versionSize+tagSize || !IsPublic(proposal) || !IsPublic(commit) {
		return false, errors.New("not a commit and a proposal in clear")
	}
	input := appendVector(nil, []byte("MLS 1.0 Proposal Reference"))
	input = appendVector(input, proposal[versionSize:len(proposal)-tagSize])
	ref := sha256.Sum256(input)
	return bytes.Contains(commit, appendVector([]byte{2}, ref[:])), nil // ProposalOrRef, type reference
}

// CheckGrease checks that a framed KeyPackage has a GREASE value (RFC 9420 §13.5) in each list of
// its capabilities that can have one.
func CheckGrease(message []byte) (err error) {
	defer Catch(&err)
	kp := Must(readPackage(message))
	listed := kp.LeafNode.Capabilities
	suites := make([]uint16, len(listed.CipherSuites))
	for i, suite := range listed.CipherSuites {
		suites[i] = uint16(suite)
	}
	for list, values := range map[string][]uint16{
		"cipher_suites": suites, "extensions": listed.Extensions, "proposals": listed.Proposals,
		"credentials": listed.Credentials,
	} {
		if !slices.ContainsFunc(values, isGrease) {
			return fmt.Errorf("capabilities.%s has no GREASE value: %04x", list, values)
		}
	}
	return nil
}

// CheckGreaseExtensions checks that a framed KeyPackage and its leaf each have a GREASE extension.
func CheckGreaseExtensions(message []byte) (err error) {
	defer Catch(&err)
	kp := Must(readPackage(message))
	grease := func(e keypackages.Extension) bool { return isGrease(uint16(e.Type)) }
	if !slices.ContainsFunc(kp.Extensions, grease) || !slices.ContainsFunc(kp.LeafNode.Extensions, grease) {
		return errors.New("no GREASE extension in the KeyPackage or in its leaf")
	}
	return nil
}

// isGrease reports whether a value is 0x0A0A, 0x1A1A, … 0xEAEA.
func isGrease(v uint16) bool { return v>>8 == v&0xff && v&0x0f == 0x0a && v != 0xfafa }
