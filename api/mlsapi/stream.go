package mlsapi

// Message is what a subscription sends: a member of its lexicon's union.
type Message interface {
	// FrameType is the name that the frame's header bears: "#" and the definition's.
	FrameType() string
	// AppendCBOR appends the frame's body.
	AppendCBOR(dst []byte) []byte
}

// AppendFrame appends the frame of a message
// (https://atproto.com/specs/event-stream): its header and its body.
func AppendFrame(dst []byte, m Message) []byte {
	dst = appendCBORMap(dst, 2)
	dst = appendCBORText(dst, "t")
	dst = appendCBORText(dst, m.FrameType())
	dst = appendCBORText(dst, "op")
	dst = appendCBORInteger(dst, 1)
	return m.AppendCBOR(dst)
}

// AppendErrorFrame appends the frame that tells why a stream ends.
func AppendErrorFrame(dst []byte, name, message string) []byte {
	dst = appendCBORMap(dst, 1)
	dst = appendCBORText(dst, "op")
	dst = appendCBORInteger(dst, -1)
	dst = appendCBORMap(dst, 2)
	dst = appendCBORText(dst, "error")
	dst = appendCBORText(dst, name)
	dst = appendCBORText(dst, "message")
	return appendCBORText(dst, message)
}

// ServerSentEvent is what a query answers with whose output is an event stream:
// a member of its lexicon's union.
type ServerSentEvent interface {
	Appender
	// EventName is the event's name: the definition's.
	EventName() string
}

// AppendServerSentEvent appends an event
// (https://html.spec.whatwg.org/multipage/server-sent-events.html). id may be "":
// then the client's last event id stays what it is.
func AppendServerSentEvent(dst []byte, id string, e ServerSentEvent) []byte {
	dst = append(append(append(dst, "event: "...), e.EventName()...), '\n')
	if id != "" {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	dst = e.AppendJSON(append(dst, "data: "...)) // canonical JSON has no line breaks
	return append(dst, "\n\n"...)
}
