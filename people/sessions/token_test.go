package sessions

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

func example(did syntax.DID) claims {
	return claims{
		key: 7, id: uuid.MustParse("0192f3a4-0000-4000-8000-000000000001"), serial: 3, issued: time.Unix(1_790_000_000, 0),
		expires: time.Unix(1_790_003_600, 0),
		device:  [deviceLen]byte{1, 2, 3}, did: did,
	}
}

// A token says what was signed. The longest DID fits, and a longer one would not.
func TestToken(t *testing.T) {
	t.Parallel()
	key := newMACKey(newKey())
	keyOf := func(id int32) *macKey {
		if id == 7 {
			return key
		}
		return nil
	}
	longest := syntax.DID("did:web:" + strings.Repeat("a", maxDID-8))
	for _, did := range []syntax.DID{"did:plc:ewvi7nxzyoun6zhxrhs64oiz", longest} {
		for _, prefix := range []string{bearerPrefix, refreshPrefix} {
			c := example(did)
			token := c.sign(prefix, key)
			if len(token) > maxToken {
				t.Errorf("a token of %d bytes", len(token))
			}
			got, err := parse(prefix, token, keyOf)
			if err != nil || got != c {
				t.Errorf("got %+v, %v; want %+v", got, err, c)
			}
			if _, err := parse(prefix, token, func(int32) *macKey { return newMACKey(newKey()) }); err == nil {
				t.Error("another key does")
			}
			if _, err := parse(prefix, token, func(int32) *macKey { return nil }); err == nil {
				t.Error("no key does")
			}
		}
	}
	if c := example(longest + "aaa"); len(c.sign(bearerPrefix, key)) <= maxToken {
		t.Error("the bound of a DID is too low")
	}
}

// Whatever an unauthenticated caller sends, only what was signed is believed, and a changed token
// is refused.
func FuzzParse(f *testing.F) {
	key := newMACKey(bytes.Repeat([]byte{1}, 32))
	keyOf := func(int32) *macKey { return key }
	c := example("did:plc:ewvi7nxzyoun6zhxrhs64oiz")
	signed := c.sign(bearerPrefix, key)
	for _, seed := range []string{signed, signed[:40], c.sign(refreshPrefix, key), bearerPrefix, "",
		"eyJhbGciOiJFUzI1NiJ9.e30.x", signed + "=", signed[:len(signed)-1] + "!"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		got, err := parse(bearerPrefix, token, keyOf)
		switch {
		case err != nil:
			if got != (claims{}) && got.did != "" {
				t.Errorf("%+v is told of a refused token", got)
			}
		case got.sign(bearerPrefix, key) != token && !strings.ContainsAny(token, "\r\n"):
			t.Errorf("%q is another form of %+v", token, got)
		}
	})
}
