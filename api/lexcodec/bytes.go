package lexcodec

import (
	"bytes"
	"encoding/base64"
	"errors"
)

// The encodings refuse stray bits. They are variables, because Strict makes a copy each time.
var (
	paddedStandard, rawStandard = base64.StdEncoding.Strict(), base64.RawStdEncoding.Strict()
	paddedURL, rawURL           = base64.URLEncoding.Strict(), base64.RawURLEncoding.Strict()
)

var (
	errBytes  = errors.New(`must be {"$bytes": canonical standard base64}`)
	errBase64 = errors.New("must be canonical base64")
)

// Bytes is the atproto data model's bytes: in JSON the object
// {"$bytes": "<standard base64>"}. It reads base64 with and without padding:
// Swift clients pad, the specification does not. It refuses the URL-safe
// alphabet, white space, wrong padding and stray bits in the last character, so
// each value has exactly two spellings. It writes no padding.
type Bytes []byte

// ParseBytes decodes the text of a $bytes member.
func ParseBytes(text []byte) (Bytes, error) {
	if hasURLAlphabet(text) {
		return nil, errBytes
	}
	raw, err := decodeBase64(text, paddedStandard, rawStandard)
	if err != nil {
		return nil, errBytes
	}
	return raw, nil
}

// AppendJSON appends the JSON form to dst.
func (b Bytes) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"$bytes":"`...)
	dst = appendBase64(dst, b)
	return append(dst, `"}`...)
}

// MarshalJSON implements the interface of both JSON packages.
func (b Bytes) MarshalJSON() ([]byte, error) { return b.AppendJSON(nil), nil }

// UnmarshalJSON implements the interface of both JSON packages.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	return decodeWith(data, func(d *Decoder) { *b = d.Bytes(0, NoLimit) })
}

// Base64 is a string field whose description in the lexicon says base64. It
// reads the standard and the URL-safe alphabet, but not both in one value, with
// and without padding. It writes the URL-safe alphabet without padding.
type Base64 []byte

// ParseBase64 decodes the text of a base64 string.
func ParseBase64(text []byte) (Base64, error) {
	padded, raw := paddedStandard, rawStandard
	if hasURLAlphabet(text) {
		padded, raw = paddedURL, rawURL
	}
	out, err := decodeBase64(text, padded, raw)
	if err != nil {
		return nil, errBase64
	}
	return out, nil
}

// AppendJSON appends the JSON form to dst.
func (b Base64) AppendJSON(dst []byte) []byte {
	dst = append(dst, '"')
	dst = base64.RawURLEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

// MarshalJSON implements the interface of both JSON packages.
func (b Base64) MarshalJSON() ([]byte, error) { return b.AppendJSON(nil), nil }

// UnmarshalJSON implements the interface of both JSON packages.
func (b *Base64) UnmarshalJSON(data []byte) error {
	return decodeWith(data, func(d *Decoder) { *b = d.Base64(0, NoLimit) })
}

func hasURLAlphabet(text []byte) bool {
	return bytes.IndexByte(text, '-') >= 0 || bytes.IndexByte(text, '_') >= 0
}

// decodeBase64 decodes with strict encodings. Package base64 skips line breaks even in strict mode,
// so decodeBase64 refuses line breaks itself.
func decodeBase64(text []byte, padded, raw *base64.Encoding) ([]byte, error) {
	if bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0 {
		return nil, errBase64
	}
	enc := raw
	if len(text) > 0 && text[len(text)-1] == '=' {
		enc = padded
	}
	out := make([]byte, enc.DecodedLen(len(text)))
	n, err := enc.Decode(out, text)
	return out[:n], err
}
