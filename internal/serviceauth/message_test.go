package serviceauth_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

// Each refusal of a token says what was got, where it is no secret, and what is wanted (M8). A long
// text is cut. None of the reasons is left out.
func TestRefusalsNameBoth(t *testing.T) {
	t.Parallel()
	alice, bob, gone := authtest.NewIdentity(t), authtest.NewP256Identity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice, bob)
	good := alice.Token(t, string(service), string(send), f.now)
	parts := strings.Split(good, ".")
	with := func(changes ...authtest.Change) string {
		return alice.Authorization(t, string(service), string(send), f.now, changes...)
	}
	signed := func(b byte) string {
		return "Bearer " + parts[0] + "." + parts[1] + "." +
			base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{b}, 64))
	}
	header, claim := authtest.Header, authtest.Claim
	at := func(d time.Duration) string { return f.now.Add(d).UTC().Format(time.RFC3339) }
	now := "the server's time " + at(0)
	used := with()
	if _, err := f.call(t, used, send); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, tc := range []struct{ name, authorization, got, wanted string }{
		{"scheme", "Basic YTpi", `"Basic"`, "instead of Bearer"},
		{"a token alone", good, "the scheme is none", "instead of Bearer"},
		{"size", "Bearer " + strings.Repeat("a", 5000), "it has 5000 bytes", "at most 4096 are taken"},
		{"form", "Bearer a.b", "the number of its parts is 2", "instead of 3, with a dot between them"},
		{"base64", "Bearer " + good + "==", "its signature", "use - and _, and no padding"},
		{"header", with(header("alg", 1)), "its alg is a number", `instead of {"typ":"JWT"`},
		{"claims", with(claim("exp", "soon")), "its exp is a string", `"exp":whole seconds}`},
		{"claims that are no JSON", "Bearer " + authtest.Sign(t, alice.Key, `{"alg":"ES256K"}`, `{`),
			"it is not JSON", `instead of {"iss":DID`},
		{"alg", with(header("alg", "none")), `it is "none"`, "must be ES256 or ES256K"},
		{"typ", with(header("typ", "at+jwt")), `"at+jwt"`, `instead of "JWT": send the token of getServiceAuth`},
		{"kid", with(header("kid", "#key")), `it is "#key"`, "must be atproto"},
		{"crit", with(header("crit", []string{"exp"})), "crit is not supported", "leave it out"},
		{"iss", with(claim("iss", "alice.test")), `it is "alice.test"`, "must be a did:plc or did:web account"},
		{"aud", with(claim("aud", "did:web:elsewhere.test")), `"did:web:elsewhere.test" instead`,
			"of " + string(service) + " or " + string(service) + "#atproto_mls"},
		{"a long aud", with(claim("aud", strings.Repeat("x", 300))), `xxx"…`, "instead of " + string(service)},
		{"an aud with quotes", with(claim("aud", "a\u202e\"<b>")), `"a\u202e\"<b>"`, "instead of " + string(service)},
		{"lxm", with(claim("lxm", string(read))), strconv.Quote(string(read)) + " instead",
			"of " + strconv.Quote(string(send)) + ": get a token for this method"},
		{"no lxm", with(claim("lxm", nil)), "none instead", "of " + strconv.Quote(string(send))},
		{"jti", with(claim("jti", nil)), "it has 0", "send 16 random bytes as text"},
		{"times", with(claim("exp", nil)), "exp none", "required, in whole seconds"},
		{"expired", with(claim("iat", f.now.Unix()-70), claim("exp", f.now.Unix()-10)),
			"iat is " + at(-70*time.Second) + ", exp " + at(-10*time.Second), now + ": get a new one"},
		{"lifetime", with(claim("exp", f.now.Unix()+7200)), "exp " + at(2*time.Hour) + ", and " + now,
			"within 1 hour of iat"},
		{"future", with(claim("nbf", f.now.Unix()+60)), "nbf " + at(time.Minute) + ", and " + now, "set the clock"},
		{"issuer", gone.Authorization(t, string(service), string(send), f.now), gone.DID.String(), "a key #atproto"},
		{"key", "Bearer " + authtest.Sign(t, authtest.K256(t), `{"alg":"ES256K"}`, `{"iss":"`+bob.DID.String()+
			`","aud":"`+string(service)+`","lxm":"`+string(send)+`","jti":"x","iat":1800000000,"exp":1800000060}`),
			"ES256K instead", "of ES256"},
		{"signature", signed(1), "it is not of", "the #atproto key in the DID document of " + alice.DID.String()},
		{"a short signature", "Bearer " + good[:len(good)-2], "its length in bytes is 63", "instead of 64"},
		{"High-S", signed(0xff), "signature is High-S", "replace s by n - s"},
		{"replay", used, "was used before", "get a new one for each call"},
	} {
		_, err := f.call(t, tc.authorization, send)
		var invalid *serviceauth.InvalidError
		if !errors.As(err, &invalid) {
			t.Fatalf("%s: %v", tc.name, err)
		}
		seen[invalid.Reason] = true
		got := invalid.Message()
		if !strings.Contains(got, tc.got) || !strings.Contains(got, tc.wanted) || len(got) > 500 {
			t.Errorf("%s: %s\nlacks %q or %q", tc.name, got, tc.got, tc.wanted)
		}
		if strings.Contains(got, parts[1][:20]) || strings.Contains(got, parts[2][:20]) {
			t.Errorf("%s: %s repeats the token", tc.name, got)
		}
	}
	for _, reason := range reasons(t) {
		if !seen[reason] {
			t.Errorf("no token is refused because %q", reason)
		}
	}
}

// reasons are the texts of the constants whose name begins with reason.
func reasons(t *testing.T) (texts []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text func(ast.Expr) string
	text = func(e ast.Expr) string {
		if sum, ok := e.(*ast.BinaryExpr); ok {
			return text(sum.X) + text(sum.Y)
		}
		s, err := strconv.Unquote(e.(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "reason") {
			texts = append(texts, text(v.Values[0]))
		}
		return true
	})
	return texts
}
