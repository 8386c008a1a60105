package mlsclient

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/credentials"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// deviceFile is a device on a phone's disk. Its private keys are not encrypted, because the people
// are simulated.
type deviceFile struct {
	Agent    string                 `json:"agent,omitempty"` // the agent that holds the device; then no other field is set
	Identity string                 `json:"identity"`
	Suite    uint16                 `json:"suite"`
	Signer   []byte                 `json:"signer"` // Ed25519 seed, or P-256 scalar
	Hidden   bool                   `json:"hidden,omitempty"`
	Waiting  map[string]packageFile `json:"waiting"`
	Groups   map[string]groupFile   `json:"groups"`
	Joining  map[string]pendingFile `json:"joining,omitempty"`
}

type packageFile struct {
	Public []byte `json:"public"`
	Init   []byte `json:"init"`
	Leaf   []byte `json:"leaf"`
	Last   bool   `json:"lastResort,omitempty"`
}

type groupFile struct {
	State   json.RawMessage `json:"state"`
	Pending *pendingFile    `json:"pending,omitempty"`
}

type pendingFile struct {
	Staged Staged          `json:"staged"`
	Next   json.RawMessage `json:"next"`
}

func (d *goDevice) Export() (_ []byte, err error) {
	defer Catch(&err)
	file := deviceFile{
		Identity: d.identity, Suite: uint16(d.suite), Signer: signerBytes(d.cred), Hidden: d.hidden,
		Waiting: map[string]packageFile{}, Groups: map[string]groupFile{}, Joining: map[string]pendingFile{},
	}
	for ref, w := range d.waiting {
		file.Waiting[ref] = packageFile{
			Public: w.public.Marshal(),
			Init:   w.private.InitKey.Bytes(), Leaf: w.private.EncryptionKey.Bytes(), Last: w.lastResort,
		}
	}
	for id, g := range d.groups {
		state, err := g.state.MarshalState()
		Check(errs.Wrap(err, "export group %s", id))
		saved := groupFile{State: state}
		if g.pending != nil {
			pending, err := g.pending.save()
			Check(errs.Wrap(err, "export staged commit of %s", id))
			saved.Pending = &pending
		}
		file.Groups[id] = saved
	}
	for id, joining := range d.joining {
		saved, err := joining.save()
		Check(errs.Wrap(err, "export external commit to %s", id))
		file.Joining[id] = saved
	}
	return json.Marshal(file)
}

func (p *pendingCommit) save() (pendingFile, error) {
	next, err := p.next.MarshalState()
	return pendingFile{Staged: p.Staged, Next: next}, err
}

func (f *pendingFile) restore() (*pendingCommit, error) {
	next, err := group.UnmarshalGroupState(f.Next)
	return &pendingCommit{Staged: f.Staged, next: next}, err
}

// ErrInAgent is returned for a device whose state is in an agent's process.
var ErrInAgent = errors.New("the device cannot be copied")

// ImportDevice restores what Export wrote. For a device of an agent it returns ErrInAgent.
func ImportDevice(data []byte) (_ Device, err error) {
	defer Catch(&err)
	var file deviceFile
	Check(errs.Wrap(json.Unmarshal(data, &file), "import device"))
	if file.Agent != "" {
		return nil, fmt.Errorf("import device: agent %s: %w", file.Agent, ErrInAgent)
	}
	cs := ciphersuite.CipherSuite(file.Suite)
	cred, signer, err := restoreSigner(file.Identity, cs, file.Signer)
	Check(errs.Wrap(err, "import device"))
	d := newGoDevice(file.Identity, cs, cred, signer)
	d.hidden = file.Hidden
	for ref, saved := range file.Waiting {
		if d.waiting[ref], err = restorePackage(saved, cs, cred); err != nil {
			return nil, fmt.Errorf("import package %s: %w", ref, err)
		}
	}
	for id, saved := range file.Groups {
		g := newGoGroup(d)
		if g.state, err = group.UnmarshalGroupState(saved.State); err != nil {
			return nil, fmt.Errorf("import group %s: %w", id, err)
		}
		if saved.Pending != nil {
			if g.pending, err = saved.Pending.restore(); err != nil {
				return nil, fmt.Errorf("import staged commit of %s: %w", id, err)
			}
		}
		d.groups[id] = g
	}
	for id, saved := range file.Joining {
		if d.joining[id], err = saved.restore(); err != nil {
			return nil, fmt.Errorf("import external commit to %s: %w", id, err)
		}
	}
	return d, nil
}

func signerBytes(cred *credentials.CredentialWithKey) []byte {
	if cred.Ed25519PrivateKey != nil {
		return cred.Ed25519PrivateKey.Seed()
	}
	scalar, err := cred.PrivateKey.Bytes()
	if err != nil {
		return nil // a P-256 key of the library always has bytes; import reports other errors
	}
	return scalar
}

func restoreSigner(identity string, cs ciphersuite.CipherSuite, key []byte) (_ *credentials.CredentialWithKey,
	_ *ciphersuite.SignaturePrivateKey, err error) {
	defer Catch(&err)
	cred := &credentials.CredentialWithKey{Credential: credentials.NewBasicCredential([]byte(identity))}
	if cs.SignatureScheme() == ciphersuite.ED25519 {
		if len(key) != ed25519.SeedSize {
			return nil, nil, errors.New("bad Ed25519 seed")
		}
		private := ed25519.NewKeyFromSeed(key)
		cred.Ed25519PrivateKey = private
		cred.SignatureKeyBytes = private.Public().(ed25519.PublicKey)
		return cred, ciphersuite.NewEd25519SignaturePrivateKey(private), nil
	}
	private := Must(ecdsa.ParseRawPrivateKey(elliptic.P256(), key))
	point := Must(private.PublicKey.Bytes())
	cred.PrivateKey, cred.SignatureKey, cred.SignatureKeyBytes = private, &private.PublicKey, point
	return cred, ciphersuite.NewSignaturePrivateKey(private), nil
}

func restorePackage(saved packageFile, cs ciphersuite.CipherSuite,
	cred *credentials.CredentialWithKey) (_ *waitingPackage, err error) {
	defer Catch(&err)
	public := Must(keypackages.UnmarshalKeyPackage(saved.Public))
	private := &keypackages.KeyPackagePrivateKeys{SignatureKey: cred.PrivateKey,
		Ed25519SignatureKey: cred.Ed25519PrivateKey}
	for dst, raw := range map[**ecdh.PrivateKey][]byte{&private.InitKey: saved.Init, &private.EncryptionKey: saved.Leaf} {
		*dst = Must(cs.Curve().NewPrivateKey(raw))
	}
	return &waitingPackage{public: public, private: private, lastResort: saved.Last}, nil
}
