package mlsapi

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
)

// Appender is what every generated object and every scalar type of this package
// implements: it writes its canonical JSON without reflection.
type Appender interface {
	// AppendJSON appends the value's canonical JSON to dst: fields in the order of
	// their names, nothing optional that is absent, no white space, no HTML escapes.
	AppendJSON(dst []byte) []byte
}

// Marshal returns the canonical JSON of v: the same value is the same bytes on
// every node and in every release. Pass generated types by pointer; that spares
// reflection.
func Marshal(v any) ([]byte, error) {
	if a, ok := v.(Appender); ok {
		return a.AppendJSON(nil), nil
	}
	return json.Marshal(v, json.Deterministic(true))
}

// A Field is one top-level field of an input, for the request hash and for naming
// the fields that differ when an idempotency key is reused.
type Field struct {
	Name string
	// JSON is the canonical form of the decoded value, so that padded and unpadded
	// base64 of the same bytes are the same request.
	JSON []byte
}

// fieldList collects Fields, whose values share one buffer.
type fieldList struct {
	fields []Field
	buf    []byte
}

// add records the field whose value the caller appended to l.buf.
func (l *fieldList) add(name string, buf []byte) {
	l.fields = append(l.fields, Field{Name: name, JSON: buf[len(l.buf):len(buf):len(buf)]})
	l.buf = buf
}

func appendText[T ~string](dst []byte, s T) []byte { return appendString(dst, string(s)) }

func appendInteger(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }

func appendBoolean(dst []byte, b bool) []byte { return strconv.AppendBool(dst, b) }

func appendArray[T any](dst []byte, vs []T, element func([]byte, *T) []byte) []byte {
	dst = append(dst, '[')
	for i := range vs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = element(dst, &vs[i])
	}
	return append(dst, ']')
}

// endObject turns the comma behind the last member into the closing brace.
func endObject(dst []byte) []byte {
	if bytes.HasSuffix(dst, []byte(",")) {
		dst[len(dst)-1] = '}'
		return dst
	}
	return append(dst, '}')
}

func pointer[T any](v T) *T { return &v }
