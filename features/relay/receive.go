package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coder/websocket"

	"mlsd/internal/worker"
)

const (
	dialTimeout = 15 * time.Second
	// maxFrame is the longest frame that is read, in bytes. It is the longest that the protocol
	// allows. No part of a longer frame is kept in memory.
	maxFrame = 5 << 20
	// maxInvalid is how many consecutive unreadable frames end the connection.
	maxInvalid = 1000
	// pingEvery is how often the relay is pinged, and pongWithin how long it has to answer. Without
	// pings, a lost connection would look like a quiet PDS, which sends nothing for hours.
	pingEvery, pongWithin = 30 * time.Second, 20 * time.Second
	// lasting is how long a connection must last so that it does not count as a failure.
	lasting = time.Minute
)

// errGarbage ends a connection.
var errGarbage = errors.New("the relay sends nothing that can be read")

// receive sends the relay's messages to out, until ctx ends. It connects again after each failure,
// and continues after the last cursor that it has sent.
func (f *Follower) receive(ctx context.Context, cursor int64, out chan<- message) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		began := f.cfg.Now()
		last, err := f.connection(ctx, cursor, out)
		if cursor = last; ctx.Err() != nil {
			return
		}
		var refused *failure
		if errors.As(err, &refused) && refused.name == futureCursor {
			// The relay has lost events, or is another relay. Everything that it sends from now on
			// counts.
			f.gap(ctx, "the relay does not know the cursor", cursor)
			cursor = 0
			if !send(ctx, out, message{reset: true}) {
				return
			}
		}
		if f.cfg.Now().Sub(began) > lasting {
			attempt = 0
		}
		delay := f.cfg.Delay(attempt)
		f.cfg.Log.WarnContext(ctx, "the connection to the relay has ended", "error", err, "again_after", delay)
		worker.Pause(ctx, delay)
	}
}

// connection reads one connection until it ends, and returns the last cursor that it has sent to
// out.
func (f *Follower) connection(ctx context.Context, cursor int64, out chan<- message) (last int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialing, stop := context.WithTimeout(ctx, dialTimeout)
	ws, resp, err := websocket.Dial(dialing, f.cfg.Source.from(cursor), nil)
	stop()
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close() // body of a refusal, which is in memory
	}
	if err != nil {
		return cursor, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = ws.CloseNow() }() // the connection has failed, or ends with the node
	ws.SetReadLimit(-1)                  // longer frames are skipped, because the next connection would get them again
	f.cfg.Metrics.connected.Set(1)
	defer f.cfg.Metrics.connected.Set(0)
	f.cfg.Log.InfoContext(ctx, "connected to the relay", "relay", f.cfg.Source.String(), "cursor", cursor)
	go ping(ctx, cancel, ws)

	var buffer bytes.Buffer
	outdated := false // the relay has said so and it was logged; more such frames are not logged
	for invalid := 0; invalid < maxInvalid; {
		m, err := f.next(ctx, ws, &buffer)
		if err != nil {
			return cursor, err
		}
		f.cfg.Metrics.received(m.kind, f.cfg.Now())
		switch m.kind {
		case kindInvalid, kindOversized:
			invalid++
			continue
		case kindInfo:
			if m.info == outdatedCursor && !outdated {
				outdated = true
				f.gap(ctx, "the relay no longer has the events after the cursor", cursor)
			}
			continue
		}
		invalid = 0
		if !send(ctx, out, m) {
			return cursor, ctx.Err()
		}
		if m.cursor > 0 {
			cursor = m.cursor
		}
	}
	return cursor, errGarbage
}

// next reads one frame. A frame that cannot be read is a message of kindInvalid or kindOversized.
func (f *Follower) next(ctx context.Context, ws *websocket.Conn, buffer *bytes.Buffer) (message, error) {
	_, frame, err := ws.Reader(ctx)
	if err != nil {
		return message{}, err
	}
	buffer.Reset()
	n, err := buffer.ReadFrom(io.LimitReader(frame, maxFrame+1))
	if err != nil {
		return message{}, err
	}
	if n > maxFrame {
		if _, err := io.Copy(io.Discard, frame); err != nil {
			return message{}, err
		}
		return message{kind: kindOversized}, nil
	}
	m, err := f.decoder.decode(buffer.Bytes())
	if errors.As(err, new(*failure)) {
		return message{}, err
	}
	if err != nil {
		f.cfg.Log.DebugContext(ctx, "a frame of the relay cannot be read", "error", err)
		return message{kind: kindInvalid}, nil
	}
	return m, nil
}

// ping calls cancel, which ends the connection, if the relay does not answer pings.
func ping(ctx context.Context, cancel func(), ws *websocket.Conn) {
	for {
		if worker.Pause(ctx, pingEvery); ctx.Err() != nil {
			return
		}
		waiting, stop := context.WithTimeout(ctx, pongWithin)
		err := ws.Ping(waiting)
		stop()
		if err != nil {
			cancel()
			return
		}
	}
}

// send waits until out takes m. If the database is slow, the relay waits too, and may end the
// connection. send returns false if ctx has ended.
func send(ctx context.Context, out chan<- message, m message) bool {
	select {
	case out <- m:
		return true
	case <-ctx.Done():
		return false
	}
}
