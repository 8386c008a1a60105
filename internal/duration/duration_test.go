package duration_test

import (
	"errors"
	"testing"
	"time"

	"mlsd/internal/duration"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0": 0, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "-1m": -time.Minute, "720h": 720 * time.Hour,
		"30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "0d": 0, "0d5s": 5 * time.Second, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := duration.Parse(text); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "5", "soon", "d", "30 d", "-1d", "+1d", "1.5d", "1d-1h", "1d+1h", "1d1d", "1dd", "1h1d", "1d5", "106752d",
		"106751d24h", "99999999999d",
		"1w", "1D",
	} {
		if got, err := duration.Parse(text); !errors.Is(err, duration.ErrForm) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
