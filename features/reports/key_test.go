package reports_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/features/reports"
)

var convo = uuid.MustParse("0192f3a4-0000-7000-8000-000000000000")

const reporter = syntax.DID("did:plc:ewvi7nxzyoun6zhxrhs64oiz")

func newKey(t *testing.T) reports.PrivateKey {
	t.Helper()
	key, err := reports.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A sealed report opens with its key, for its convo and its reporter, and only whole.
func TestSeal(t *testing.T) {
	t.Parallel()
	key, content := newKey(t), []byte("he threatens me")
	sealed, err := key.Public().Seal(reports.Binding(convo, reporter), content)
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := key.Open(reports.Binding(convo, reporter), sealed); err != nil || !bytes.Equal(opened, content) {
		t.Fatalf("opened %q, %v", opened, err)
	}
	changed := bytes.Clone(sealed)
	changed[40] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"another key":      func() ([]byte, error) { return newKey(t).Open(reports.Binding(convo, reporter), sealed) },
		"another reporter": func() ([]byte, error) { return key.Open(reports.Binding(convo, reporter+"a"), sealed) },
		"another convo":    func() ([]byte, error) { return key.Open(reports.Binding(uuid.New(), reporter), sealed) },
		"a changed byte":   func() ([]byte, error) { return key.Open(reports.Binding(convo, reporter), changed) },
		"a part":           func() ([]byte, error) { return key.Open(reports.Binding(convo, reporter), sealed[:47]) },
	} {
		if opened, err := open(); err == nil {
			t.Errorf("%s opens it: %q", name, opened)
		}
	}
}

// What clients compute stands here in numbers: docs/clients/REPORTS.md states it in words.
func TestBinding(t *testing.T) {
	t.Parallel()
	const want = "52548c6aa1656c463de8310ee520c19fefd552f15b46e18549058075287220f9"
	if got := hex.EncodeToString(reports.Binding(convo, reporter)); got != want {
		t.Errorf("the binding is %s", got)
	}
}

// The TypeScript client has sealed this to the key of mlsd-dev.
func TestSealedByTypeScript(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/typescript.txt")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	key, err := reports.ParsePrivateKey("mlsd-report-private-9D8FEpvYtR3kGVpzOQ_YABcriJOKNJt8RWg6DXR1mu8")
	if err != nil {
		t.Fatal(err)
	}
	opened, err := key.Open(reports.Binding(convo, reporter), sealed)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := reports.ReadContent(opened); err != nil || c.Text != "sealed by the TypeScript client" ||
		len(opened) != 1024 {
		t.Errorf("%+v of %d bytes, %v", c, len(opened), err)
	}
}

// Keys survive as texts, and no half is taken for the other.
func TestKeyTexts(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	text, err := key.Text()
	if err != nil {
		t.Fatal(err)
	}
	again, err := reports.ParsePrivateKey(text)
	if err != nil || again.Public().String() != key.Public().String() {
		t.Fatalf("%v, %v", again.Public(), err)
	}
	public, err := reports.ParsePublicKey(key.Public().String())
	if err != nil || public.ID() != key.Public().ID() || len(public.ID()) != 16 {
		t.Fatalf("%v, %v", public, err)
	}
	if _, err := reports.ParsePublicKey(text); err == nil || !strings.Contains(err.Error(), "private half") ||
		strings.Contains(err.Error(), text) {
		t.Errorf("the private half as the public one: %v", err)
	}
	for _, bad := range []string{"", public.String() + "A", strings.TrimSuffix(public.String(), "A")[:40],
		"mlsd-report-private-AAAA"} {
		if _, err := reports.ParsePrivateKey(bad); err == nil {
			t.Errorf("%q is a private key", bad)
		}
	}
}

// What a terminal would obey is escaped, and what people write is not.
func TestPrintable(t *testing.T) {
	t.Parallel()
	raw := "{\"text\":\"g\u00fc\u00dfe \u4f60\u597d \U0001F600 \\u001b[2J \x7f\u009b31m \u202eabc \u2066 \u200b \ufeff " +
		"\U000E0041\"}"
	got, err := reports.Printable([]byte(raw))
	want := "{\n  \"text\": \"g\u00fc\u00dfe \u4f60\u597d \U0001F600 \\u001b[2J \\u007f\\u009b31m \\u202eabc \\u2066 " +
		"\\u200b \\ufeff \\udb40\\udc41\"\n}"
	if err != nil || got != want {
		t.Errorf("%v\n%q\n%q", err, got, want)
	}
	if _, err := reports.Printable([]byte("no JSON \x1b")); err == nil {
		t.Error("what is no JSON is printed")
	}
}

// A report that is nested deeply would become hundreds of megabytes of spaces. It is refused.
func TestDeepReport(t *testing.T) {
	t.Parallel()
	nested := func(levels int) []byte {
		return []byte(strings.Repeat("[", levels) + `"[[[[[ \" {{{{{"` + strings.Repeat("]", levels))
	}
	if _, err := reports.Printable(nested(20)); err != nil {
		t.Error(err)
	}
	for _, levels := range []int{21, 9990} {
		if out, err := reports.Printable(nested(levels)); err == nil {
			t.Errorf("%d levels are printed as %d bytes", levels, len(out))
		}
	}
}
