package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/fxamacker/cbor/v2"

	"mlsd/people/accounts"
)

// Whatever a relay or a Jetstream sends, a frame is refused or says something of a well-formed DID, at
// a time that is not far ahead.
func FuzzFrame(f *testing.F) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const did = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
	object := func(v any) []byte {
		b, err := cbor.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	repos := func(op int, name string, body map[string]any) []byte {
		return append(object(map[string]any{"op": op, "t": name}), object(body)...)
	}
	account := map[string]any{"seq": 7, "did": did, "time": "2026-01-01T00:00:00Z", "active": false, "status": "deleted"}
	for _, frame := range [][]byte{
		repos(1, "#account", account), repos(1, "#identity", account),
		repos(1, "#info", map[string]any{"name": "OutdatedCursor"}),
		repos(1, "#commit", map[string]any{"seq": 8, "ops": []any{map[string]any{"cid": nil}}}),
		repos(-1, "", map[string]any{"error": "FutureCursor"}), repos(2, "", nil), {}, {0xbf, 0xff},
		{0x9b, 255, 255, 255, 255},
	} {
		f.Add(false, frame)
	}
	for _, frame := range []string{
		`{"time_us":7,"kind":"account","account":{"did":"` + did + `","active":true,"time":"2026-01-01T00:00:00Z"}}`,
		`{"time_us":7,"kind":"identity","identity":{"did":"` + did + `"}}`, `{"time_us":7,"kind":"commit"}`,
		`{"time_us":-1}`, `[`,
	} {
		f.Add(true, []byte(frame))
	}
	decoders := map[bool]*decoder{}
	for jetstream, kind := range map[bool]Kind{false: Repos, true: Jetstream} {
		d, err := newDecoder(kind, func() time.Time { return now })
		if err != nil {
			f.Fatal(err)
		}
		decoders[jetstream] = d
	}
	statuses := []accounts.Status{accounts.Active, accounts.Deactivated, accounts.Suspended, accounts.TakenDown,
		accounts.Deleted}
	f.Fuzz(func(t *testing.T, jetstream bool, frame []byte) {
		m, err := decoders[jetstream].decode(frame)
		if err != nil {
			return
		}
		named := m.identity
		if m.kind == kindAccount {
			named = m.change.DID
			if !slices.Contains(statuses, m.change.Status) || m.change.At.After(now.Add(clockSkew)) {
				t.Errorf("%+v", m.change)
			}
		}
		if _, err := syntax.ParseDID(named.String()); err != nil && (m.kind == kindAccount || m.kind == kindIdentity) {
			t.Errorf("%+v", m)
		}
	})
}
