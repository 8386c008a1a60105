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
	// KeyPackage makes a fresh KeyPackage and keeps its private half until a
	// Welcome for it has been joined.
	KeyPackage() (KeyPackage, error)
	// Refs lists the KeyPackageRefs that still wait for a Welcome, in hex.
	Refs() []string
	// Create starts a group of one at epoch 0 under the given group_id.
	Create(groupID []byte) (Group, error)
	// Join enters the group of a Welcome for one of the waiting KeyPackages.
	// It replaces an older state of the same group, as a member that left and
	// was added again must.
	Join(welcome []byte) (Group, error)
	// Group returns the group with this group_id, if the device has it.
	Group(groupID []byte) (Group, bool)
	// Forget drops a group, as after a create that the server refused.
	Forget(groupID []byte)
	// HideHandshakes makes the device's commits PrivateMessages, of which the
	// server can read no more than the header, and not PublicMessages.
	HideHandshakes(bool)
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
	// Encrypt returns an MLSMessage holding a PrivateMessage of this epoch.
	Encrypt(plaintext []byte) ([]byte, error)
	// Process reads the next MLSMessage of the log. A foreign commit discards
	// the staged one (it lost); the staged commit's own bytes confirm it.
	Process(message []byte) (Received, error)
	// StageAdd, StageRemove and StageUpdate prepare a commit.
	StageAdd(keyPackages ...[]byte) (*Staged, error)
	StageRemove(identities ...string) (*Staged, error)
	StageUpdate() (*Staged, error)
	// Pending returns the staged commit, or nil.
	Pending() *Staged
	// Confirm merges the staged commit; Discard forgets it.
	Confirm() error
	Discard()
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
	// GroupInfo is the new epoch's, as an MLSMessage, ratchet tree included.
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
