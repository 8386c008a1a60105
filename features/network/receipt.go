package network

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/sync/errgroup"

	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
	"mlsd/mls"
)

// typ is the type of a receipt, so that a token for another purpose is not accepted as a receipt,
// and a receipt not as a token.
const typ = "mls-claim+jwt"

// MaxReceipt is the largest size of a receipt, in bytes. A receipt usually has about 600 bytes.
const MaxReceipt = 2048

// maxPeople is how many people of other services one request can add. The home of each person is
// looked up.
const maxPeople = 100

// receipt is the claims set of a receipt, a compact JWS (RFC 7515, RFC 7519). iss is the service,
// sub the KeyPackage's owner, exp the end of the claim.
type receipt struct {
	jwt.RegisteredClaims
	DeviceID    string `json:"deviceId"`
	Ref         string `json:"keyPackageRef"` // lower-case hexadecimal
	CipherSuite int32  `json:"cipherSuite"`   // of RFC 9420 §17.1
	Claimant    string `json:"claimant"`      // the DID that claimed the KeyPackage, and alone can use it
	LastResort  bool   `json:"lastResort,omitzero"`
}

// ReceiptError says why a receipt is refused.
type ReceiptError struct {
	Index  int // index of the receipt in the request
	Reason string
}

func (e *ReceiptError) Error() string {
	return fmt.Sprintf("receipts[%d]: %s", e.Index, e.Reason)
}

// Receipts returns the receipts of KeyPackages that claimant claimed at the time at, in the order
// of claimed. A last-resort KeyPackage is not claimed, but its receipt ends as if it were.
func (s *Service) Receipts(claimed []keypackages.Claimed, claimant syntax.DID, at time.Time) ([]string, error) {
	key, err := s.signer()
	if err != nil {
		return nil, err
	}
	out := make([]string, len(claimed))
	for i, c := range claimed {
		end := at.Add(keypackages.ClaimLifetime)
		if c.ExpiresAt != nil {
			end = *c.ExpiresAt
		}
		out[i], err = key.jws(typ, receipt{
			RegisteredClaims: jwt.RegisteredClaims{Issuer: s.cfg.DID.String(), Subject: c.DID.String(),
				IssuedAt: jwt.NewNumericDate(at), ExpiresAt: jwt.NewNumericDate(end)},
			DeviceID: c.DeviceID, Ref: c.Ref.String(), CipherSuite: int32(c.CipherSuite), Claimant: claimant.String(),
			LastResort: c.LastResort,
		})
		if err != nil {
			return nil, fmt.Errorf("sign a receipt: %w", err)
		}
	}
	return out, nil
}

// jws returns the compact JWS of claims.
func (k signer) jws(typ string, claims jwt.Claims) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	t.Header["typ"], t.Header["kid"] = typ, k.ID
	text, err := t.SigningString()
	if err != nil {
		return "", err
	}
	sig, err := k.sign(text)
	if err != nil {
		return "", err
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

// Verify returns the KeyPackages of other services that the receipts are for. Each receipt must be
// signed, for caller, by the home of the KeyPackage's owner, and its claim must not have ended.
// Verify leaves out receipts of this service itself, because the ledger here decides about them. It
// holds no connection of the database. It makes at most one look-up for each service and each owner
// that is not remembered. Errors: *ReceiptError, ErrLookup.
func (s *Service) Verify(ctx context.Context, caller syntax.DID, receipts []string) ([]keypackages.Foreign, error) {
	var all []unverified
	people := map[syntax.DID]struct{}{}
	for i, raw := range receipts {
		u, err := parseReceipt(raw)
		u.index = i
		switch {
		case err != nil:
			return nil, u.refuse("%v", err)
		case u.Service == s.cfg.DID:
			continue
		case u.claimant != caller:
			return nil, u.refuse("it is for the claimant %s, and you are %s", u.claimant, caller)
		case !s.cfg.Now().Before(u.end):
			return nil, u.refuse("the claim has ended at %s: claim another KeyPackage", u.end.UTC().Format(time.RFC3339))
		case s.Deals(u.Service) != nil:
			return nil, u.refuse("%v", s.Deals(u.Service))
		}
		if people[u.DID] = struct{}{}; len(people) > maxPeople {
			return nil, u.refuse("they are of more than %d people", maxPeople)
		}
		all = append(all, u)
	}
	if err := s.lookUp(ctx, all); err != nil {
		return nil, err
	}
	out := make([]keypackages.Foreign, len(all))
	for i, u := range all {
		domain, err := s.check(ctx, u)
		if err != nil {
			return nil, err
		}
		out[i] = u.Foreign
		out[i].Domain = domain
	}
	return out, nil
}

// lookups is how many look-ups a request makes at a time.
const lookups = 4

// lookUp looks up the services and the homes that check asks for, so that it finds them remembered.
func (s *Service) lookUp(ctx context.Context, all []unverified) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookups)
	for _, u := range all {
		g.Go(func() error {
			_, err := s.cfg.Services.Service(ctx, u.Service, serviceauth.Remembered)
			if err != nil && !errors.Is(err, serviceauth.ErrNoService) {
				return fmt.Errorf("%w: %s: %w", ErrLookup, u.Service, err)
			}
			_, err = s.home(ctx, u.DID, serviceauth.Recent)
			return err
		})
	}
	return g.Wait()
}

// check checks who has signed a receipt, and that this is the home of the KeyPackage's owner. It
// returns the domain of the home.
func (s *Service) check(ctx context.Context, u unverified) (domain string, err error) {
	service, err := s.cfg.Services.Service(ctx, u.Service, serviceauth.Remembered)
	if err == nil && service.Keys[u.kid] == nil {
		service, err = s.cfg.Services.Service(ctx, u.Service, serviceauth.Recent) // it can have a new key
	}
	if errors.Is(err, serviceauth.ErrNoService) {
		return "", u.refuse("%s is no delivery service", u.Service)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrLookup, u.Service, err)
	}
	key := service.Keys[u.kid]
	if key == nil {
		return "", u.refuse("the DID document of %s has no key %s, which has signed it", u.Service, u.kid)
	}
	if err := key.HashAndVerify([]byte(u.signed), u.signature); err != nil {
		return "", u.refuse("its signature is not of the key %s of %s", u.kid, u.Service)
	}
	home, err := s.home(ctx, u.DID, serviceauth.Recent)
	if err != nil {
		return "", err
	}
	if home != u.Service {
		return "", u.refuse("%s has not chosen %s as its delivery service", u.DID, u.Service)
	}
	return service.Domain, nil
}

// unverified is a receipt whose form was checked.
type unverified struct {
	keypackages.Foreign
	index     int
	claimant  syntax.DID
	end       time.Time
	kid       string
	signed    string
	signature []byte
}

func (u unverified) refuse(format string, args ...any) error {
	return &ReceiptError{u.index, fmt.Sprintf(format, args...)}
}

// parser parses receipts. Which key signs, and when the claim ends, is checked by Verify.
var parser = jwt.NewParser(jwt.WithStrictDecoding(), jwt.WithValidMethods([]string{jwt.SigningMethodES256.Alg()}))

func parseReceipt(raw string) (u unverified, err error) {
	if len(raw) > MaxReceipt {
		return u, fmt.Errorf("it has %d bytes, and a receipt at most %d", len(raw), MaxReceipt)
	}
	var r receipt
	t, parts, err := parser.ParseUnverified(raw, &r)
	switch {
	case err != nil:
		return u, errors.New("it is not a compact JWS with alg ES256: send what getKeyPackages answered")
	case t.Header["typ"] != typ: // the parser has checked the alg, whose method other packages replace
		return u, fmt.Errorf("its typ is %q, and a receipt's %q", t.Header["typ"], typ)
	}
	u.kid, _ = t.Header["kid"].(string)
	u.signed = parts[0] + "." + parts[1]
	if u.signature, err = parser.DecodeSegment(parts[2]); err != nil {
		return u, errors.New("its signature is not base64url without padding")
	}
	var errs [3]error
	u.Service, errs[0] = syntax.ParseDID(r.Issuer)
	u.DID, errs[1] = syntax.ParseDID(r.Subject)
	u.claimant, errs[2] = syntax.ParseDID(r.Claimant)
	if err := errors.Join(errs[:]...); err != nil {
		return u, errors.New("iss, sub and claimant must be DIDs")
	}
	if u.Ref, err = hex.DecodeString(r.Ref); err != nil || u.Ref.String() != r.Ref || len(u.Ref) == 0 {
		return u, errors.New("keyPackageRef is not lower-case hexadecimal")
	}
	if r.ExpiresAt == nil || r.DeviceID == "" || len(r.DeviceID) > maxDeviceID || strings.ContainsRune(r.DeviceID, 0) {
		return u, fmt.Errorf("it needs exp and a deviceId of at most %d bytes, none of which is 0", maxDeviceID)
	}
	u.DeviceID, u.CipherSuite, u.end = r.DeviceID, mls.CipherSuite(r.CipherSuite), r.ExpiresAt.Time
	u.LastResort = r.LastResort
	return u, nil
}

// maxDeviceID is the most bytes of a device's id, as the lexicons have it.
const maxDeviceID = 256
