package outgoing

import (
	"encoding/hex"
	"errors"
	"testing"
	"time"
)

// S10: the hash of a job's record is the same in every version of the server. Otherwise the first
// attempt of a new version would be a conflict with the last one of the old version.
func TestJobHash(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"0192f3a4-5b6c-7d8e-9f01-23456789abcd":         "9abdbf2cbc9ff17186e4827b81c55fb5741fc7d0fae859cf8044eab57099262d",
		"0192f3a4-5b6c-7d8e-9f01-23456789abcd invited": "dcd20d4c1a6ee27dab2de82dc9c04d0dd0a7fe011d34470c27f0c6de62427f71",
	} {
		if hash := content(key).Hash(); hex.EncodeToString(hash[:]) != want {
			t.Errorf("the hash of %s is %x, want %s", key, hash, want)
		}
	}
}

// The delay grows by the factor up to the longest, and is never shorter than the receiver asks for,
// up to the longest again.
func TestDelay(t *testing.T) {
	t.Parallel()
	q := &Queue{FirstDelay: time.Second, LastDelay: time.Hour, Factor: 3,
		Jitter: func(longest time.Duration) time.Duration { return longest }}
	for _, tc := range []struct {
		attempt     int
		after, want time.Duration
	}{
		{1, 0, time.Second}, {2, 0, 3 * time.Second}, {3, 0, 9 * time.Second}, {9, 0, time.Hour}, {1000, 0, time.Hour},
		{1, time.Minute, time.Minute}, {3, time.Second, 9 * time.Second}, {1, 1 << 62, time.Hour},
	} {
		if got := q.Delay(tc.attempt, tc.after); got != tc.want {
			t.Errorf("after attempt %d, asked for %v: %v, want %v", tc.attempt, tc.after, got, tc.want)
		}
	}
}

func TestRetryHasItsCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	if err := error(&Retry{Cause: cause}); !errors.Is(err, cause) {
		t.Error("the cause is lost")
	}
}
