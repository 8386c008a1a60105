// Package network is what delivery services say to each other, and what a service believes of it.
//
// A convo lives at one service, which alone decides about the convo. A person's KeyPackages are at
// the person's home, the service that the person's record names. To add this person to a convo of
// another service, the committer claims a KeyPackage at the home. The home gives the committer a
// receipt (receipt.go), which the convo's service checks. docs/NETWORK.md tells operators and
// clients the same.
package network

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
)

// ErrNoKey says that this node does not have the service's key.
var ErrNoKey = errors.New("this node does not have the service's key")

// Key is a key of the service, as its DID document has it.
type Key struct {
	ID       string // the fragment of the key's id: #mls_service_ and eight digits of the key's hash
	Multikey string
	Signs    bool // whether the service now signs receipts and requests with this key
}

// Keys are the keys of a service. They are in a file, because who has them is the service for
// all others: a reader of the database must not get them. Each line has a private key as a
// Multikey. The first key signs. The DID document has all of them, so that what the key before has
// signed stays valid. A nil *Keys is that of a service that deals with no other: it has no key.
// Methods are safe for concurrent use.
type Keys struct {
	path string
	held atomic.Pointer[[]signer]
}

// KeysAt returns the keys of a file, which Sync reads.
func KeysAt(path string) *Keys { return &Keys{path: path} }

// signer is a key that can sign.
type signer struct {
	Key
	text    string // the line of the file
	private *ecdsa.PrivateKey
}

// Sync reads the file. recorded is the newest key of the service, as nodes have recorded it in the
// database; "" means that there was none yet. Then Sync makes the file if there is none. It returns
// the key to be recorded. If the file does not have the recorded key, this node signs nothing until
// it does, because its key may be one that has leaked. Errors: ErrNoKey, errors of the file.
func (k *Keys) Sync(recorded string) (newest string, err error) {
	held, err := readKeys(k.path)
	if errors.Is(err, fs.ErrNotExist) && recorded == "" {
		held, err = rotate(k.path, nil)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if recorded != "" && !slices.ContainsFunc(held, func(s signer) bool { return s.Multikey == recorded }) {
		k.held.Store(nil)
		return "", fmt.Errorf("%w %s: copy its file from another node, or from its backup, to %s, or make another key "+
			"with mlsd service-key rotate (docs/OPERATING.md)", ErrNoKey, keyID(recorded), k.path)
	}
	k.held.Store(&held)
	return held[0].Multikey, nil
}

// Rotate makes another key in the file at path, and returns the service's keys; the new one comes
// first. The key before stays, so that its receipts can be used until their claims end. If it has
// leaked, it goes.
func Rotate(path string, leaked bool) ([]Key, error) {
	before, err := readKeys(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if leaked {
		before = nil
	}
	all, err := rotate(path, before[:min(len(before), 1)])
	return keysOf(all), err
}

// ListKeys returns the keys in the file at path; the one that signs comes first.
func ListKeys(path string) ([]Key, error) {
	all, err := readKeys(path)
	return keysOf(all), err
}

// rotate replaces the file at path by one with a new key and the keys before.
func rotate(path string, before []signer) ([]signer, error) {
	made, err := atcrypto.GeneratePrivateKeyP256()
	if err != nil {
		return nil, err
	}
	first, err := parseKey(made.Multibase())
	if err != nil {
		return nil, err
	}
	all := append([]signer{first}, before...)
	var text bytes.Buffer
	for _, s := range all {
		fmt.Fprintln(&text, s.text)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return all, replace(path, text.Bytes())
}

// replace writes a file that only its owner can read. A reader gets the old file or the new one.
func replace(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func readKeys(path string) (all []signer, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Fields(string(text)) {
		key, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("the service's key in %s: line %d is not a P-256 key as mlsd service-key writes it", path,
				len(all)+1)
		}
		all = append(all, key)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the service's key in %s: the file is empty", path)
	}
	return all, nil
}

// parseKey reads a private key. It is an ECDSA key on P-256, because AT Protocol's tokens need that.
func parseKey(text string) (s signer, err error) {
	parsed, err := atcrypto.ParsePrivateMultibase(text)
	if err != nil {
		return s, err
	}
	p256, ok := parsed.(*atcrypto.PrivateKeyP256)
	if !ok {
		return s, errors.New("want a P-256 key")
	}
	public, err := p256.PublicKey()
	if err != nil {
		return s, err
	}
	s.private, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), p256.Bytes())
	s.Key, s.text = Key{ID: keyID(public.Multibase()), Multikey: public.Multibase()}, text
	return s, err
}

// keyID names a key by its hash, so that no two keys ever have the same name.
func keyID(multikey string) string {
	hash := sha256.Sum256([]byte(multikey))
	return "#mls_service_" + hex.EncodeToString(hash[:4])
}

// signers returns the service's keys; the key that signs comes first. Error: ErrNoKey.
func (k *Keys) signers() ([]signer, error) {
	held := k.held.Load()
	if held == nil {
		return nil, ErrNoKey
	}
	return *held, nil
}

// Keys returns the keys of the service's DID document; the key that signs comes first. A service
// that deals with no other, and a node without the service's key, have none.
func (s *Service) Keys() []Key {
	if s.cfg.Keys == nil {
		return nil
	}
	all, _ := s.cfg.Keys.signers() // Sync has said what is missing
	return keysOf(all)
}

func keysOf(all []signer) (keys []Key) {
	for i, s := range all {
		s.Signs = i == 0
		keys = append(keys, s.Key)
	}
	return keys
}

// signer returns the key that signs. Error: ErrNoKey.
func (s *Service) signer() (signer, error) {
	if s.cfg.Keys == nil {
		return signer{}, ErrNoKey
	}
	all, err := s.cfg.Keys.signers()
	if err != nil {
		return signer{}, err
	}
	return all[0], nil
}

// sign returns r ‖ s with a low s (https://atproto.com/specs/cryptography). The signature is
// deterministic (RFC 6979), so that a repeated claim gets the same receipts.
func (k signer) sign(content string) ([]byte, error) {
	digest := sha256.Sum256([]byte(content))
	der, err := k.private.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	var sig struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &sig); err != nil {
		return nil, err
	}
	order := k.private.Params().N
	if high := new(big.Int).Rsh(order, 1); sig.S.Cmp(high) > 0 {
		sig.S.Sub(order, sig.S)
	}
	out := make([]byte, 64)
	sig.R.FillBytes(out[:32])
	sig.S.FillBytes(out[32:])
	return out, nil
}
