package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

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
		var got []LookupOutcome
		fetch := observed(func(context.Context, syntax.DID, bool) (atcrypto.PublicKey, error) { return nil, failure },
			func(outcome LookupOutcome, took time.Duration) {
				if got = append(got, outcome); took < 0 {
					t.Errorf("it took %s", took)
				}
			})
		if _, err := fetch(t.Context(), "did:plc:abc", false); err != failure || len(got) != 1 || got[0] != want {
			t.Errorf("%v is reported as %v, and returned as %v", failure, got, err)
		}
	}
}
