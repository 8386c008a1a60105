package api_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/fxamacker/cbor/v2"
)

// frame is what tests of generations read of a frame.
type frame struct {
	t        string
	Cursor   int64  `cbor:"cursor"`
	Position string `cbor:"position"`
	Name     string `cbor:"name"`
	Message  any    `cbor:"message"` // of an info event: a text
}

// seq is the seq of a message event.
func (f frame) seq() any {
	m, _ := f.Message.(map[any]any)
	return m["seq"]
}

func (k *socket) frame() (f frame) {
	k.t.Helper()
	var header struct {
		T string `cbor:"t"`
	}
	in := cbor.NewDecoder(bytes.NewReader(k.read()))
	if err := in.Decode(&header); err != nil {
		k.t.Fatal(err)
	}
	if err := in.Decode(&f); err != nil {
		k.t.Fatal(err)
	}
	f.t = header.T
	return f
}

// message reads on to the message with this seq.
func (k *socket) message(seq int64) frame {
	k.t.Helper()
	for {
		if f := k.frame(); f.t == "#messageEvent" && f.seq() == uint64(seq) {
			return f
		}
	}
}

// message reads on to the message with this seq.
func (r *reader) message(seq int64) sent {
	r.t.Helper()
	for {
		e := r.event()
		if e.event == "messageEvent" && object(r.t, e.data)["message"].(map[string]any)["seq"] == float64(seq) {
			return e
		}
	}
}

// E3: two events are lost, and five others get places. Streams of both kinds end. A client whose
// cursor names a lost event gets OutdatedCursor and the five; one that has none of the lost events
// gets the five. That is so for integers and positions.
func TestStreamsOfAnotherGeneration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	k, r := bob.dial("cursor", "0"), bob.stream(query("cursor", "0"))
	for n := range 3 {
		alice.send(c, fmt.Sprint(n))
	}
	common, commonSent := k.message(1), r.message(1)
	lost, lostSent := k.message(3), r.message(3)
	_, err := w.db.Exec(t.Context(), `
		WITH back AS (
			DELETE FROM events WHERE stream_seq > $1 RETURNING *
		), head AS (
			UPDATE stream SET head = $1
		)
		INSERT INTO outbox (kind, convo_id, seq, size, created_at) SELECT kind, convo_id, seq, size, created_at FROM back
			ORDER BY stream_seq`,
		common.Cursor)
	if err != nil {
		t.Fatal(err)
	}
	k.closes(websocket.StatusServiceRestart)
	if e := r.event(); !strings.Contains(e.data, "Restarting") {
		t.Fatalf("got %+v", e)
	}
	for n := range 3 {
		alice.send(c, fmt.Sprint("again ", n))
	}
	for i, params := range [][]string{
		{"cursor", fmt.Sprint(common.Cursor + 1)}, {"position", common.Position},
		{"cursor", "0", "position", common.Position},
		{"cursor", fmt.Sprint(lost.Cursor + 1)}, {"cursor", fmt.Sprint(lost.Cursor)}, {"position", lost.Position},
	} {
		k, outdated := bob.dial(params...), i >= 3
		f := k.frame()
		if f.t == "#infoEvent" {
			if f.Name != "OutdatedCursor" || !outdated {
				t.Errorf("%q begins with %+v", params, f)
			}
			f = k.frame()
		} else if outdated {
			t.Errorf("%q begins with %+v", params, f)
		}
		if f.seq() != uint64(2) || f.Cursor <= lost.Cursor {
			t.Errorf("%q: the first event is %+v", params, f)
		}
		k.message(6)
	}
	for _, cursor := range []string{commonSent.id, common.Position, lostSent.id, lost.Position} {
		r := bob.stream(nil, "Last-Event-ID", cursor)
		e := r.event()
		outdated := cursor == lostSent.id || cursor == lost.Position
		if got := strings.Contains(e.data, "OutdatedCursor"); got != outdated {
			t.Errorf("%s: it begins with %+v", cursor, e)
		}
		if outdated {
			e = r.event()
		}
		if object(t, e.data)["message"].(map[string]any)["seq"] != float64(2) {
			t.Errorf("%s: the first event is %+v", cursor, e)
		}
		r.message(6)
	}
}
