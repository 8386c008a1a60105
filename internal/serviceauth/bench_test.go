package serviceauth_test

import (
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/serviceauth/authtest"
)

// BenchmarkValidate measures a query whose token is remembered, procedures with new tokens of
// either curve, and a token that is refused for its claims.
func BenchmarkValidate(b *testing.B) {
	k256, p256 := authtest.NewIdentity(b), authtest.NewP256Identity(b)
	f := newFixture(b, k256, p256)
	run := func(name string, id *authtest.Identity, nsid syntax.NSID, fresh bool, changes ...authtest.Change) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var tokens []string
			tokens = append(tokens, id.Authorization(b, string(service), string(nsid), f.now, changes...))
			if fresh {
				for len(tokens) < b.N {
					tokens = append(tokens, id.Authorization(b, string(service), string(nsid), f.now))
				}
			}
			b.ResetTimer()
			for i := range b.N {
				_, err := f.call(b, tokens[i%len(tokens)], nsid)
				if (err != nil) != (len(changes) > 0) {
					b.Fatal(err)
				}
			}
		})
	}
	run("cached", k256, read, false)
	run("fresh/K-256", k256, send, true)
	run("fresh/P-256", p256, send, true)
	run("refused/aud", k256, send, false, authtest.Claim("aud", "did:web:other.example.com"))
}
