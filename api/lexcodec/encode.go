package lexcodec

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
)

// Appender writes its canonical JSON without reflection. Every scalar type of this package and
// every generated type that the server encodes implements it.
type Appender interface {
	// AppendJSON appends the value's canonical JSON to dst. Fields are in the order of their names.
	// Absent optional fields are left out. There is no white space and no HTML escape.
	AppendJSON(dst []byte) []byte
}

// Marshal returns the canonical JSON of v: equal values give equal bytes on every node and in every
// release. Pass generated types by pointer: for an [Appender], Marshal needs no reflection.
func Marshal(v any) ([]byte, error) {
	if a, ok := v.(Appender); ok {
		return a.AppendJSON(nil), nil
	}
	return json.Marshal(v, json.Deterministic(true))
}

// A Field is one top-level field of an input. The request hash is made from the fields. If an
// idempotency key is used for another input, the answer names the fields that differ.
type Field struct {
	Name string
	// JSON is the canonical form of the decoded value. So padded and unpadded base64 of the same
	// bytes are the same request.
	JSON []byte
}

// FieldList collects Fields. Their values share one buffer.
type FieldList struct {
	Fields []Field
	Buffer []byte
}

// Add records a field. The caller has appended the field's value to l.Buffer. buffer is the result.
func (l *FieldList) Add(name string, buffer []byte) {
	l.Fields = append(l.Fields, Field{Name: name, JSON: buffer[len(l.Buffer):len(buffer):len(buffer)]})
	l.Buffer = buffer
}

// AppendText is [AppendString] for types that are strings underneath.
func AppendText[T ~string](dst []byte, s T) []byte { return AppendString(dst, string(s)) }

// AppendInteger appends n in decimal digits.
func AppendInteger(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }

// AppendBoolean appends true or false.
func AppendBoolean(dst []byte, b bool) []byte { return strconv.AppendBool(dst, b) }

// AppendArray appends a JSON array. element appends one value.
func AppendArray[T any](dst []byte, vs []T, element func([]byte, *T) []byte) []byte {
	dst = append(dst, '[')
	for i := range vs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = element(dst, &vs[i])
	}
	return append(dst, ']')
}

// EndObject replaces the comma behind the last member with the closing brace.
func EndObject(dst []byte) []byte {
	if bytes.HasSuffix(dst, []byte(",")) {
		dst[len(dst)-1] = '}'
		return dst
	}
	return append(dst, '}')
}

// Pointer returns a pointer to v, for optional fields.
func Pointer[T any](v T) *T { return &v }
