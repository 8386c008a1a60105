package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
	"mlsd/events"
)

// What a client is told whose cursor is older than what is kept.
const (
	outdatedCursor  = "OutdatedCursor"
	outdatedMessage = "the cursor is older than what is kept: the stream begins with the oldest event that is"
)

// StreamConvoEvents: blue.catbird.mls.streamConvoEvents. It holds no device's pushes back: there is no pong to say that it lives.
func (h *handlers) StreamConvoEvents(c *call, p *mlsapi.StreamConvoEventsParams) error {
	last, err := lastEvent(c.http.Request().Header, p.Cursor)
	if err != nil {
		return err
	}
	var convos []string
	if p.ConvoID != nil {
		convos = []string{*p.ConvoID}
	}
	sub, outdated, err := h.streams.subscription(c.ctx, request(c.caller, nil, following(last), convos))
	if err != nil {
		return err
	}
	defer sub.Close()
	return h.streams.answer(c, sub, last, outdated)
}

const headerLastEventID = "Last-Event-ID"

// lastEvent is the event that the client has seen last, or nil. The header is a browser's own, and newer than the parameter in the
// URL that it connects to again.
func lastEvent(h http.Header, param *string) (*int64, error) {
	name, text := headerLastEventID, h.Get(headerLastEventID)
	if text == "" {
		if param == nil {
			return nil, nil
		}
		name, text = "cursor", *param
	}
	last, err := strconv.ParseUint(text, 10, 53)
	if err != nil {
		return nil, badRequest(name + " must be the id of an event")
	}
	seen := int64(last)
	return &seen, nil
}

// following is the first event that a client wants that has seen last; 0 is all that is kept.
func following(last *int64) *int64 {
	if last == nil || *last == 0 {
		return last
	}
	next := *last + 1
	return &next
}

// eventStream is an answer that goes on for as long as the client reads it.
type eventStream struct {
	streams *streams
	w       http.ResponseWriter
	control *http.ResponseController
	sub     subscription
	cancel  context.CancelCauseFunc
	last    int64 // event that was sent

	mu sync.Mutex // held while something is being written
}

// answer tells the events of sub until one of the two has enough.
func (s *streams) answer(c *call, sub subscription, last *int64, outdated bool) error {
	s.enter()
	defer s.leave()
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	w := c.http.Response()
	// Not of w itself, whose Flush does not tell of errors.
	e := &eventStream{streams: s, w: w, control: http.NewResponseController(w.Writer), sub: sub, cancel: cancel}
	if last != nil {
		e.last = *last
	}
	// net/http goes on reading, to see the client hang up: the request's deadline must not end that.
	if err := readUntil(c.http, time.Time{}); err != nil {
		return err
	}
	w.Header().Set(echo.HeaderContentType, "text/event-stream")
	w.Header().Set(echo.HeaderCacheControl, "no-cache")
	w.Header().Set("X-Accel-Buffering", "no") // nginx keeps what it passes on until it has a buffer full
	w.WriteHeader(http.StatusOK)
	c.http.Set(answeredAt, time.Now())

	defer s.metrics.streamBegins(kindServerSent)()
	defer e.stop()
	defer s.keepAlives.add(e.keepAlive)()
	defer s.opened(e)()
	err := e.send(ctx, outdated)
	s.metrics.streamEnded(kindServerSent, reasonOf(err))
	e.end(err)
	return nil
}

// send writes events until it cannot, and returns why.
func (e *eventStream) send(ctx context.Context, outdated bool) error {
	var begin []byte // with nothing to say, the headers go out alone
	if outdated {
		begin = e.info(outdatedCursor, outdatedMessage)
	}
	if err := e.write(begin); err != nil {
		return err
	}
	for {
		event, err := e.sub.Next(ctx)
		if cause := context.Cause(ctx); cause != nil {
			if errors.Is(cause, context.Canceled) {
				return errGone
			}
			return cause // a comment could not be written
		}
		if err != nil {
			return err
		}
		wire := event.Encoded(events.ServerSent, serverSent)
		if len(wire) == 0 {
			continue
		}
		err = e.write(wire)
		if errors.Is(err, events.ErrConsumerTooSlow) {
			e.sub.Slow()
		}
		if err != nil {
			return err
		}
		e.last = event.StreamSeq
		e.streams.metrics.streamSent(kindServerSent, len(wire))
	}
}

// info is a word on the stream itself. It has no id: the client's last event remains what it is.
func (e *eventStream) info(name, message string) []byte {
	return mlsapi.AppendServerSentEvent(nil, "", &mlsapi.StreamConvoEventsInfoEvent{Cursor: cursorText(e.last), Info: name + ": " + message})
}

// write is socket.write for an event stream, with the same errors.
func (e *eventStream) write(wire []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flush(wire)
}

func (e *eventStream) flush(wire []byte) error {
	allowed, begun := e.streams.pace.allows(len(wire)), time.Now()
	deadline := e.streams.deadline(begun.Add(2 * allowed))
	if err := e.control.SetWriteDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errGone
	}
	_, err := e.w.Write(wire)
	if err == nil {
		err = e.control.Flush()
	}
	switch took := time.Since(begun); {
	case err != nil && took >= 2*allowed:
		return errStuck
	case err != nil:
		return errGone
	case took > allowed:
		return events.ErrConsumerTooSlow
	}
	return nil
}

// keepAlive keeps proxies from taking the stream for dead, and notices a client that is. What is being written does as well.
func (e *eventStream) keepAlive() {
	if !e.mu.TryLock() {
		return
	}
	defer e.mu.Unlock()
	if e.w == nil {
		return
	}
	if err := e.flush([]byte(": keep-alive\n\n")); err != nil {
		e.cancel(err)
	}
}

// hurry implements sender.
func (e *eventStream) hurry(deadline time.Time) {
	if err := e.control.SetWriteDeadline(deadline); err != nil {
		e.streams.log.Debug("a connection takes no deadline", "error", err)
	}
}

// stop gives the writer back: the handler returns.
func (e *eventStream) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.w = nil
}

// end says why the stream ends, if there is still somebody to say it to.
func (e *eventStream) end(why error) {
	var words []byte
	switch f, refused := refusal(why); {
	case errors.Is(why, errGone), errors.Is(why, errStuck):
		return
	case refused:
		words = e.info(f.name, f.message)
	case errors.Is(why, events.ErrClosing):
		after := e.streams.pace.comeBack()
		words = append(fmt.Appendf(nil, "retry: %d\n", after), e.info("Restarting", fmt.Sprintf("reconnect after %d ms", after))...)
	default:
		words = e.info(e.streams.failed(why), "the stream cannot go on now; reconnect")
	}
	if err := e.write(words); err != nil {
		e.streams.log.Debug("the end of a stream was not told", "error", err)
	}
}
