package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// The operations that workers count.
const (
	opSend = "sendMessage"
	opPage = "getMessages"
)

// worker does one request at a time, on its own connection. It remembers the outcomes until
// everything is verified.
type worker struct {
	b      *bench
	addr   string
	wire   *wire
	second *wire // for a request that is sent twice at once
	rng    *rand.Rand

	outcome outcome
}

// outcome is what a worker remembers for the verification.
type outcome struct {
	receipts                []receipt
	unknown                 []*draft
	violated                []string
	retried, dropped, twice int64
}

func newWorker(b *bench, index int) *worker {
	w := &worker{b: b, rng: rand.New(rand.NewPCG(b.c.Seed, uint64(index))), wire: &wire{}, second: &wire{}}
	w.aim(b.env.addr(index))
	return w
}

// aim makes the next request go to a server on a new connection.
func (w *worker) aim(addr string) {
	w.close()
	w.addr, w.wire, w.second = addr, newWire(addr), newWire(addr)
}

func (w *worker) close() {
	w.wire.close()
	w.second.close()
}

// do makes the next request.
func (w *worker) do(ctx context.Context, r load.Request) {
	drafts := w.b.drafts
	if w.b.phase.drafts != nil {
		drafts = w.b.phase.drafts
	}
	d := drafts[w.b.next.Add(1)%int64(len(drafts))]
	operation, done := opSend, false
	if q := w.b.phase.ask; q != nil {
		operation, done = q.operation, w.ask(ctx, r, q, d)
	} else {
		done = w.send(ctx, r, d)
	}
	if done {
		r.Count.Done(operation, time.Since(r.Due))
	}
}

// retryFor is how long a request is retried before its outcome stays unknown.
const retryFor = 30 * time.Second

// Faults per thousand requests: dropped answers, and requests sent twice at once.
const (
	dropped = 20
	doubled = 10
)

// send sends a message by the retry rule: the same bytes and key with a new token, until there is
// an answer.
func (w *worker) send(ctx context.Context, r load.Request, d *draft) bool {
	key := xrpc.NewKey()
	var drop, twice bool
	if w.b.c.Faults {
		fate := w.rng.IntN(1000)
		drop, twice = fate < dropped, fate >= dropped && fate < dropped+doubled
	}
	began, wait := time.Now(), 5*time.Millisecond
	for {
		request, err := w.compose(d, key)
		if err != nil {
			w.violate("sendMessage: %v", err)
			return false
		}
		var a answer
		switch {
		case drop:
			w.drop(ctx, request)
			drop = false
			w.outcome.retried++
			continue
		case twice:
			a, err = w.sendTwice(ctx, d, key, request)
			twice = false
		default:
			a, err = w.wire.do(ctx, request)
		}
		if err == nil && a.status == http.StatusOK {
			return w.accept(d, a)
		}
		if !w.again(r, opSend, a, err) {
			return false
		}
		if ctx.Err() != nil || time.Since(began) > retryFor {
			w.outcome.unknown = append(w.outcome.unknown, d)
			return false
		}
		w.outcome.retried++
		xrpc.Sleep(ctx, wait)
		wait = min(2*wait, 200*time.Millisecond)
	}
}

// compose makes a request with a new token.
func (w *worker) compose(d *draft, key string) ([]byte, error) {
	token, err := d.sender.token(w.b.phase.auth)
	body := slices.Concat(d.before, []byte(key), d.after)
	return post(w.addr, mlsapi.NSIDSendMessage, body, token), err
}

// drop sends the request and closes the connection. In half of the cases, it waits for the answer
// before it closes.
func (w *worker) drop(ctx context.Context, request []byte) {
	w.outcome.dropped++
	if err := w.wire.send(ctx, request); err == nil && w.rng.IntN(2) == 0 {
		_, _ = w.wire.in.Peek(1) // the answer has come, so the message is stored
	}
	w.wire.close()
}

// sendTwice sends the request and a second request with the same key at the same time. Both answers
// must be the same.
func (w *worker) sendTwice(ctx context.Context, d *draft, key string, request []byte) (_ answer, err error) {
	defer Catch(&err)
	w.outcome.twice++
	again := Must(w.compose(d, key))
	other := make(chan error, 1)
	var second answer
	go func() {
		var err error
		second, err = w.second.do(ctx, request)
		other <- err
	}()
	first, err := w.wire.do(ctx, again)
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

// accept records an acknowledged message.
func (w *worker) accept(d *draft, a answer) bool {
	out, err := xrpc.Decode[mlsapi.SendMessageOutput](a.body)
	if err != nil || out.Seq == nil {
		w.violate("sendMessage: the answer is %.200q: %v", a.body, err)
		return false
	}
	id, err := uuid.Parse(out.MessageID)
	if err != nil {
		w.violate("sendMessage: messageId %q: %v", out.MessageID, err)
		return false
	}
	w.outcome.receipts = append(w.outcome.receipts, receipt{id: id, draft: d, seq: *out.Seq})
	if w.b.acknowledged.Add(1) == w.b.phase.messages {
		close(w.b.enough)
	}
	return true
}

// again counts a failure, and reports whether to retry.
func (w *worker) again(r load.Request, operation string, a answer, err error) bool {
	if err != nil {
		if errors.Is(err, errAnswer) {
			w.violate("%s: %v", operation, err)
		}
		r.Count.Fail(operation, "connection", err.Error())
		return true
	}
	var named struct{ Error, Message string }
	if err := json.Unmarshal(a.body, &named); err != nil || named.Error == "" {
		w.violate("%s: %d %.200q is no XRPC error", operation, a.status, a.body)
		named.Error = strconv.Itoa(a.status)
	}
	r.Count.Fail(operation, named.Error, named.Message)
	switch {
	case named.Error == mlsapi.ErrRequestInProgress, a.status == http.StatusTooManyRequests, a.status >= 500:
		return true
	}
	w.violate("%s: %d %s: %s", operation, a.status, named.Error, named.Message)
	return false
}

// reading is a request that only reads.
type reading struct {
	operation string
	request   func(addr string, d *draft) []byte
}

// firstPage reads the first messages of a convo.
var firstPage = reading{opPage, func(addr string, d *draft) []byte {
	return get(addr, mlsapi.NSIDGetMessages, "limit=50&convoId="+d.convo.id, d.sender.reader)
}}

// ask asks a question about a convo, or about its sender.
func (w *worker) ask(ctx context.Context, r load.Request, q *reading, d *draft) bool {
	a, err := w.wire.do(ctx, q.request(w.addr, d))
	if err == nil && a.status == http.StatusOK {
		return true
	}
	w.again(r, q.operation, a, err)
	return false
}

func (w *worker) violate(format string, args ...any) {
	if len(w.outcome.violated) < maxViolations {
		w.outcome.violated = append(w.outcome.violated, fmt.Sprintf(format, args...))
	}
}
