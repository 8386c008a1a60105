package api_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/api"
)

// Every operation with work outside the database states its own lease. The default is for
// operations that state none, and there are none.
func TestLeasesOfOperations(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, o := range api.Lifetimes().All() {
		if o.Lease != 0 {
			got[o.Name()] = o.Lease.String()
		}
	}
	want := map[string]string{
		"default": (5 * time.Minute).String(), "push": time.Minute.String(), "invitation": time.Minute.String(),
		"completeAttachment": time.Minute.String(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
