package clientsim

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/auth"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// tokenLife is how long a service-auth token of ours is valid: what a PDS
// gives by default.
const tokenLife = 60 * time.Second

// Account is a person: a DID and the atproto signing key in its DID document.
// Its devices share it. It is immutable and safe for concurrent use.
type Account struct {
	DID syntax.DID
	key atcrypto.PrivateKeyExportable
}

// NewAccount makes an account under a fresh did:plc-like DID. Real accounts
// have keys on either curve, so odd serials get P-256 and even ones K-256.
func NewAccount(serial int) (*Account, error) {
	did, err := newDID()
	if err != nil {
		return nil, err
	}
	var key atcrypto.PrivateKeyExportable
	if serial%2 == 0 {
		key, err = atcrypto.GeneratePrivateKeyK256()
	} else {
		key, err = atcrypto.GeneratePrivateKeyP256()
	}
	if err != nil {
		return nil, fmt.Errorf("new account: %w", err)
	}
	return &Account{DID: did, key: key}, nil
}

// newDID makes 24 characters of base32, as did:plc has them. They are random
// and not a hash of a genesis operation: nobody who trusts a PLC directory
// checks that.
func newDID() (syntax.DID, error) {
	var id [15]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", fmt.Errorf("new DID: %w", err)
	}
	return syntax.ParseDID("did:plc:" + strings.ToLower(base32.StdEncoding.EncodeToString(id[:])))
}

// Token signs a service-auth token for one call of one method. Every call has
// a jti of its own: a server refuses a procedure whose jti it has seen, so a
// retry is a fresh token around the same bytes.
func (a *Account) Token(audience string, method syntax.NSID) (string, error) {
	return a.TokenFor(audience, method, tokenLife)
}

// TokenFor signs a token that is valid for life, of which a server takes an
// hour at most: for those who sign many before they need them.
func (a *Account) TokenFor(audience string, method syntax.NSID, life time.Duration) (string, error) {
	token, err := auth.SignServiceAuth(a.DID, audience, life, &method, a.key)
	if err != nil {
		return "", fmt.Errorf("token for %s: %w", method, err)
	}
	return token, nil
}

// multikey is the public signing key as a DID document carries it.
func (a *Account) multikey() (string, error) {
	public, err := a.key.PublicKey()
	if err != nil {
		return "", err
	}
	return public.Multibase(), nil
}
