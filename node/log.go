package node

import (
	"io"
	"log/slog"
	"regexp"

	"mlsd/internal/redact"
)

// Logger returns the server's log, which it writes to w. Only at level debug does the log name
// callers. Above it, every DID is replaced, because the errors of libraries quote their input. A
// duration is written with its unit, such as 1m30s, in both formats.
func (c Config) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel, ReplaceAttr: withUnits}
	if c.LogLevel > slog.LevelDebug {
		withoutDID := withoutDIDs(redact.DIDs())
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr { return withoutDID(groups, withUnits(groups, a)) }
	}
	if c.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func withUnits(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
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
