package lexcodec

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"time"

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

// base64Pairs are the two characters of standard base64 for each value of 12
// bits. The first character is in the lower byte.
var base64Pairs = func() (pairs [1 << 12]uint16) {
	for v := range pairs {
		text := base64.StdEncoding.EncodeToString([]byte{byte(v >> 4), byte(v << 4), 0})
		pairs[v] = binary.LittleEndian.Uint16([]byte(text))
	}
	return pairs
}()

// appendBase64 appends unpadded standard base64, six bytes at a time. It is most
// of the cost of encoding a page of messages.
func appendBase64(dst, src []byte) []byte {
	n := base64.RawStdEncoding.EncodedLen(len(src))
	dst = slices.Grow(dst, n)
	to := dst[len(dst) : len(dst)+n]
	for len(src) >= 8 { // reads eight bytes and uses six of them
		v := binary.BigEndian.Uint64(src)
		binary.LittleEndian.PutUint64(to, uint64(base64Pairs[v>>52])|uint64(base64Pairs[v>>40&0xfff])<<16|
			uint64(base64Pairs[v>>28&0xfff])<<32|uint64(base64Pairs[v>>16&0xfff])<<48)
		src, to = src[6:], to[8:]
	}
	base64.RawStdEncoding.Encode(to, src)
	return dst[:len(dst)+n]
}

// appendDatetime appends t in datetimeLayout. t is in UTC.
func appendDatetime(dst []byte, t time.Time) []byte {
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(dst, datetimeLayout)
	}
	hour, minute, second := t.Clock()
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(dst,
		digit(year/1000), digit(year/100), digit(year/10), digit(year), '-', digit(int(month)/10), digit(int(month)), '-',
		digit(day/10), digit(day),
		'T', digit(hour/10), digit(hour), ':', digit(minute/10), digit(minute), ':', digit(second/10), digit(second),
		'.', digit(ms/100), digit(ms/10), digit(ms), 'Z')
}

// digit is the last decimal digit of n.
func digit(n int) byte { return '0' + byte(n%10) }
