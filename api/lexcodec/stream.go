package lexcodec

// Message is an event of a subscription: a member of its lexicon's union.
type Message interface {
	// FrameType is the type in the frame's header: "#" and the definition's name.
	FrameType() string
	// AppendCBOR appends the frame's body.
	AppendCBOR(dst []byte) []byte
}

// AppendFrame appends the frame of a message
// (https://atproto.com/specs/event-stream): its header and its body.
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

// ServerSentEvent is an event of a query whose output is an event stream: a
// member of its lexicon's union.
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
