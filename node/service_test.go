package node

import (
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/migrations"
)

func TestJudgeService(t *testing.T) {
	t.Parallel()
	const a, b, local, none = syntax.DID("did:web:a.example"), syntax.DID("did:web:b.example"),
		syntax.DID("did:web:localhost%3A8080"), syntax.DID("")
	const public = syntax.DID("did:web:localhoster.example")
	for _, c := range []struct {
		name    string
		owner   syntax.DID
		used    bool
		own     syntax.DID
		nodes   int
		want    syntax.DID
		refused bool
	}{
		{"the first start", none, false, a, 0, a, false},
		{"a service that was tried out gets its name", none, true, a, 0, a, false},
		{"the same service", a, true, a, 2, a, false},
		{"another service", a, true, b, 0, none, true},
		{"another service beside nodes", a, false, b, 1, none, true},
		{"a mistake that nobody knows", a, false, b, 0, b, false},
		{"on this machine alone", none, true, local, 1, none, false},
		{"a name that begins like this machine's", none, true, public, 1, public, false},
		{"without a DID", none, true, none, 1, none, false},
		{"without a DID on a service's database", a, true, none, 0, none, true},
		{"on this machine alone on a service's database", a, true, local, 0, none, true},
		{"without a DID again, and nobody knows", a, false, none, 0, none, false},
	} {
		got, err := judgeService(migrations.Service{DID: c.owner, Used: c.used}, c.own, c.nodes)
		if got != c.want || (err != nil) != c.refused {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}
