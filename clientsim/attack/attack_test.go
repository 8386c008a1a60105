package attack

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/mls"
)

func TestConfigurationsThatCannotRun(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"no attack is named":   func(c *Config) { c.Names = nil },
		`no attack "nonsense"`: func(c *Config) { c.Names = []string{"nonsense"} },
		"must be positive":     func(c *Config) { c.Spans.Attack = 0 },
		"NAME=PATH": func(c *Config) {
			c.Binaries = []testbed.Binary{{Name: "a", Path: "/x"},
				{Name: "", Path: "/y"}}
		},
		"comes twice": func(c *Config) {
			c.Binaries = []testbed.Binary{{Name: "a", Path: "/x"},
				{Name: "a", Path: "/y"}}
		},
	} {
		c := Default()
		c.Names = []string{"bodies"}
		change(&c)
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// The costly GroupInfo is valid: a server verifies all of it. A false last leaf shows only at the
// end.
func TestCostlyGroupInfo(t *testing.T) {
	t.Parallel()
	people := leafOwners("did:plc:attacker", 100)
	if len(people) != 3 {
		t.Errorf("%d people for 100 leaves, want 3", len(people))
	}
	for _, suite := range []infoSuite{ed25519Suite, p521Suite} {
		for _, lastFalse := range []bool{false, true} {
			message, err := costlyInfo(suite, []byte("group"), 1, people, 10, lastFalse)
			if err != nil {
				t.Fatal(err)
			}
			info, err := mls.ParseGroupInfo(message)
			if err != nil {
				t.Fatal(err)
			}
			tree, err := info.Tree()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := info.Verify(tree); (err != nil) != lastFalse {
				t.Errorf("suite %d, last leaf false: %t: %v", suite.suite, lastFalse, err)
			}
		}
	}
}

// A forged token has the form of a real one.
func TestForgedToken(t *testing.T) {
	t.Parallel()
	token := forge(unknownDID(), "did:web:example.com", "blue.catbird.mls.getConvos")
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || !strings.Contains(string(claims), `"iss":"did:plc:`) {
		t.Errorf("claims %s: %v", claims, err)
	}
	if _, err := syntax.ParseDID(string(unknownDID())); err != nil {
		t.Error(err)
	}
}

func TestAcceptancesPerDay(t *testing.T) {
	t.Parallel()
	h := &acceptances{at: []time.Duration{time.Second, 7 * time.Second, 8 * time.Second}, n: []int64{100, 5, 7}}
	if got, want := h.perDay(8), 5.0/2*86400; got != want {
		t.Errorf("%v in a day, want %v: only the last quarter counts", got, want)
	}
}

// The fat KeyPackage is one that a server accepts.
func TestFatKeyPackage(t *testing.T) {
	t.Parallel()
	device, err := mlsclient.NewDevice("did:plc:attacker", mlsclient.SuiteX25519)
	if err != nil {
		t.Fatal(err)
	}
	fat, err := mlsclient.FatLastResort(device, fatSize)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := mls.ParseKeyPackage(fat.Message)
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Check(time.Now()); err != nil || len(fat.Message) < fatSize {
		t.Errorf("%d bytes: %v", len(fat.Message), err)
	}
}
