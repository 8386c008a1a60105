package clientsim

// This file is the whole of what the simulator knows about MLS: two small
// interfaces and three plain types. mlsgo_*.go implement them and are the only
// files of the project that import an MLS client library, so that a second
// library can be put in its place without touching a scenario.

// Suite is an MLS cipher suite by its IANA number (RFC 9420 §17.1).
type Suite uint16

// The suites which both the server and the library verify.
const (
	SuiteX25519   Suite = 1
	SuiteP256     Suite = 2
	SuiteChaCha20 Suite = 3
)

// Name returns the registered name, as the contract's cipherSuite field
// carries it.
func (s Suite) Name() string {
	switch s {
	case SuiteX25519:
		return "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
	case SuiteP256:
		return "MLS_128_DHKEMP256_AES128GCM_SHA256_P256"
	case SuiteChaCha20:
		return "MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519"
	}
	return "unknown"
}

// Device is one installation of an app: a signature key, the private halves of
// the KeyPackages it has published, and its groups. It is not safe for
// concurrent use, as an app's MLS state is not.
type Device interface {
	// Identity is the credential's identity: the account's DID.
	Identity() string
	// SignatureKey is the public half of the device's signature key, which names
	// it among the devices of its account.
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
	// Join enters the group of a Welcome for one of the waiting KeyPackages.
	// It replaces an older state of the same group, as a member that left and
	// was added again must.
	Join(welcome []byte) (Group, error)
	// JoinExternal stages a commit by which the device enters the group of a
	// GroupInfo on its own (RFC 9420 §12.4.3.2), and with which it removes the
	// leaf prior of its account, unless that is NoLeaf. A state of the group that
	// the device has stays in use until ConfirmJoin replaces it.
	JoinExternal(groupInfo []byte, prior int) (*Staged, error)
	// ConfirmJoin enters the group by the commit that JoinExternal staged;
	// DiscardJoin forgets that commit.
	ConfirmJoin(groupID []byte) (Group, error)
	DiscardJoin(groupID []byte)
	// Group returns the group with this group_id, if the device has it.
	Group(groupID []byte) (Group, bool)
	// Forget drops a group, as after a create that the server refused.
	Forget(groupID []byte)
	// HideHandshakes makes the device's commits PrivateMessages, of which the
	// server can read no more than the header, and not PublicMessages.
	HideHandshakes(bool)
	// Reborn is the device that comes after this one when its state was lost: no
	// group, no private half of a KeyPackage, and the same signature key or
	// another.
	Reborn(keepKey bool) (Device, error)
	// Export serialises everything above, staged commits included, so that
	// ImportDevice continues where a killed app stopped.
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
	// Authenticator is the epoch_authenticator (RFC 9420 §8.7): equal for two
	// members exactly if they agree on the whole history of the group.
	Authenticator() []byte
	// Members lists the identity of every leaf, in leaf order; a DID with two
	// devices stands twice.
	Members() []string
	// Leaves lists every leaf, in leaf order; Own is the index of this device's.
	Leaves() []Leaf
	Own() uint32
	// GroupInfo is the present epoch's, signed by this device, as Staged has it.
	GroupInfo() ([]byte, error)
	// Encrypt returns an MLSMessage holding a PrivateMessage of this epoch.
	Encrypt(plaintext []byte) ([]byte, error)
	// Process reads the next MLSMessage of the log. A foreign commit discards
	// the staged one (it lost); the staged commit's own bytes confirm it.
	Process(message []byte) (Received, error)
	// Stage prepares a commit; without additions and removals it only rotates
	// this device's keys. StageAdd, StageRemove, which takes every device of the
	// given accounts, and StageUpdate are its common cases.
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

// NoLeaf stands for no leaf, where one may be removed.
const NoLeaf = -1

// Leaf is one device in a group's tree.
type Leaf struct {
	Index        uint32
	Identity     string
	SignatureKey []byte
}

// Info is what a GroupInfo tells of a group.
type Info struct {
	GroupID []byte
	Epoch   uint64
	Leaves  []Leaf
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

// Staged is a commit that has not happened yet, with all that the server needs
// in order to make it happen at once.
type Staged struct {
	// Epoch is the epoch which the commit creates.
	Epoch uint64
	// Commit and Welcome are MLSMessages; Welcome is nil without additions.
	Commit, Welcome []byte
	// GroupInfo is the new epoch's, as an MLSMessage, with the ratchet tree and
	// with the external_pub that a commit from outside needs.
	GroupInfo []byte
}

// Received is what Process found in one message.
type Received struct {
	// Commit tells a commit from an application message.
	Commit bool
	// Own is set for the device's own staged commit, now confirmed.
	Own bool
	// Epoch is the epoch named in the message's header.
	Epoch uint64
	// Sender is the identity of the leaf that sent an application message.
	Sender    string
	Plaintext []byte
}
