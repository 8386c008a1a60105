// Package network is what delivery services say to each other, and what a service believes of it.
//
// A convo lives at one service, which alone decides about the convo. A person's KeyPackages are at
// the person's home, the service that the person's record names. To add this person to a convo of
// another service, the committer claims a KeyPackage at the home. The home gives the committer a
// receipt (receipt.go), which the convo's service checks. docs/NETWORK.md tells operators and
// clients the same.
package network

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/asn1"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"

	"mlsd/features/transparency"
)

// announced is how long a key is in the DID document before the service signs with it. Other
// services remember the document for this long.
const announced = time.Hour

// Key is a key of the service, as its DID document has it.
type Key struct {
	ID       string // the fragment of the key's id: #mls_service_1
	Multikey string
	Signs    bool // whether the service now signs receipts and requests with this key
}

// signer is a key that can sign.
type signer struct {
	id        string
	createdAt time.Time
	key       *ecdsa.PrivateKey
}

// keyInfo separates service keys from other keys derived from the same seeds.
const keyInfo = "mlsd service key "

// derive makes the service key that belongs to a key of log heads. It is an ECDSA key on P-256,
// because AT Protocol's tokens need that. So a service has one set of keys, and one command renews
// all of them.
func derive(seed transparency.Seed) (signer, error) {
	for n := 0; ; n++ { // one in 2³² outputs is not a key
		raw, err := hkdf.Key(sha256.New, seed.Seed, nil, keyInfo+strconv.Itoa(n), 32)
		if err != nil {
			return signer{}, err
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw); err == nil {
			return signer{"#mls_service_" + strconv.Itoa(int(seed.ID)), seed.CreatedAt, key}, nil
		}
	}
}

// signers returns the service's keys; the key that signs comes first. That is the newest key that
// others have had time to learn. If there is no such key, it is the oldest key.
func (s *Service) signers() ([]signer, error) {
	var all []signer
	for _, seed := range s.cfg.Seeds() {
		k, err := derive(seed)
		if err != nil {
			return nil, fmt.Errorf("derive the service's key: %w", err)
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b signer) int { return a.createdAt.Compare(b.createdAt) })
	at := 0
	for i, k := range all {
		if s.cfg.Now().Sub(k.createdAt) >= announced {
			at = i
		}
	}
	if len(all) > 0 {
		all[0], all[at] = all[at], all[0]
	}
	return all, nil
}

// Keys returns the keys of the service's DID document; the key that signs comes first.
func (s *Service) Keys() ([]Key, error) {
	all, err := s.signers()
	if err != nil {
		return nil, err
	}
	var keys []Key
	for i, k := range all {
		raw, err := k.key.PublicKey.Bytes()
		if err != nil {
			return nil, err
		}
		public, err := atcrypto.ParsePublicUncompressedBytesP256(raw)
		if err != nil {
			return nil, err
		}
		keys = append(keys, Key{ID: k.id, Multikey: public.Multibase(), Signs: i == 0})
	}
	return keys, nil
}

// sign returns r ‖ s with a low s (https://atproto.com/specs/cryptography). The signature is
// deterministic (RFC 6979), so that a repeated claim gets the same receipts.
func (k signer) sign(content string) ([]byte, error) {
	digest := sha256.Sum256([]byte(content))
	der, err := k.key.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	var sig struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &sig); err != nil {
		return nil, err
	}
	order := k.key.Params().N
	if high := new(big.Int).Rsh(order, 1); sig.S.Cmp(high) > 0 {
		sig.S.Sub(order, sig.S)
	}
	out := make([]byte, 64)
	sig.R.FillBytes(out[:32])
	sig.S.FillBytes(out[32:])
	return out, nil
}
