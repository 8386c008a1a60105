package mlsclient

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/credentials"
	mlsext "github.com/thomas-vilte/mls-go/extensions"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// The library's Client merges most commits at once, keeps KeyPackage secrets and staged commits in
// memory only, and builds a Welcome only after the merge. The server wants commit, Welcome and
// GroupInfo in one request. So this file uses the library's lower layer and stages a commit on a
// *copy* of the group. The copy is merged at once, which yields the Welcome and the new GroupInfo.
// Confirming puts the copy in the group's place, and discarding drops the copy. A staged commit
// survives a restart, because the copy can be serialised like any group.

// goDevice implements Device.
type goDevice struct {
	identity string
	suite    ciphersuite.CipherSuite
	cred     *credentials.CredentialWithKey
	signer   *ciphersuite.SignaturePrivateKey
	hidden   bool                       // see HideHandshakes
	waiting  map[string]*waitingPackage // by KeyPackageRef in hex
	groups   map[string]*goGroup        // by group_id in hex
	joining  map[string]*pendingCommit  // staged by JoinExternal, by group_id in hex
}

// waitingPackage is a published KeyPackage without a Welcome yet, or a last-resort KeyPackage, for
// which more Welcomes can always come.
type waitingPackage struct {
	public     *keypackages.KeyPackage
	private    *keypackages.KeyPackagePrivateKeys
	lastResort bool
}

// NewDevice makes a device with a signature key of its own. The identity is
// the account's DID and becomes the basic credential's identity.
func NewDevice(identity string, suite Suite) (Device, error) {
	cs := ciphersuite.CipherSuite(suite)
	cred, signer, err := credentials.GenerateCredentialWithKeyForCS([]byte(identity), cs)
	if err != nil {
		return nil, fmt.Errorf("new device: %w", err)
	}
	return newGoDevice(identity, cs, cred, signer), nil
}

func newGoDevice(id string, cs ciphersuite.CipherSuite, cred *credentials.CredentialWithKey,
	signer *ciphersuite.SignaturePrivateKey) *goDevice {
	return &goDevice{
		identity: id, suite: cs, cred: cred, signer: signer,
		waiting: map[string]*waitingPackage{}, groups: map[string]*goGroup{}, joining: map[string]*pendingCommit{},
	}
}

func (d *goDevice) Identity() string { return d.identity }

func (d *goDevice) SignatureKey() []byte { return bytes.Clone(d.cred.SignatureKeyBytes) }

func (d *goDevice) HideHandshakes(hide bool) { d.hidden = hide }

func (d *goDevice) Reborn(keepKey bool) (Device, error) {
	cred, signer := d.cred, d.signer
	if !keepKey {
		var err error
		if cred, signer, err = credentials.GenerateCredentialWithKeyForCS([]byte(d.identity), d.suite); err != nil {
			return nil, fmt.Errorf("reborn device: %w", err)
		}
	}
	reborn := newGoDevice(d.identity, d.suite, cred, signer)
	reborn.hidden = d.hidden
	return reborn, nil
}

func (d *goDevice) KeyPackage() (KeyPackage, error) {
	public, private, err := keypackages.Generate(d.cred, d.suite)
	if err != nil {
		return KeyPackage{}, fmt.Errorf("key package: %w", err)
	}
	return d.await(&waitingPackage{public: public, private: private}), nil
}

// LastResort adds the extension to a KeyPackage of the library, and signs it again.
func (d *goDevice) LastResort() (_ KeyPackage, err error) {
	defer Catch(&err)
	public, private, err := keypackages.Generate(d.cred, d.suite)
	Check(errs.Wrap(err, "last-resort key package"))
	public.Extensions = append(public.Extensions, keypackages.Extension{Type: mlsext.ExtensionTypeLastResort})
	Check(d.signPackage(public))
	return d.await(&waitingPackage{public: public, private: private, lastResort: true}), nil
}

// signPackage signs a KeyPackage, but not its leaf.
func (d *goDevice) signPackage(kp *keypackages.KeyPackage) error {
	signature, err := ciphersuite.SignWithLabel(d.signer, "KeyPackageTBS", kp.MarshalTBS())
	if err != nil {
		return fmt.Errorf("sign key package: %w", err)
	}
	kp.Signature = signature.AsSlice()
	return nil
}

// await keeps a KeyPackage's private half until its Welcome comes.
func (d *goDevice) await(w *waitingPackage) KeyPackage {
	raw := w.public.Marshal()
	ref := refOf(raw)
	d.waiting[ref] = w
	return KeyPackage{Message: wrap(formatKeyPackage, raw), Ref: ref}
}

func (d *goDevice) Refs() []string {
	refs := make([]string, 0, len(d.waiting))
	for ref := range d.waiting {
		refs = append(refs, ref)
	}
	slices.Sort(refs)
	return refs
}

func (d *goDevice) Create(groupID []byte) (_ Group, err error) {
	defer CatchIn(&err, "create group")
	public, private := Must2(keypackages.Generate(d.cred, d.suite))
	state := Must(group.NewGroup(group.NewGroupID(bytes.Clone(groupID)), d.suite, public, private))
	return d.adopt(state), nil
}

func (d *goDevice) Join(welcome []byte) (_ Group, err error) {
	defer Catch(&err)
	raw, err := unwrap(formatWelcome, welcome)
	Check(errs.Wrap(err, "join"))
	parsed, err := group.UnmarshalWelcome(raw)
	Check(errs.Wrap(err, "join"))
	for _, secret := range parsed.Secrets {
		ref := hex.EncodeToString(secret.NewMember)
		waiting, ok := d.waiting[ref]
		if !ok {
			continue
		}
		state, err := group.JoinFromWelcome(parsed, waiting.public, waiting.private, nil)
		Check(errs.Wrap(err, "join with package %s", ref))
		if !waiting.lastResort {
			delete(d.waiting, ref)
		}
		return d.adopt(state), nil
	}
	return nil, fmt.Errorf("join: the Welcome is for none of this device's %d KeyPackages", len(d.waiting))
}

func (d *goDevice) adopt(state *group.Group) *goGroup {
	g := newGoGroup(d)
	g.state = state
	d.groups[hex.EncodeToString(g.ID())] = g
	return g
}

func (d *goDevice) Group(groupID []byte) (Group, bool) {
	g, ok := d.groups[hex.EncodeToString(groupID)]
	if !ok {
		return nil, false
	}
	return g, true
}

func (d *goDevice) Forget(groupID []byte) { delete(d.groups, hex.EncodeToString(groupID)) }
