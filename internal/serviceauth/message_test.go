package serviceauth_test

import (
	"errors"
	"strings"
	"testing"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

// A token for another service is refused with both names of aud (M8). A long one is cut.
func TestWrongAudienceNamesBoth(t *testing.T) {
	t.Parallel()
	id := authtest.NewIdentity(t)
	f := newFixture(t, id)
	for aud, want := range map[string]string{
		"did:web:elsewhere.test": `aud is not this service: "did:web:elsewhere.test" instead of ` + string(service) +
			" or " + string(service) + "#atproto_mls",
		strings.Repeat("x", 300):    `xxx"… instead of`,
		"did:web:a\u202e\"<b>.test": `"did:web:a\u202e\"<b>.test" instead of`,
	} {
		_, err := f.Validate(t.Context(), "", "Bearer "+id.Token(t, aud, string(send), f.now), send, false, nil)
		var invalid *serviceauth.InvalidError
		if !errors.As(err, &invalid) {
			t.Fatalf("%q: %v", aud, err)
		}
		if got := invalid.Message(); !strings.Contains(got, want) || len(got) > 500 {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
