package lexcodec

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendString appends s as a JSON string. Most strings are identifiers of plain
// ASCII: one loop finds that they need no escapes.
func AppendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return appendQuoted(dst, s)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// appendQuoted appends s with escapes where JSON needs them.
func appendQuoted(dst []byte, s string) []byte {
	n := len(dst)
	out, err := jsontext.AppendQuote(dst, s)
	if err != nil { // the server's own string is not UTF-8: keep it, and mark the place
		out, _ = jsontext.AppendQuote(dst[:n], strings.ToValidUTF8(s, "\ufffd"))
	}
	return out
}
