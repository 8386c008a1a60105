package bench

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/bench/report"
)

// deed is what a worker does at a time.
type deed int

const (
	deedSend deed = iota
	deedPage
	deedCursor
	deeds
)

func (d deed) String() string {
	return [deeds]string{deedSend: "sendMessage", deedPage: "getMessages", deedCursor: "updateCursor"}[d]
}

// mixture is what workers do by turns where they do not only send.
var mixture = [10]deed{deedSend, deedPage, deedSend, deedSend, deedPage, deedSend, deedCursor, deedSend, deedPage, deedSend}

// worker is one request at a time, on a connection of its own. What it has sent it remembers until everything is verified.
type worker struct {
	b     *bench
	addr  string
	wire  *wire
	twin  *wire // for a request that is sent twice at once
	rng   *rand.Rand
	bytes []byte // of the request
	turn  int

	// Of the present stretch.
	faults  bool
	keeps   bool // its messages are stored, so that there is something to verify
	mixed   bool
	lots    []lot
	at      int
	counted [deeds]*report.Operation

	last  receipt // the newest of them
	tells tells
}

// tells is what a worker has to tell in the end.
type tells struct {
	receipts                []receipt
	unknown                 []*draft
	violated                []string
	retried, dropped, twice int64
}

// lot is a draft with what its sender needs.
type lot struct {
	draft  *draft
	sends  *tokens
	marks  *tokens // for updateCursor; nil where nobody does that
	reader string  // a token for getMessages, which may be used again
}

func newWorker(b *bench, index int) *worker {
	addr := b.stage.addr(index)
	return &worker{
		b: b, addr: addr, wire: newWire(addr), twin: newWire(addr), rng: rand.New(rand.NewPCG(b.c.Seed, uint64(index))), turn: index,
	}
}

func (w *worker) close() {
	w.wire.close()
	w.twin.close()
}

// do does the next thing.
func (w *worker) do(ctx context.Context) (d deed, done bool) {
	if w.mixed {
		d = mixture[w.turn%len(mixture)]
		w.turn++
	}
	l := &w.lots[w.at]
	if d != deedSend && w.last.draft == nil {
		d = deedSend // there is nothing to read yet
	}
	switch d {
	case deedPage:
		return d, w.page(ctx, l)
	case deedCursor:
		return d, w.mark(ctx, l)
	}
	if w.at++; w.at == len(w.lots) {
		w.at = 0
	}
	return d, w.send(ctx, l)
}

// patience is how long a request is tried again, before its outcome stays unknown.
const patience = 30 * time.Second

// Of a thousand requests with faults: how many answers are dropped, and how many requests are sent twice at once.
const (
	dropped = 20
	doubled = 10
)

// send sends a message, by the retry rule: the same bytes under the same key with a fresh token, until there is an answer.
func (w *worker) send(ctx context.Context, l *lot) bool {
	var key [keySize]byte
	w.newKey(&key)
	var drop, twice bool
	if w.faults {
		fate := w.rng.IntN(1000)
		drop, twice = fate < dropped, fate >= dropped && fate < dropped+doubled
	}
	began, wait := time.Now(), 5*time.Millisecond
	for {
		if err := w.compose(l, &key); err != nil {
			w.violate("sendMessage: %v", err)
			return false
		}
		var a answer
		var err error
		switch {
		case drop:
			w.drop(ctx)
			drop = false
			w.tells.retried++
			continue
		case twice:
			a, err = w.sendTwice(ctx, l, &key)
			twice = false
		default:
			a, err = w.wire.do(ctx, w.bytes)
		}
		if err == nil && a.status == http.StatusOK {
			return w.accept(l.draft, a)
		}
		if !w.again(deedSend, a, err) {
			return false
		}
		if ctx.Err() != nil || time.Since(began) > patience {
			w.tells.unknown = append(w.tells.unknown, l.draft)
			return false
		}
		w.tells.retried++
		pause(ctx, wait)
		wait = min(2*wait, 200*time.Millisecond)
	}
}

// compose puts a request together, with a fresh token.
func (w *worker) compose(l *lot, key *[keySize]byte) error {
	token, err := l.sends.take()
	if err != nil {
		return err
	}
	w.head(http.MethodPost, mlsapi.NSIDSendMessage, "", token)
	w.length(l.draft.bodySize())
	w.bytes = append(w.bytes, l.draft.before...)
	w.bytes = append(w.bytes, key[:]...)
	w.bytes = append(w.bytes, l.draft.after...)
	return nil
}

func (w *worker) head(verb, method, query, token string) {
	b := append(w.bytes[:0], verb...)
	b = append(b, " /xrpc/"...)
	b = append(b, method...)
	b = append(b, query...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, w.addr...)
	b = append(b, "\r\nAuthorization: Bearer "...)
	b = append(b, token...)
	w.bytes = append(b, "\r\n"...)
}

func (w *worker) length(n int) {
	w.bytes = append(w.bytes, "Content-Type: application/json\r\nContent-Length: "...)
	w.bytes = strconv.AppendInt(w.bytes, int64(n), 10)
	w.bytes = append(w.bytes, "\r\n\r\n"...)
}

// drop sends the request and does not wait for its answer, or not until the whole of it has come.
func (w *worker) drop(ctx context.Context) {
	w.tells.dropped++
	if err := w.wire.send(ctx, w.bytes); err == nil && w.rng.IntN(2) == 0 {
		_, _ = w.wire.in.Peek(1) // the answer is there, so the message is stored
	}
	w.wire.close()
}

// sendTwice sends the request and another one with its key at the same time. Whoever answers both must say the same.
func (w *worker) sendTwice(ctx context.Context, l *lot, key *[keySize]byte) (answer, error) {
	w.tells.twice++
	request := bytes.Clone(w.bytes)
	if err := w.compose(l, key); err != nil {
		return answer{}, err
	}
	other := make(chan error, 1)
	var second answer
	go func() {
		var err error
		second, err = w.twin.do(ctx, request)
		other <- err
	}()
	first, err := w.wire.do(ctx, w.bytes)
	otherErr := <-other
	switch ok := otherErr == nil && second.status == http.StatusOK; {
	case err != nil || first.status != http.StatusOK:
		if ok {
			return second, nil
		}
	case ok && !bytes.Equal(first.body, second.body):
		w.violate("sendMessage: sent twice at once, answered %s and %s", first.body, second.body)
	case ok && first.replayed == second.replayed:
		w.violate("sendMessage: sent twice at once, and replayed: %t, both times", first.replayed)
	}
	return first, err
}

// accept keeps what the server has acknowledged.
func (w *worker) accept(d *draft, a answer) bool {
	out, err := mlsapi.DecodeSendMessageOutput(a.body)
	if err != nil || out.Seq == nil {
		w.violate("sendMessage: the answer is %.200q: %v", a.body, err)
		return false
	}
	id, err := uuid.Parse(out.MessageID)
	if err != nil {
		w.violate("sendMessage: messageId %q: %v", out.MessageID, err)
		return false
	}
	w.last = receipt{id: id, draft: d, seq: *out.Seq}
	if w.keeps {
		w.tells.receipts = append(w.tells.receipts, w.last)
		if w.b.acknowledged.Add(1) == w.b.c.Messages {
			close(w.b.enough)
		}
	}
	return true
}

// again counts a failure, and says whether to ask again.
func (w *worker) again(d deed, a answer, err error) bool {
	if err != nil {
		if errors.Is(err, errAnswer) {
			w.violate("%s: %v", d, err)
		}
		w.count(d).Failed["connection"]++
		return true
	}
	var named struct{ Error, Message string }
	if err := json.Unmarshal(a.body, &named); err != nil || named.Error == "" {
		w.violate("%s: %d %.200q is no XRPC error", d, a.status, a.body)
		named.Error = strconv.Itoa(a.status)
	}
	w.count(d).Failed[named.Error]++
	switch {
	case named.Error == mlsapi.ErrRequestInProgress, a.status == http.StatusTooManyRequests, a.status >= 500:
		return true
	}
	w.violate("%s: %d %s: %s", d, a.status, named.Error, named.Message)
	return false
}

// page reads the newest messages of the convo that this worker has last sent to.
func (w *worker) page(ctx context.Context, l *lot) bool {
	l = w.of(l)
	w.bytes = w.bytes[:0]
	query := "?limit=50&convoId=" + l.draft.convo.id + "&sinceSeq=" + strconv.FormatInt(max(w.last.seq-50, 0), 10)
	w.head(http.MethodGet, mlsapi.NSIDGetMessages, query, l.reader)
	w.bytes = append(w.bytes, "\r\n"...)
	return w.once(ctx, deedPage)
}

// mark says how far the sender of the last message has read.
func (w *worker) mark(ctx context.Context, l *lot) bool {
	l = w.of(l)
	token, err := l.marks.take()
	if err != nil {
		w.violate("%s: %v", deedCursor, err)
		return false
	}
	in := mlsapi.UpdateCursorInput{ConvoID: l.draft.convo.id, Seq: w.last.seq}
	body := in.AppendJSON(nil)
	w.head(http.MethodPost, mlsapi.NSIDUpdateCursor, "", token)
	w.length(len(body))
	w.bytes = append(w.bytes, body...)
	return w.once(ctx, deedCursor)
}

// of is the lot whose draft was sent last.
func (w *worker) of(l *lot) *lot {
	if before := w.at - 1; before >= 0 && w.lots[before].draft == w.last.draft {
		return &w.lots[before]
	}
	return &lot{draft: w.last.draft, marks: w.b.marks[w.last.draft.sender], reader: w.b.readers[w.last.draft.sender]}
}

// once sends a request that is not worth trying again.
func (w *worker) once(ctx context.Context, d deed) bool {
	a, err := w.wire.do(ctx, w.bytes)
	if err == nil && a.status == http.StatusOK {
		return true
	}
	w.again(d, a, err)
	return false
}

// count is where a deed is counted in the present stretch.
func (w *worker) count(d deed) *report.Operation {
	if w.counted[d] == nil {
		w.counted[d] = &report.Operation{Failed: map[string]int64{}, Latency: report.NewLatency()}
	}
	return w.counted[d]
}

func (w *worker) violate(format string, args ...any) {
	if len(w.tells.violated) < maxWords {
		w.tells.violated = append(w.tells.violated, fmt.Sprintf(format, args...))
	}
}

// newKey makes a UUIDv7 (RFC 9562 §5.7).
func (w *worker) newKey(text *[keySize]byte) {
	var u [16]byte
	ms := uint64(time.Now().UnixMilli())
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	for i, r := 6, w.rng.Uint64(); i < 14; i, r = i+1, r>>8 {
		u[i] = byte(r)
	}
	u[14], u[15] = byte(w.rng.Uint32()), byte(w.rng.Uint32())
	u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
	b := text[:0]
	for i, from := 0, 0; i < 5; i++ {
		to := [5]int{4, 6, 8, 10, 16}[i]
		if i > 0 {
			b = append(b, '-')
		}
		b, from = hex.AppendEncode(b, u[from:to]), to
	}
}

// pause waits, unless the benchmark is interrupted.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
