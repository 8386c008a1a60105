package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/tracing"
)

// The answer to a cursor behind which events are missing.
const (
	outdatedCursor  = "OutdatedCursor"
	outdatedMessage = "events after the cursor are missing: read the convos again"
)

// StreamConvoEvents: blue.catbird.mls.streamConvoEvents. It does not suppress pushes to the device:
// without pongs the server does not know whether the client is alive.
func (h *handlers) StreamConvoEvents(c *call, p *mlsapi.StreamConvoEventsParams) error {
	last, seen, err := lastEvent(c.http.Request().Header, p.Cursor)
	if err != nil {
		return err
	}
	if err := h.opens(c); err != nil {
		return err
	}
	var convos []string
	if p.ConvoID != nil {
		convos = []string{*p.ConvoID}
	}
	r, err := request(c.caller, nil, seen, convos)
	if err != nil {
		return err
	}
	sub, outdated, err := h.streams.subscription(c.ctx, r)
	if err != nil {
		return err
	}
	defer sub.Close()
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	defer h.watchSession(c, cancel)()
	return h.streams.answer(ctx, c.http, sub, last, outdated)
}

const headerLastEventID = "Last-Event-ID"

// lastEvent is the cursor of the last event that the client has seen, or "". A browser that
// reconnects sends the header; it is newer than the parameter in the URL.
func lastEvent(h http.Header, param *string) (text string, seen *events.Cursor, err error) {
	if text = h.Get(headerLastEventID); text != "" {
		seen, err = cursorOf(headerLastEventID, text)
	} else if param != nil {
		text = *param
		seen, err = cursorOf("cursor", text)
	}
	return text, seen, err
}

// eventStream is an answer of server-sent events. It lasts as long as the client reads it.
type eventStream struct {
	streams *streams
	w       http.ResponseWriter
	control *http.ResponseController
	sub     subscription
	cancel  context.CancelCauseFunc
	last    string // the cursor of the last event that was sent; before that, of where the stream began

	mu sync.Mutex // locked during a write
}

// answer sends the events of sub until the client or the server ends the stream.
func (s *streams) answer(ctx context.Context, c *httpRequest, sub subscription, last string, outdated bool) error {
	s.begun()
	defer s.ended()
	ctx, cancel := context.WithCancelCause(tracing.Detached(ctx))
	defer cancel(nil)
	w := c.Response()
	// The controller is that of w.Writer, because w.Flush returns no error.
	e := &eventStream{
		streams: s, w: w, control: http.NewResponseController(w.Writer), sub: sub, cancel: cancel,
		last: cmp.Or(last, strconv.FormatInt(sub.Began(), 10)),
	}
	// net/http reads on, to notice that the client hangs up. The deadline of the request must not
	// end that.
	if err := e.control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("remove the request's deadline: %w", err)
	}
	w.Header().Set(echo.HeaderContentType, "text/event-stream")
	w.Header().Set(echo.HeaderCacheControl, "no-cache")
	w.Header().Set("X-Accel-Buffering", "no") // otherwise nginx sends only full buffers
	w.WriteHeader(http.StatusOK)
	c.streamed = time.Now()

	defer s.metrics.streamBegins(kindServerSent)()
	defer e.stop()
	defer s.keepAlives.add(e.keepAlive)()
	defer s.opened(e)()
	err := e.send(ctx, outdated)
	s.metrics.streamEnded(kindServerSent, reasonOf(err))
	e.end(err)
	return nil
}

// send writes events until it cannot, and returns why. Events that wait are written together.
func (e *eventStream) send(ctx context.Context, outdated bool) error {
	var begin []byte // empty: only the headers are sent
	if outdated {
		begin = e.info(outdatedCursor, outdatedMessage)
	}
	if err := e.write(begin); err != nil {
		return err
	}
	var wires [][]byte // that are written together
	var n int          // bytes
	for {
		event, err := e.sub.Next(ctx)
		if cause := context.Cause(ctx); cause != nil {
			if errors.Is(cause, context.Canceled) {
				return errGone
			}
			return cause // a keep-alive could not be written
		}
		if err != nil {
			return err
		}
		wires, n = wires[:0], 0
		for ; event != nil; event = another(e.sub, n) {
			if wire := e.encode(event, e.sub.Request(ctx)); len(wire) > 0 {
				wires, n = append(wires, wire), n+len(wire)
			}
			if event.Signal == nil {
				e.last = cursorText(event)
			}
		}
		if n == 0 {
			continue
		}
		err = e.write(wires...)
		clear(wires)
		if errors.Is(err, events.ErrConsumerTooSlow) {
			e.sub.Slow()
		}
		if err != nil {
			return err
		}
		e.streams.metrics.serverSent.sent(len(wires), n)
	}
}

func (e *eventStream) encode(event *events.Event, request bool) []byte {
	if event.Signal != nil {
		return serverSentSignal(event, request, e.last)
	}
	return serverSentOf(event, request, e.streams.heads)
}

// info encodes a message about the stream itself. It has no id, so the client keeps its last event
// id.
func (e *eventStream) info(name, message string) []byte {
	return lexcodec.AppendServerSentEvent(nil, "",
		&mlsapi.StreamConvoEventsInfoEvent{Cursor: e.last, Info: name + ": " + message})
}

// write is socket.write for an event stream, with the same errors.
func (e *eventStream) write(wires ...[]byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flush(wires...)
}

func (e *eventStream) flush(wires ...[]byte) error {
	n := 0
	for _, wire := range wires {
		n += len(wire)
	}
	allowed, begun := e.streams.pace.allows(n), time.Now()
	deadline := e.streams.deadline(begun.Add(2 * allowed))
	if err := e.control.SetWriteDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errGone
	}
	var err error
	for _, wire := range wires {
		if _, err = e.w.Write(wire); err != nil {
			break
		}
	}
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

// keepAlive writes a comment, so that proxies do not close an idle stream, and to notice a client
// that has gone. During another write it does nothing.
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

// stop ends the use of the writer, before the handler returns.
func (e *eventStream) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.w = nil
}

// end tells the client why the stream ends, if it still reads.
func (e *eventStream) end(why error) {
	var last []byte
	switch f, refused := refusal(why); {
	case errors.Is(why, errGone), errors.Is(why, errStuck):
		return
	case refused:
		last = e.info(f.name, f.message)
	case errors.Is(why, events.ErrReplaced):
		last = e.info("Replaced", events.ErrReplaced.Error())
	case errors.Is(why, events.ErrClosing):
		after := e.streams.pace.reconnect()
		last = append(fmt.Appendf(nil, "retry: %d\n", after),
			e.info("Restarting", fmt.Sprintf("reconnect after %d ms", after))...)
	default:
		last = e.info(e.streams.failed(why), "the stream cannot go on now; reconnect")
	}
	if err := e.write(last); err != nil {
		e.streams.log.Debug("the reason for a stream's end was not sent", "error", err)
	}
}
