// Package mlsclient is the simulator's MLS client: real objects by an MLS library, forged ones that
// a server must refuse, and cheap fake ones for load. It is the only package that imports an MLS
// library, because the server's verdict must not rest on the code that made the object. Agents are
// processes with devices of other libraries.
package mlsclient

import (
	"errors"
	"slices"
)

// This file is all that the simulator knows about MLS: two small interfaces and a few plain types.
// mlsgo_*.go implement the interfaces with the library of this process, agent*.go with agents.

// Suite is an MLS cipher suite by its IANA number (RFC 9420 §17.1).
type Suite uint16

// The suites of the simulator. The library of this process has the first three, agents have all.
const (
	SuiteX25519   Suite = 1
	SuiteP256     Suite = 2
	SuiteChaCha20 Suite = 3
	SuiteXWing    Suite = 0x004D
)

// Name returns the registered name, as the contract's cipherSuite field carries it.
func (s Suite) Name() string {
	switch s {
	case SuiteX25519:
		return "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
	case SuiteP256:
		return "MLS_128_DHKEMP256_AES128GCM_SHA256_P256"
	case SuiteChaCha20:
		return "MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519"
	case SuiteXWing:
		return "MLS_256_XWING_CHACHA20POLY1305_SHA256_Ed25519"
	}
	return "unknown"
}

// Device is one installation of an app: a signature key, the private halves of its published
// KeyPackages, and its groups. It is not safe for concurrent use.
type Device interface {
	// Identity is the credential's identity: the account's DID.
	Identity() string
	// SignatureKey is the public half of the device's signature key. It names the device within its
	// account.
	SignatureKey() []byte
	// KeyPackage makes a fresh KeyPackage and keeps its private half until a
	// Welcome for it has been joined.
	KeyPackage() (KeyPackage, error)
	// LastResort makes a KeyPackage that may be used again and again (extension
	// last_resort, 0x000A), and keeps its private half for good.
	LastResort() (KeyPackage, error)
	// Refs lists the KeyPackageRefs that still wait for a Welcome, in hex.
	Refs() []string
	// Create starts a group of one at epoch 0 under the given group_id.
	Create(groupID []byte) (Group, error)
	// Join enters the group of a Welcome for one of the waiting KeyPackages. It replaces an older
	// state of the same group, as after a leave and a second addition.
	Join(welcome []byte) (Group, error)
	// JoinExternal stages a commit by which the device enters the group of a GroupInfo (RFC 9420
	// §12.4.3.2). The commit removes the leaf prior of its account, unless that is NoLeaf. An
	// existing state of the group stays in use until ConfirmJoin replaces it.
	JoinExternal(groupInfo []byte, prior int) (*Staged, error)
	// ConfirmJoin enters the group by the commit that JoinExternal staged;
	// DiscardJoin forgets that commit.
	ConfirmJoin(groupID []byte) (Group, error)
	DiscardJoin(groupID []byte)
	// Group returns the group with this group_id, if the device has it.
	Group(groupID []byte) (Group, bool)
	// Forget drops a group, as after a create that the server refused.
	Forget(groupID []byte)
	// HideHandshakes makes the device's commits PrivateMessages: the server can read only their
	// headers. By default, commits are PublicMessages.
	HideHandshakes(bool)
	// Reborn returns the device that replaces this one after its state was lost: no groups, no
	// private halves of KeyPackages, and the same signature key or a new one.
	Reborn(keepKey bool) (Device, error)
	// Export serialises the device, staged commits included. ImportDevice continues from there. The
	// device of an agent cannot be imported.
	Export() ([]byte, error)
}

// Group is one device's state of one MLS group.
//
// A commit is first staged and then either confirmed, when the server has put
// it into the log, or discarded, when another commit of the same epoch won:
// the delivery service decides (RFC 9420 §14). While a commit is staged the
// group stays in its old epoch and can still read and send there.
type Group interface {
	ID() []byte
	Epoch() uint64
	// Authenticator is the epoch_authenticator (RFC 9420 §8.7). Two members have the same one if
	// and only if they agree on the whole history of the group.
	Authenticator() []byte
	// Members lists the identity of every leaf, in leaf order. A DID with two devices is listed
	// twice.
	Members() []string
	// Leaves lists every leaf, in leaf order. Own is the index of this device's leaf.
	Leaves() []Leaf
	Own() uint32
	// GroupInfo returns the GroupInfo of the present epoch, signed by this device, as Staged has it.
	GroupInfo() ([]byte, error)
	// Encrypt returns an MLSMessage holding a PrivateMessage of this epoch.
	Encrypt(plaintext []byte) ([]byte, error)
	// Process reads the next MLSMessage of the log. A commit of another member discards the staged
	// commit, which has lost. The staged commit's own bytes confirm it.
	Process(message []byte) (Received, error)
	// Stage prepares a commit. Without additions and removals it rotates this device's keys.
	// StageAdd, StageRemove and StageUpdate are common cases. StageRemove removes every device of
	// the given accounts.
	Stage(Change) (*Staged, error)
	StageAdd(keyPackages ...[]byte) (*Staged, error)
	StageRemove(identities ...string) (*Staged, error)
	StageUpdate() (*Staged, error)
	// Pending returns the staged commit, or nil.
	Pending() *Staged
	// Confirm merges the staged commit; Discard forgets it.
	Confirm() error
	Discard()
}

// usual has the methods of a Group that follow from other methods.
type usual struct {
	group interface {
		Leaves() []Leaf
		Stage(change Change) (*Staged, error)
	}
}

// Members implements Group.
func (u usual) Members() []string {
	var ids []string
	for _, leaf := range u.group.Leaves() {
		ids = append(ids, leaf.Identity)
	}
	return ids
}

// StageAdd implements Group.
func (u usual) StageAdd(keyPackages ...[]byte) (*Staged, error) {
	return u.group.Stage(Change{Add: keyPackages})
}

// StageRemove implements Group.
func (u usual) StageRemove(identities ...string) (*Staged, error) {
	var gone []uint32
	for _, leaf := range u.group.Leaves() {
		if slices.Contains(identities, leaf.Identity) {
			gone = append(gone, leaf.Index)
		}
	}
	if len(gone) == 0 {
		return nil, errors.New("stage: no leaf to remove")
	}
	return u.group.Stage(Change{Remove: gone})
}

// StageUpdate implements Group. It commits only a new path. The library's own SelfUpdate makes an
// Update proposal by the committer, which RFC 9420 §12.2 forbids.
func (u usual) StageUpdate() (*Staged, error) { return u.group.Stage(Change{}) }

// NoLeaf means that no leaf is removed.
const NoLeaf = -1

// Leaf is one device in a group's tree.
type Leaf struct {
	Index        uint32
	Identity     string
	SignatureKey []byte
}

// Info is what a GroupInfo says about a group.
type Info struct {
	GroupID []byte
	Epoch   uint64
	Leaves  []Leaf
	Signer  string // identity of the leaf that signed the GroupInfo
}

// Change is what a commit does to a group's leaves.
type Change struct {
	// Add holds the KeyPackages of the devices that are added.
	Add [][]byte
	// Remove holds the leaves that are removed.
	Remove []uint32
}

// KeyPackage is the public half of a KeyPackage: an MLSMessage and its
// KeyPackageRef in hex.
type KeyPackage struct {
	Message []byte
	Ref     string
}

// Staged is a commit that is not accepted yet, with everything that the server needs to accept it
// at once.
type Staged struct {
	// Epoch is the epoch which the commit creates.
	Epoch uint64
	// Commit and Welcome are MLSMessages; Welcome is nil without additions.
	Commit, Welcome []byte
	// GroupInfo is the GroupInfo of the new epoch, as an MLSMessage, with the ratchet tree and the
	// external_pub that an external commit needs.
	GroupInfo []byte
}

// Received is what Process found in one message.
type Received struct {
	// Commit and Proposal tell a commit and a proposal from an application message.
	Commit, Proposal bool
	// Own is set for the device's own staged commit, now confirmed.
	Own bool
	// Epoch is the epoch named in the message's header.
	Epoch uint64
	// Sender is the identity of the leaf that sent an application message or a proposal. It is empty
	// for a proposal that the library of an agent refuses: no commit contains that.
	Sender    string
	Plaintext []byte
	// From is the leaf of the sender, before the message. If External is set, it is the leaf that enters
	// by an external commit. Only the library of this process says so.
	From     Leaf
	External bool
}
