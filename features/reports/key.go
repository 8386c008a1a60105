package reports

import (
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"mlsd/internal/errs"
)

const (
	// Algorithm names the way in which reports are sealed: HPKE of RFC 9180 in base mode. The
	// sealed bytes are the encapsulated key, followed by the ciphertext.
	Algorithm = "HPKE-Base-X25519-HKDF-SHA256-AES-256-GCM"
	// Info is the info parameter of HPKE. It says what is sealed, and in which form.
	Info = "mlsd abuse report 1"

	encSize = 32 // the encapsulated key
	tagSize = 16 // of AES-256-GCM
	keySize = 32
)

// The text of a key begins with one of these words, so that nobody confuses the two kinds of keys.
const (
	publicPrefix  = "mlsd-report-public-"
	privatePrefix = "mlsd-report-private-"
)

// PublicKey is the operator's key to which reports are sealed.
type PublicKey struct{ key hpke.PublicKey }

// PrivateKey opens reports. The server must not have it.
type PrivateKey struct{ key hpke.PrivateKey }

func kem() hpke.KEM { return hpke.DHKEM(ecdh.X25519()) }

// NewPrivateKey makes a key.
func NewPrivateKey() (PrivateKey, error) {
	key, err := kem().GenerateKey()
	return PrivateKey{key}, errs.Wrap(err, "make a report key")
}

// ParsePublicKey parses a result of [PublicKey.String].
func ParsePublicKey(text string) (PublicKey, error) {
	if strings.HasPrefix(text, privatePrefix) {
		return PublicKey{}, errors.New("this is the private half, which must not be on the server; want the public one, " +
			publicPrefix + "…")
	}
	raw, err := parseKey(text, publicPrefix)
	if err != nil {
		return PublicKey{}, err
	}
	key, err := kem().NewPublicKey(raw)
	return PublicKey{key}, errs.Wrap(err, "read the public report key")
}

// ParsePrivateKey parses a result of [PrivateKey.Text].
func ParsePrivateKey(text string) (PrivateKey, error) {
	raw, err := parseKey(text, privatePrefix)
	if err != nil {
		return PrivateKey{}, err
	}
	key, err := kem().NewPrivateKey(raw)
	return PrivateKey{key}, errs.Wrap(err, "read the private report key")
}

func parseKey(text, prefix string) ([]byte, error) {
	digits, found := strings.CutPrefix(text, prefix)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(digits)
	if !found || err != nil || len(raw) != keySize {
		return nil, errors.New("want " + prefix + "…, as mlsd report-key new writes it")
	}
	return raw, nil
}

// String returns the key in the form of a setting.
func (k PublicKey) String() string {
	return publicPrefix + base64.RawURLEncoding.EncodeToString(k.Bytes())
}

// Bytes returns the key in the form that clients get: the 32 bytes of X25519.
func (k PublicKey) Bytes() []byte { return k.key.Bytes() }

// ID returns the name of the key: the first 8 bytes of its SHA-256, in hexadecimal.
func (k PublicKey) ID() string {
	sum := sha256.Sum256(k.Bytes())
	return hex.EncodeToString(sum[:8])
}

// Seal seals content and binds it to binding, which is a result of Binding.
func (k PublicKey) Seal(binding, content []byte) ([]byte, error) {
	enc, sender, err := hpke.NewSender(k.key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(Info))
	if err != nil {
		return nil, fmt.Errorf("seal a report: %w", err)
	}
	ciphertext, err := sender.Seal(binding, content)
	if err != nil {
		return nil, fmt.Errorf("seal a report: %w", err)
	}
	return append(enc, ciphertext...), nil
}

// Text returns the key in the form that the operator stores. The method is not named String, so
// that no log shows the key.
func (k PrivateKey) Text() (string, error) {
	raw, err := k.key.Bytes()
	if err != nil {
		return "", fmt.Errorf("write the private report key: %w", err)
	}
	return privatePrefix + base64.RawURLEncoding.EncodeToString(raw), nil
}

// Public returns the key's public half.
func (k PrivateKey) Public() PublicKey { return PublicKey{k.key.PublicKey()} }

// Open opens a sealed report. It returns an error if the report was sealed to another key, is bound
// to something else, or was changed.
func (k PrivateKey) Open(binding, sealed []byte) ([]byte, error) {
	if len(sealed) < encSize+tagSize {
		return nil, ErrNotSealed
	}
	recipient, err := hpke.NewRecipient(sealed[:encSize], k.key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(Info))
	if err != nil {
		return nil, fmt.Errorf("open a report: %w", err)
	}
	content, err := recipient.Open(binding, sealed[encSize:])
	return content, errs.Wrap(err, "open a report: it is sealed to another key, or was changed")
}
