package quota_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/people/quota"
)

// Quotas without a setting follow others, or are fixed.
func TestComplete(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ messages, announced, records, uploaded int64 }{
		{50_000, 1 << 30, 50_000, 3 << 30},
		{7, 10, 7, 30},
		{0, 0, 0, 0}, // no limit
		{1, math.MaxInt64, 1, math.MaxInt64 / 3 * 3},
	} {
		l := quota.Limits{"messages-per-day": tc.messages, "attachment-bytes-per-day": tc.announced}
		l.Complete()
		want := quota.Limits{
			"messages-per-day": tc.messages, "attachment-bytes-per-day": tc.announced, "records-per-day": tc.records,
			"uploaded-bytes-per-day": tc.uploaded, "resets-per-day": 20,
		}
		if diff := cmp.Diff(want, l); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	l := quota.Defaults()
	l.Complete()
	if diff := cmp.Diff(quota.Defaults(), l); diff != "" {
		t.Errorf("the defaults are not what Complete makes of them (-want +got):\n%s", diff)
	}
}
