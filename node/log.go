package node

import (
	"io"
	"log/slog"
	"regexp"

	"mlsd/internal/redact"
)

// Logger returns the server's log, which it writes to w. Only at level debug does the log name
// callers. Above it, every DID is replaced, because the errors of libraries quote their input.
func (c Config) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogLevel > slog.LevelDebug {
		options.ReplaceAttr = withoutDIDs(redact.DIDs())
	}
	if c.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func withoutDIDs(did *regexp.Regexp) func([]string, slog.Attr) slog.Attr {
	return func(_ []string, a slog.Attr) slog.Attr {
		switch a.Value.Kind() {
		case slog.KindString, slog.KindAny:
			if text := a.Value.String(); did.MatchString(text) {
				a.Value = slog.StringValue(did.ReplaceAllLiteralString(text, "did:…"))
			}
		}
		return a
	}
}
