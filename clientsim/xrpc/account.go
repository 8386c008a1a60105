package xrpc

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/auth"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
)

// tokenLife is how long our service-auth tokens are valid. It is a PDS's default.
const tokenLife = 60 * time.Second

// DefaultServiceDID is the service DID of a server with default settings.
const DefaultServiceDID = "did:web:localhost%3A8080"

// Account is a DID and the atproto signing key in its DID document. All devices of a person share
// it. It is immutable and safe for concurrent use.
type Account struct {
	DID syntax.DID
	key atcrypto.PrivateKeyExportable
}

// NewAccount makes an account with a new did:plc. Real accounts have keys on either curve, so odd
// serials get P-256 and even serials K-256.
func NewAccount(serial int) (_ *Account, err error) {
	defer Catch(&err)
	did := Must(newDID())
	return NewAccountOf(did, serial)
}

// NewAccountOf makes an account with a given DID and a new key.
func NewAccountOf(did syntax.DID, serial int) (*Account, error) {
	var key atcrypto.PrivateKeyExportable
	var err error
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

// newDID makes a DID of 24 random base32 characters. A real did:plc is a hash of its first
// operation, but a server that trusts the PLC directory does not check that.
func newDID() (syntax.DID, error) {
	var id [15]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", fmt.Errorf("new DID: %w", err)
	}
	return syntax.ParseDID("did:plc:" + strings.ToLower(base32.StdEncoding.EncodeToString(id[:])))
}

// Token signs a service-auth token for one call of one method. Each token has its own jti, because
// a server refuses a procedure whose jti it has seen. So a retry sends the same bytes with a new
// token.
func (a *Account) Token(audience string, method syntax.NSID) (string, error) {
	return a.TokenFor(audience, method, tokenLife)
}

// TokenFor signs a token that is valid for life. A server accepts an hour at most.
func (a *Account) TokenFor(audience string, method syntax.NSID, life time.Duration) (string, error) {
	token, err := auth.SignServiceAuth(a.DID, audience, life, &method, a.key)
	if err != nil {
		return "", fmt.Errorf("token for %s: %w", method, err)
	}
	return token, nil
}

// tokenAt is Token by a wrong clock, which shows now. The library that makes the other tokens knows
// only this machine's clock.
func (a *Account) tokenAt(now time.Time, audience string, method syntax.NSID) (_ string, err error) {
	defer CatchIn(&err, "token for %s", method)
	algorithm := "ES256K"
	if _, p256 := a.key.(*atcrypto.PrivateKeyP256); p256 {
		algorithm = "ES256"
	}
	claims := Must(json.Marshal(map[string]any{
		"iss": a.DID, "aud": audience, "lxm": method, "jti": rand.Text(), "iat": now.Unix(), "exp": now.Add(tokenLife).Unix(),
	}))
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"`+algorithm+`","typ":"JWT"}`)) + "." + encode(claims)
	signature := Must(a.key.HashAndSign([]byte(signed)))
	return signed + "." + encode(signature), nil
}

// SigningKey returns the private signing key as a multikey, so that others can sign for the
// account.
func (a *Account) SigningKey() string { return a.key.Multibase() }

// Document makes the account's DID document (https://atproto.com/specs/did). Its PDS does not exist.
func (a *Account) Document(handle syntax.Handle) (identity.DIDDocument, error) {
	key, err := a.key.PublicKey()
	if err != nil {
		return identity.DIDDocument{}, fmt.Errorf("document of %s: %w", a.DID, err)
	}
	return identity.DIDDocument{
		DID:         a.DID,
		AlsoKnownAs: []string{"at://" + handle.String()},
		VerificationMethod: []identity.DocVerificationMethod{{
			ID: a.DID.String() + "#atproto", Type: "Multikey", Controller: a.DID.String(), PublicKeyMultibase: key.Multibase(),
		}},
		Service: []identity.DocService{{ID: "#atproto_pds", Type: "AtprotoPersonalDataServer",
			ServiceEndpoint: "https://pds.test"}},
	}, nil
}
