package api

import (
	"bytes"
	"slices"
	"sync"

	"mlsd/api/lexcodec"
)

// maxAnswer bounds an answer that has further pages, in bytes. A PDS passes on more.
const maxAnswer = 8_000_000

// list is an answer with one array. Each element is encoded as soon as it is read from the
// database, and is not kept. The answer is sent once the array is complete, so an error halfway can
// still be answered as an error.
type list struct {
	call *call
	buf  *[]byte
	n    int   // elements
	err  error // there is no memory for the rest
}

// maxEnvelope is the space for the fields before the array, in bytes. They are written last,
// because the cursor is known last. A cursor that does not fit moves the array.
const maxEnvelope = 256

// list begins an answer. Its buffer belongs to the call until releaseAnswer.
func (c *call) list() *list {
	l := &list{call: c, buf: takeBuffer()}
	c.buffer = l.buf
	*l.buf = (*l.buf)[:maxEnvelope]
	return l
}

// add appends an element of about size bytes, and reports whether it did. It leaves the element out
// if the answer already has an element and would exceed maxAnswer. It also leaves the element out
// if there is no memory; then replyList returns the error.
func (l *list) add(element lexcodec.Appender, size int) bool {
	b := *l.buf
	whole := len(b)
	if cap(b)-whole < size { // append would grow it by a quarter at a time, and copy it each time
		more := max(size, min(cap(b), maxAnswer-whole))
		if l.err = l.call.hold(whole + more + size); l.err != nil { // the element is in memory already
			return false
		}
		b = slices.Grow(b, more)
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
	l.err = l.call.hold(cap(b)) // usually as much is reserved already
	return l.err == nil
}

// replyList sets the answer: the JSON of around, with the elements of l in its one array. In around
// that array is empty.
func (c *call) replyList(l *list, around lexcodec.Appender) error {
	if l.err != nil {
		return l.err
	}
	envelope := around.AppendJSON(make([]byte, 0, maxEnvelope))
	at := bytes.Index(envelope, []byte("[]")) + 1
	if more := at - maxEnvelope; more > 0 { // a long cursor, which is rare
		if err := c.hold(len(*l.buf) + more); err != nil {
			return err
		}
		*l.buf = slices.Insert(*l.buf, 0, make([]byte, more)...)
	}
	begin := max(0, maxEnvelope-at)
	copy((*l.buf)[begin:], envelope[:at])
	*l.buf = append(*l.buf, envelope[at:]...)
	c.answer = (*l.buf)[begin:]
	return nil
}

// hold extends the memory reservation of the answer to at least n bytes.
func (c *call) hold(n int) error {
	more := int64(n) - c.reserved.Bytes()
	if more <= 0 {
		return nil
	}
	return refused(c.reserved.GrowSoon(c.ctx, more))
}

// replyLarge is reply for an answer that may need a large buffer.
func (c *call) replyLarge(v lexcodec.Appender) error {
	c.buffer = takeBuffer()
	c.answer = v.AppendJSON(*c.buffer)
	*c.buffer = c.answer
	return nil
}

// holdObjects holds the memory for n bytes of MLS objects, which were read, and for their base64.
func (c *call) holdObjects(n int) error { return c.hold(n + encodedObjects(n)) }

// encodedObjects returns the size of an answer with n bytes of MLS objects, in bytes.
func encodedObjects(n int) int { return n + n/2 + answerSmall }

// replyObjects is reply for an answer with n bytes of MLS objects.
func (c *call) replyObjects(n int, v lexcodec.Appender) error {
	if err := c.holdObjects(n); err != nil {
		return err
	}
	c.answer = v.AppendJSON(make([]byte, 0, encodedObjects(n)))
	return nil
}

// Sizes of reused buffers, in bytes: of a new one, and of the largest that is kept. A page of 100
// messages of 1 KiB fits into one.
const (
	newBuffer  = 4 << 10
	keptBuffer = 256 << 10
)

// buffers are the unused buffers.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, newBuffer)
	return &b
}}

// releaseAnswer gives back the answer's buffer and its memory.
func (c *call) releaseAnswer() {
	c.giveBuffer()
	c.reserved.Release()
}

// giveBuffer gives back the answer's buffer, and keeps the memory reserved.
func (c *call) giveBuffer() {
	if c.buffer != nil {
		giveBuffer(c.buffer)
		c.buffer = nil
	}
}

func takeBuffer() *[]byte { return buffers.Get().(*[]byte) }

func giveBuffer(b *[]byte) {
	if cap(*b) <= keptBuffer {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}
