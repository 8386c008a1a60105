package serviceauth

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/k256"
)

// FuzzParseToken checks the form of every token that parses. It has one spelling only: encoded
// again, it is the same token.
func FuzzParseToken(f *testing.F) {
	enc := base64.RawURLEncoding
	part := func(s string) string { return enc.EncodeToString([]byte(s)) }
	sig := enc.EncodeToString(make([]byte, signatureSize))
	f.Add(part(`{"alg":"ES256K","typ":"JWT"}`) + "." +
		part(`{"iss":"`+string(alice)+`","aud":"a","jti":"j","iat":1,"exp":2}`) + "." + sig)
	f.Add(part(`{"alg":"ES256"}`) + "." + part(`{"iss":"did:web:localhost%3A80","jti":"j","iat":1,"nbf":1,"exp":2}`) +
		"." + sig)
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, raw string) {
		tok, err := parseToken(raw)
		if err != nil {
			return
		}
		c := tok.claims
		if _, err := syntax.ParseDID(c.iss.String()); err != nil {
			t.Errorf("iss %q: %v", c.iss, err)
		}
		if c.jti == "" || len(c.jti) > maxJTI || c.iat <= 0 || c.exp <= 0 || c.nbf < 0 ||
			len(tok.signature) != signatureSize {
			t.Errorf("out of bounds: %+v", tok)
		}
		if tok.alg != algES256 && tok.alg != algES256K {
			t.Errorf("alg %q", tok.alg)
		}
		var again []string
		for _, p := range strings.Split(raw, ".") {
			b, err := enc.DecodeString(p)
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, enc.EncodeToString(b))
		}
		if strings.Join(again, ".") != raw || !strings.HasPrefix(raw, tok.signed+".") {
			t.Errorf("%q has another spelling", raw)
		}
	})
}

// FuzzDocument parses any DID document, because anybody publishes them.
func FuzzDocument(f *testing.F) {
	const prefix = `{"id":"` + string(alice) + `","verificationMethod":[{"id":"#atproto","controller":"` + string(alice) +
		`","type":"`
	f.Add(`{}`)
	f.Add(prefix + `Multikey","publicKeyMultibase":"zQ3shXjHeiBuRCKmM36cuYnm7YEMzhGnCmCyW92sRJ9pribSF"}]}`)
	f.Add(prefix + `Multikey","publicKeyMultibase":"zDnaembgSGUhZULN2Caob4HLJPaxBh92N7rtH21TErzqf8HQo"}]}`)
	f.Add(prefix + `EcdsaSecp256k1VerificationKey2019",` +
		`"publicKeyMultibase":"zQYEBzXeuTM9UR3rfvNag6L3RNAs5pQZyYPsomTsgQhsxLdEgCrPTLgFna8yqCnxPpNT7DBk6Ym3dgPKNu86vt9GR"}]}`)
	f.Add(prefix + `EcdsaSecp256r1VerificationKey2019","publicKeyMultibase":"zXt"}]}`)
	keys, err := k256.NewKeys(1)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		key, err := parseDocument([]byte(body), alice)
		if (key == nil) != (err != nil) {
			t.Fatalf("parseDocument = %v, %v", key, err)
		}
		if key != nil {
			for _, alg := range []string{algES256, algES256K} {
				_ = (&token{alg: alg, signature: make([]byte, signatureSize)}).verify(keys, key)
			}
		}
	})
}
