// Package network is what delivery services say to each other, and what of that a service believes.
//
// A convo lives at one service, which alone decides. A person's KeyPackages are at the service that
// the person's record names, its home. A service that adds a person of another one to a convo
// therefore gets that person's KeyPackage with a receipt of the home (receipt.go): the committer
// claimed it there. docs/NETWORK.md tells operators and clients the same.
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

	"mlsd/internal/transparency"
)

// announced is how long a key is in the DID document before it signs: as long as other services
// remember the document.
const announced = time.Hour

// Key is a key of the service, as its DID document has it.
type Key struct {
	ID       string // its fragment: #mls_service_1
	Multikey string
	Signs    bool // receipts and requests to other services, now
}

// signer is a key that can sign.
type signer struct {
	id        string
	createdAt time.Time
	key       *ecdsa.PrivateKey
}

// keyInfo separates the keys of services from other uses of the seeds.
const keyInfo = "mlsd service key "

// derive makes the service key that belongs to a key of log heads: ECDSA on P-256, as AT Protocol's
// tokens need it. So a service has one set of keys, which one command renews.
func derive(seed transparency.Seed) (signer, error) {
	for n := 0; ; n++ { // one in 2³² outputs is no key
		raw, err := hkdf.Key(sha256.New, seed.Seed, nil, keyInfo+strconv.Itoa(n), 32)
		if err != nil {
			return signer{}, err
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw); err == nil {
			return signer{"#mls_service_" + strconv.Itoa(int(seed.ID)), seed.CreatedAt, key}, nil
		}
	}
}

// signers returns the service's keys, the one that signs first: the newest one that others have had
// the time to learn, and the oldest one if all are newer.
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

// Keys are the keys of the service's DID document, the one that signs first.
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

// sign returns r ‖ s with a low s (https://atproto.com/specs/cryptography). It is deterministic (RFC
// 6979), so that a repeated claim gets the same receipts.
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
