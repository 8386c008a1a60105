package api

import (
	"bytes"
	"slices"
	"sync"

	"mlsd/api/mlsapi"
)

// maxAnswer bounds an answer that can go on in another one, in bytes: less than a PDS passes on.
const maxAnswer = 8_000_000

// list is an answer around one array, which is written while its elements come: each goes from the database's answer into ours, and
// is held nowhere between. Nothing is sent before the array is complete, so an error on the way is an error and no half an answer.
type list struct {
	buf *[]byte
	n   int // elements
}

// maxEnvelope is the most that the fields in front of an array can need, in bytes. They are written last: a cursor is known at the end.
const maxEnvelope = 256

// list begins an answer. Its buffer is the room's, until that is released.
func (c *call) list() *list {
	l := &list{buf: takeBuffer()}
	c.room.buffer = l.buf
	*l.buf = (*l.buf)[:maxEnvelope]
	return l
}

// add appends an element, of about so many bytes. It reports false, and leaves the element out, if the answer would become larger than
// one may be and has another element already.
func (l *list) add(element mlsapi.Appender, size int) bool {
	b := *l.buf
	whole := len(b)
	if cap(b)-whole < size { // append alone would grow it by a quarter at a time, and copy it as often
		b = slices.Grow(b, max(size, min(cap(b), maxAnswer-whole)))
	}
	if l.n > 0 {
		b = append(b, ',')
	}
	b = element.AppendJSON(b)
	if l.n > 0 && len(b) > maxAnswer {
		*l.buf = b[:whole]
		return false
	}
	*l.buf = b
	l.n++
	return true
}

// replyList sets the answer: what around says, whose one array is empty, with the elements in that array.
func (c *call) replyList(l *list, around mlsapi.Appender) error {
	envelope := around.AppendJSON(make([]byte, 0, maxEnvelope))
	at := bytes.Index(envelope, []byte("[]")) + 1
	begin := maxEnvelope - at
	copy((*l.buf)[begin:], envelope[:at])
	*l.buf = append(*l.buf, envelope[at:]...)
	c.answer = (*l.buf)[begin:]
	return nil
}

// replyLarge is reply for an answer that may need a large buffer.
func (c *call) replyLarge(v mlsapi.Appender) error {
	c.room.buffer = takeBuffer()
	c.answer = v.AppendJSON(*c.room.buffer)
	*c.room.buffer = c.answer
	return nil
}

// Sizes of the buffers that are used again, in bytes. A page of 100 messages of 1 KiB fits into one.
const (
	newBuffer  = 4 << 10
	keptBuffer = 256 << 10
)

// buffers are those that no answer is in.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, newBuffer)
	return &b
}}

func takeBuffer() *[]byte { return buffers.Get().(*[]byte) }

func giveBuffer(b *[]byte) {
	if cap(*b) <= keptBuffer {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}
