package attack

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/mls"
)

func TestConfigurationsThatCannotRun(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"no attack is named":   func(c *Config) { c.Names = nil },
		`no attack "nonsense"`: func(c *Config) { c.Names = []string{"nonsense"} },
		"must be positive":     func(c *Config) { c.Spans.Attack = 0 },
	} {
		c := Default()
		c.Names = []string{"bodies"}
		change(&c)
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// The costly GroupInfo is valid: a server verifies all of it.
func TestCostlyGroupInfo(t *testing.T) {
	t.Parallel()
	people := leafOwners("did:plc:attacker", 100)
	if len(people) != 3 {
		t.Errorf("%d people for 100 leaves, want 3", len(people))
	}
	info, err := mls.ParseGroupInfo(costlyInfo([]byte("group"), people, 10))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := info.Tree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := info.Verify(tree); err != nil {
		t.Error(err)
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
