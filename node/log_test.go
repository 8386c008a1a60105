package node

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
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
