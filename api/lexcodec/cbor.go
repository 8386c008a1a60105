package lexcodec

import "encoding/binary"

// This file writes the DAG-CBOR (https://ipld.io/specs/codecs/dag-cbor/spec/)
// that frames of event streams need: definite lengths, and every number in its
// shortest form.

// The major types (RFC 8949, section 3.1).
const (
	cborUnsigned = 0 << 5
	cborNegative = 1 << 5
	cborBytes    = 2 << 5
	cborText     = 3 << 5
	cborArray    = 4 << 5
	cborMap      = 5 << 5
	cborFalse    = 7<<5 | 20
	cborTrue     = 7<<5 | 21
)

// appendCBORHead appends a major type with its argument.
func appendCBORHead(dst []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(dst, major|byte(n))
	case n < 1<<8:
		return append(dst, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, major|27), n)
}

// AppendCBORMap appends the head of a map with that many fields.
func AppendCBORMap(dst []byte, fields int) []byte {
	return appendCBORHead(dst, cborMap, uint64(fields))
}

// AppendCBORArray appends an array. element appends one value.
func AppendCBORArray[T any](dst []byte, vs []T, element func([]byte, *T) []byte) []byte {
	dst = appendCBORHead(dst, cborArray, uint64(len(vs)))
	for i := range vs {
		dst = element(dst, &vs[i])
	}
	return dst
}

// AppendCBORText appends a text string.
func AppendCBORText[T ~string](dst []byte, s T) []byte {
	return append(appendCBORHead(dst, cborText, uint64(len(s))), s...)
}

// AppendCBORInteger appends an integer.
func AppendCBORInteger(dst []byte, n int64) []byte {
	if n < 0 {
		return appendCBORHead(dst, cborNegative, uint64(^n))
	}
	return appendCBORHead(dst, cborUnsigned, uint64(n))
}

// AppendCBORBoolean appends false or true.
func AppendCBORBoolean(dst []byte, b bool) []byte {
	if b {
		return append(dst, cborTrue)
	}
	return append(dst, cborFalse)
}

// AppendCBOR appends the CBOR form to dst.
func (b Bytes) AppendCBOR(dst []byte) []byte {
	return append(appendCBORHead(dst, cborBytes, uint64(len(b))), b...)
}

// AppendCBOR appends the CBOR form to dst.
func (d Datetime) AppendCBOR(dst []byte) []byte {
	dst = appendCBORHead(dst, cborText, uint64(len(datetimeLayout)))
	return d.UTC().AppendFormat(dst, datetimeLayout)
}

// Message is an event of a subscription. Its type is a member of the union in the lexicon.
type Message interface {
	// FrameType is the type in the frame's header: "#" and the definition's name.
	FrameType() string
	// AppendCBOR appends the frame's body.
	AppendCBOR(dst []byte) []byte
}

// AppendFrame appends the frame (https://atproto.com/specs/event-stream) of a message: header and
// body.
func AppendFrame(dst []byte, m Message) []byte {
	dst = AppendCBORMap(dst, 2)
	dst = AppendCBORText(dst, "t")
	dst = AppendCBORText(dst, m.FrameType())
	dst = AppendCBORText(dst, "op")
	dst = AppendCBORInteger(dst, 1)
	return m.AppendCBOR(dst)
}

// AppendErrorFrame appends the frame that says why a stream ends.
func AppendErrorFrame(dst []byte, name, message string) []byte {
	dst = AppendCBORMap(dst, 1)
	dst = AppendCBORText(dst, "op")
	dst = AppendCBORInteger(dst, -1)
	dst = AppendCBORMap(dst, 2)
	dst = AppendCBORText(dst, "error")
	dst = AppendCBORText(dst, name)
	dst = AppendCBORText(dst, "message")
	return AppendCBORText(dst, message)
}

// ServerSentEvent is an event of a query whose output is an event stream. Its type is a member of
// the union in the lexicon.
type ServerSentEvent interface {
	Appender
	// EventName is the definition's name.
	EventName() string
}

// AppendServerSentEvent appends an event
// (https://html.spec.whatwg.org/multipage/server-sent-events.html). If id is "",
// the client keeps its last event id.
func AppendServerSentEvent(dst []byte, id string, e ServerSentEvent) []byte {
	dst = append(append(append(dst, "event: "...), e.EventName()...), '\n')
	if id != "" {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	dst = e.AppendJSON(append(dst, "data: "...)) // canonical JSON has no line breaks
	return append(dst, "\n\n"...)
}
