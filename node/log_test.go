package node

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLogBlotsOutDIDs(t *testing.T) {
	t.Parallel()
	cause := fmt.Errorf("get /did:plc:abc123: %w", errors.New("did%3Aweb%3Ab.example.com%3A80: no"))
	for level, want := range map[slog.Level]string{
		slog.LevelInfo: `level=WARN msg="of did:…, twice did:…" error="get /did:…: did:…: no" n=1`,
		slog.LevelDebug: `level=WARN msg="of did:plc:abc, twice did:web:a.example.com" error="get /did:plc:abc123: ` +
			`did%3Aweb%3Ab.example.com%3A80: no" n=1`,
	} {
		var out strings.Builder
		Config{LogFormat: "text", LogLevel: level}.Logger(&out).Warn("of did:plc:abc, twice did:web:a.example.com", "error",
			cause, "n", 1)
		if _, got, _ := strings.Cut(strings.TrimSpace(out.String()), " "); got != want {
			t.Errorf("at %v: %s, want %s", level, got, want)
		}
	}
}

// G14: a duration in a line has its unit. JSON has no durations, so slog writes nanoseconds.
func TestLogWritesDurationsWithUnits(t *testing.T) {
	t.Parallel()
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		for _, format := range []string{"json", "text"} {
			var out strings.Builder
			log := Config{LogFormat: format, LogLevel: level}.Logger(&out)
			log.With("every", 90*time.Second).WithGroup("of").Warn("late", "after", 690*time.Millisecond)
			if got := out.String(); !strings.Contains(got, "1m30s") || !strings.Contains(got, "690ms") {
				t.Errorf("%s at %v: %s", format, level, got)
			}
		}
	}
}
