package main

import (
	"io"
	"log/slog"
	"regexp"
)

// logger writes the server's log to w. Callers are named in it at level debug only: above that every DID is blotted out, for
// errors of libraries quote what they were given.
func logger(cfg Config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogLevel > slog.LevelDebug {
		options.ReplaceAttr = withoutDIDs(didPattern())
	}
	if cfg.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// didPattern finds DIDs in texts, in URLs too.
func didPattern() *regexp.Regexp {
	return regexp.MustCompile(`did(:|%3[aA])[a-z]+((:|%3[aA])([A-Za-z0-9._-]|%[0-9a-fA-F]{2})+)+`)
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
