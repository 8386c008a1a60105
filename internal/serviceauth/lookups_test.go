package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Each look-up is reported with how it ended.
func TestLookupOutcomes(t *testing.T) {
	t.Parallel()
	for want, failure := range map[LookupOutcome]error{
		LookupFound:   nil,
		LookupInvalid: fmt.Errorf("no key: %w", ErrIssuer),
		LookupBusy:    ErrBusy,
		LookupFailed:  errors.New("status 500"),
	} {
		for did, source := range map[syntax.DID]LookupSource{"did:plc:abc": LookupPLC, "did:web:a.example": LookupWeb} {
			var got []Lookup
			fetch := observed(func(context.Context, syntax.DID, bool) (atcrypto.PublicKey, error) { return nil, failure },
				func(l Lookup) { got = append(got, l) })
			if _, err := fetch(t.Context(), did, false); err != failure || len(got) != 1 {
				t.Fatalf("%v is reported as %v, and returned as %v", failure, got, err)
			}
			if l := got[0]; l.Source != source || l.Outcome != want || l.Err != failure || l.Took < 0 {
				t.Errorf("%s: %v is reported as %+v", did, failure, l)
			}
		}
	}
}
