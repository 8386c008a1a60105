package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/await"
	"mlsd/outbox"
)

var streamAt = time.Date(2026, 11, 20, 10, 20, 30, 400e6, time.UTC)

// welcomeEvent is an event that needs no log entry.
func welcomeEvent(seq int64) *events.Event {
	return &events.Event{
		StreamSeq: seq, Kind: outbox.Welcome, ConvoID: uuid.Max, At: streamAt,
		Detail: outbox.Detail{Epoch: 2, DeviceID: "phone", KeyPackageRef: "00ff"},
	}
}

func welcomeBody(seq int64) map[string]any {
	return map[string]any{
		"cursor": seq, "position": fmt.Sprintf("0.0:%d", seq), "convoId": uuid.Max.String(), "deviceId": "phone",
		"keyPackageRef": "00ff",
		"epoch":         int64(2), "createdAt": "2026-11-20T10:20:30.400Z",
	}
}

func welcomeHeader() map[string]any { return map[string]any{"op": int64(1), "t": "#welcomeEvent"} }

// large is an event of about n bytes in either form.
func large(seq int64, n int) *events.Event {
	e := welcomeEvent(seq)
	e.Detail.DeviceID = strings.Repeat("x", n)
	return e
}

// Events without a log entry are sent byte for byte, with and without their optional fields.
func TestFramesOfEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	k := alice.dial()
	s := h.next(t)
	s.events <- welcomeEvent(7)
	k.wants(welcomeHeader(), welcomeBody(7))
	at := "2026-11-20T10:20:30.400Z"
	s.events <- &events.Event{
		StreamSeq: 1 << 40, Kind: outbox.Membership, ConvoID: uuid.Max, Seq: 9, DID: alice.did(), At: streamAt,
		Detail: outbox.Detail{Change: outbox.Left, By: alice.did(), Epoch: 3, CommitNeeded: true},
	}
	k.wants(map[string]any{"op": int64(1), "t": "#membershipEvent"}, map[string]any{
		"cursor": int64(1 << 40), "position": "0.0:1099511627776", "convoId": uuid.Max.String(), "did": alice.did().String(),
		"change": "left", "by": alice.did().String(), "epoch": int64(3),
		"seq": int64(9), "commitNeeded": true, "createdAt": at,
	})
	s.events <- &events.Event{
		StreamSeq: 8, Kind: outbox.Membership, ConvoID: uuid.Max, Seq: 1, DID: alice.did(), At: streamAt,
		Detail: outbox.Detail{Change: outbox.Joined},
	}
	k.wants(map[string]any{"op": int64(1), "t": "#membershipEvent"}, map[string]any{
		"cursor": int64(8), "position": "0.0:8", "convoId": uuid.Max.String(), "did": alice.did().String(),
		"change": "joined", "epoch": int64(0), "seq": int64(1), "createdAt": at,
	})
	s.events <- &events.Event{
		StreamSeq: 8, Kind: outbox.Dispute, ConvoID: uuid.Max, Seq: 1, At: streamAt,
		Detail: outbox.Detail{Change: outbox.Disputed, Epoch: 3, By: alice.did()},
	}
	k.wants(map[string]any{"op": int64(1), "t": "#disputeEvent"}, map[string]any{
		"cursor": int64(8), "position": "0.0:8", "convoId": uuid.Max.String(), "change": "disputed", "epoch": int64(3),
		"seq":       int64(1),
		"committer": alice.did().String(), "createdAt": at,
	})
	s.events <- &events.Event{StreamSeq: 9, Kind: 99, At: streamAt} // of a newer node: skipped
	s.events <- &events.Event{
		StreamSeq: 10, Kind: outbox.KeyPackages, DID: alice.did(), At: streamAt,
		Detail: outbox.Detail{Change: "low", DeviceID: "phone", CipherSuite: 1},
	}
	k.wants(map[string]any{"op": int64(1), "t": "#keyPackagesEvent"}, map[string]any{
		"cursor": int64(10), "position": "0.0:10", "deviceId": "phone",
		"cipherSuite": "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", "change": "low", "available": int64(0),
		"createdAt": at,
	})
	if err := k.ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	s.ended(t)
	w.counts(5, "mlsd_subscription_events_total", "kind", "websocket")
	w.counts(0, "mlsd_subscriptions", "kind", "websocket")
	w.counts(1, "mlsd_subscriptions_ended_total", "kind", "websocket", "reason", "client")
	w.counts(1, "mlsd_requests_total", "nsid", mlsapi.NSIDSubscribeConvoEvents, "status", "101", "error", "")
}

// counts waits until a metric has this value. labels are pairs of name and value.
func (w *world) counts(want float64, name string, labels ...string) {
	w.t.Helper()
	got := math.NaN()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if got = w.metric(name, labels...); got == want {
			return
		}
	}
	w.t.Errorf("%s%v is %g, want %g", name, labels, got, want)
}

// metric is the value of a metric of the node that was booted last.
func (w *world) metric(name string, labels ...string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	got := math.NaN()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			matches := f.GetName() == name
			for _, l := range m.GetLabel() {
				i := slices.Index(labels, l.GetName())
				matches = matches && i >= 0 && labels[i+1] == l.GetValue()
			}
			if matches {
				got = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return got
}

// The events of a convo come in order, in both forms, and agree with getMessages and getCommits.
func TestStreamOfAConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live)
	alice, bob := w.user(), w.user()
	k, r := bob.dial("cursor", "0"), bob.stream(query("cursor", "0"))
	c := alice.create(bob)
	alice.send(c, "hello")
	carol := w.user()
	alice.add(c, carol)
	log := bob.page(c, "messageType", "all").Messages
	commits := read[mlsapi.GetCommitsOutput](t,
		bob.get(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", "1").ok()).Commits
	seen := map[string]int{}
	for seen["membershipEvent"] < 2 || seen["messageEvent"] < 1 || seen["commitEvent"] < 1 || seen["welcomeEvent"] < 1 {
		e := r.event()
		frame := k.read()
		seen[e.event]++
		data := object(t, e.data)
		if data["cursor"] != e.id {
			t.Fatalf("the event %s has the id %s", e.data, e.id)
		}
		if !bytes.Contains(frame, []byte("#"+e.event)) {
			t.Fatalf("the frame %q is not the %s", frame, e.event)
		}
		switch e.event {
		case "messageEvent":
			if diff := cmp.Diff(object(t, string(log[0].AppendJSON(nil))), data["message"]); diff != "" {
				t.Errorf("message (-getMessages +event):\n%s", diff)
			}
			if !bytes.Contains(frame, log[0].Ciphertext) {
				t.Error("the frame lacks the ciphertext")
			}
		case "commitEvent":
			if data["epoch"] != float64(commits[0].Epoch) || data["sender"] != alice.did().String() ||
				data["commitData"].(map[string]any)["$bytes"] != base64.RawStdEncoding.EncodeToString(commits[0].CommitData) {
				t.Errorf("the commit %s is not %+v", e.data, commits[0])
			}
		}
	}
}

// The parameters decide what a subscription asks the hub for.
func TestSubscriptionRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	id := uuid.Must(uuid.NewV7())
	from := func(n int64) *events.Cursor { return new(events.From(n)) }
	for name, tc := range map[string]struct {
		params []string
		want   events.Request
	}{
		"nothing":  {nil, events.Request{}},
		"cursor":   {[]string{"cursor", "7"}, events.Request{Cursor: from(7)}},
		"cursor 0": {[]string{"cursor", "0"}, events.Request{Cursor: from(0)}},
		"position": {[]string{"cursor", "9", "position", "1k.0:7"},
			events.Request{Cursor: &events.Cursor{Generation: 56, Seq: 7}}},
		"device": {[]string{"deviceId", "phone"}, events.Request{DeviceID: "phone"}},
		"convos": {[]string{"convoIds", id.String(), "convoIds", uuid.Nil.String()},
			events.Request{Convos: []uuid.UUID{id, uuid.Nil}}},
	} {
		alice.dial(tc.params...)
		h.next(t)
		tc.want.DID = alice.did()
		if diff := cmp.Diff(tc.want, h.last()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, tc := range map[string]struct {
		params url.Values
		header string
		want   events.Request
	}{
		"nothing":          {nil, "", events.Request{}},
		"cursor":           {query("cursor", "7"), "", events.Request{Cursor: from(8)}},
		"cursor 0":         {query("cursor", "0"), "", events.Request{Cursor: from(0)}},
		"position":         {query("cursor", "1k.0:7"), "", events.Request{Cursor: &events.Cursor{Generation: 56, Seq: 7}}},
		"header":           {nil, "7", events.Request{Cursor: from(8)}},
		"header over both": {query("cursor", "9"), "7", events.Request{Cursor: from(8)}},
		"convo":            {query("convoId", id.String()), "", events.Request{Convos: []uuid.UUID{id}}},
		// this form has no pong that shows that the device is alive
		"device": {query("deviceId", "phone"), "", events.Request{}},
	} {
		var headers []string
		if tc.header != "" {
			headers = []string{"Last-Event-ID", tc.header}
		}
		alice.stream(tc.params, headers...)
		h.next(t)
		tc.want.DID = alice.did()
		if diff := cmp.Diff(tc.want, h.last()); diff != "" {
			t.Errorf("event stream, %s (-want +got):\n%s", name, diff)
		}
	}
}

// A handshake is refused with an error in JSON, as every request.
func TestHandshakeRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	nsid := mlsapi.NSIDSubscribeConvoEvents
	token := func() string { return alice.authorization(nsid) }
	for name, tc := range map[string]struct {
		a      answer
		status int
		error  string
		header string
	}{
		"POST":             {w.handshake(nsid, nil, token(), "Verb", "POST"), 405, "InvalidRequest", "Allow"},
		"HEAD as verb":     {w.do(http.MethodDelete, nsid, nil, nil, token()), 405, "InvalidRequest", "Allow"},
		"no upgrade":       {w.do(http.MethodGet, nsid, nil, nil, token()), 426, "InvalidRequest", "Upgrade"},
		"another protocol": {w.handshake(nsid, nil, token(), "Upgrade", "h2c"), 426, "InvalidRequest", "Upgrade"},
		"another version": {w.handshake(nsid, nil, token(), "Sec-WebSocket-Version", "8"), 400, "InvalidRequest",
			"Sec-WebSocket-Version"},
		"no key":    {w.handshake(nsid, nil, token(), "Sec-WebSocket-Key", ""), 400, "InvalidRequest", ""},
		"short key": {w.handshake(nsid, nil, token(), "Sec-WebSocket-Key", "AAAA"), 400, "InvalidRequest", ""},
		"no caller": {w.handshake(nsid, nil, ""), 401, "AuthMissing", "WWW-Authenticate"},
		"no token":  {w.handshake(nsid, nil, "Bearer x"), 401, "InvalidToken", "WWW-Authenticate"},
		"another method's": {w.handshake(nsid, nil, alice.authorization(mlsapi.NSIDStreamConvoEvents)), 401, "InvalidToken",
			"WWW-Authenticate"},
		"both":                   {w.handshake(nsid, query("ticket", "x"), token()), 400, "InvalidRequest", ""},
		"cursor":                 {w.handshake(nsid, query("cursor", "x"), token()), 400, "InvalidRequest", ""},
		"position":               {w.handshake(nsid, query("position", "1k.1:7"), token()), 400, "InvalidRequest", ""},
		"negative cursor":        {w.handshake(nsid, query("cursor", "-1"), token()), 400, "InvalidRequest", ""},
		"empty device":           {w.handshake(nsid, query("deviceId", ""), token()), 400, "InvalidRequest", ""},
		"no convo":               {w.handshake(nsid, query("convoIds", "x"), token()), 400, "InvalidRequest", ""},
		"no convo, event stream": {alice.get(mlsapi.NSIDStreamConvoEvents, "convoId", "x"), 400, "InvalidRequest", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tc.a.t = t
			tc.a.fails(tc.status, tc.error)
			if tc.header != "" && tc.a.header.Get(tc.header) == "" {
				t.Errorf("no %s header", tc.header)
			}
		})
	}
	h.refuses = events.ErrTooMany
	for _, a := range []answer{w.handshake(nsid, nil, token()), alice.get(mlsapi.NSIDStreamConvoEvents)} {
		a.fails(http.StatusTooManyRequests, "RateLimitExceeded")
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	h.refuses = events.ErrClosing
	for _, a := range []answer{w.handshake(nsid, nil, token()), alice.get(mlsapi.NSIDStreamConvoEvents)} {
		a.fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	}
}

// A page of any origin can connect: a browser adds no credentials to a connection.
func TestAnyOriginMayConnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pretend()
	a := w.handshake(mlsapi.NSIDSubscribeConvoEvents, nil, w.user().authorization(mlsapi.NSIDSubscribeConvoEvents),
		"Origin", "https://elsewhere.example.org",
		"Sec-WebSocket-Extensions", "permessage-deflate")
	if a.status != http.StatusSwitchingProtocols || a.header.Get("Sec-WebSocket-Extensions") != "" {
		t.Errorf("%d %v", a.status, a.header)
	}
}

// A ticket is fetched through the PDS and opens one connection, without a header.
func TestTicket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	a := w.do(http.MethodPost, mlsapi.NSIDGetSubscriptionTicket, nil, nil,
		alice.authorization(mlsapi.NSIDGetSubscriptionTicket), "Content-Type", "")
	out := read[mlsapi.GetSubscriptionTicketOutput](t, a.ok())
	if want := "wss://mls.example.com/xrpc/blue.catbird.mls.subscribeConvoEvents?ticket=" + out.Ticket; out.URL != want {
		t.Errorf("the URL is %s, want %s", out.URL, want)
	}
	if a.header.Get("Cache-Control") != "no-store" || time.Until(out.ExpiresAt.Time) > time.Minute {
		t.Errorf("%v, until %s", a.header, out.ExpiresAt)
	}
	w.dial("", "ticket", out.Ticket, "deviceId", "phone")
	h.next(t)
	if got := h.last(); got.DID != alice.did() || got.DeviceID != "phone" {
		t.Errorf("the subscription is %+v", got)
	}
	for _, bad := range []string{out.Ticket, "never", ""} {
		w.dial("", "ticket", bad).fails("InvalidTicket", events.ErrInvalidTicket.Error())
	}
}

// A client that guesses tickets is charged by address. A client that has one is charged by DID.
func TestTicketsAreRateLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.rates = api.Rates{IP: api.Rate{PerSecond: 1e-3, Burst: 2}, DID: api.Rate{PerSecond: 1e-3, Burst: 1}}
	})
	w.pretend()
	alice := w.user()
	ticket, another := alice.ticket(), alice.ticket()
	if a := w.handshake(mlsapi.NSIDSubscribeConvoEvents, query("ticket", ticket),
		""); a.status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", a.status, a.body)
	}
	w.handshake(mlsapi.NSIDSubscribeConvoEvents, query("ticket", another), "").fails(http.StatusTooManyRequests,
		"RateLimitExceeded")
	for range 2 {
		w.dial("", "ticket", "guess").fails("InvalidTicket", events.ErrInvalidTicket.Error())
	}
	w.handshake(mlsapi.NSIDSubscribeConvoEvents, query("ticket", "guess"), "").fails(http.StatusTooManyRequests,
		"RateLimitExceeded")
}

// A cursor that is too new, and one that is too old.
func TestCursorsOutOfRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	h.refuses = events.ErrFutureCursor
	alice.dial("cursor", "999").fails("FutureCursor", events.ErrFutureCursor.Error())
	alice.get(mlsapi.NSIDStreamConvoEvents, "cursor", "999").fails(http.StatusBadRequest, "FutureCursor")

	h.refuses, h.outdated = nil, true
	k, message := alice.dial("cursor", "1"), "events after the cursor are missing: read the convos again"
	h.next(t).events <- welcomeEvent(5)
	k.wants(map[string]any{"op": int64(1), "t": "#infoEvent"},
		map[string]any{"name": "OutdatedCursor", "message": message})
	k.wants(welcomeHeader(), welcomeBody(5))
	r := alice.stream(query("cursor", "3"))
	h.next(t).events <- welcomeEvent(5)
	if got, want := r.event(),
		(sent{event: "infoEvent", data: typed("infoEvent") + `"cursor":"3","info":"OutdatedCursor: ` + message +
			`"}`}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if e := r.event(); e.id != "5" || e.event != "welcomeEvent" {
		t.Errorf("got %+v", e)
	}
}

// A node that shuts down tells each client when to reconnect, and waits until the streams have
// ended.
func TestStreamsDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	k := alice.dial()
	first := h.next(t)
	r := alice.stream(query("cursor", "41"))
	second := h.next(t)
	busy, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.server.Drain(busy); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drained with streams open: %v", err)
	}
	first.fails <- events.ErrClosing
	second.fails <- events.ErrClosing
	if reason := k.closes(websocket.StatusServiceRestart); !regexp.MustCompile(`^restarting; reconnect after ` +
		`[0-9]{1,4} ms$`).MatchString(reason) {
		t.Errorf("the reason is %q", reason)
	}
	e := r.event()
	if e.event != "infoEvent" || e.retry == "" || e.id != "" ||
		e.data != typed("infoEvent")+`"cursor":"41","info":"Restarting: reconnect after `+e.retry+` ms"}` {
		t.Errorf("got %+v", e)
	}
	r.ends()
	done, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := w.server.Drain(done); err != nil {
		t.Errorf("drain: %v", err)
	}
	first.ended(t)
	second.ended(t)
}

// A client does not get the text of a database error.
func TestStreamFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, faulty)
	h, alice := w.pretend(), w.user()
	k := alice.dial()
	h.next(t).fails <- errors.New("SELECT secret FROM pg_authid")
	if reason := k.closes(websocket.StatusInternalError); reason != "InternalServerError" {
		t.Errorf("the reason is %q", reason)
	}
	r := alice.stream(nil)
	h.next(t).fails <- errors.New("SELECT secret FROM pg_authid")
	if e := r.event(); e.data != typed("infoEvent")+
		`"cursor":"5","info":"InternalServerError: the stream cannot go on now; reconnect"}` {
		t.Errorf("got %+v", e)
	}
	r.ends()
}

// A client that sends a message is disconnected.
func TestClientThatTalksIsClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
		k := alice.dial()
		s := h.next(t)
		if err := k.ws.Write(t.Context(), kind, bytes.Repeat([]byte("x"), 70_000)); err != nil {
			t.Fatal(err)
		}
		if reason := k.closes(websocket.StatusPolicyViolation); reason != "nothing is to be sent on this connection" {
			t.Errorf("the reason is %q", reason)
		}
		s.ended(t)
	}
	// A client that sends only the beginning of a message delays no one.
	w.server.Hurry(api.Pace{Close: 100 * time.Millisecond})
	h = w.pretend()
	conn, r := alice.raw(0)
	s := h.next(t)
	if _, err := conn.Write([]byte{0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4, 'x'}); err != nil {
		t.Fatal(err)
	}
	s.ended(t)
	if _, err := io.Copy(io.Discard, r); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection did not end: %v", err)
	}
}

// A client that answers pings stays connected. A client that does not is disconnected.
func TestPings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Hurry(api.Pace{Ping: 20 * time.Millisecond, Pong: 100 * time.Millisecond})
	h, alice := w.pretend(), w.user()
	_, dead := alice.raw(0)
	dies := h.next(t)
	if _, err := io.Copy(io.Discard, dead); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection did not end: %v", err)
	}
	dies.ended(t)
	w.counts(1, "mlsd_subscriptions_ended_total", "kind", "websocket", "reason", "no_pong")

	w.server.Hurry(api.Pace{Ping: 20 * time.Millisecond, Pong: time.Minute})
	h = w.pretend()
	k := alice.dial()
	lives := h.next(t)
	read := make(chan []byte)
	go func() { // which answers pings on the way
		defer close(read)
		if _, frame, err := k.ws.Read(t.Context()); err == nil {
			read <- frame
		}
	}()
	for range 4 { // the server sends a ping once the one before is answered
		select {
		case <-k.pinged:
		case <-time.After(time.Minute):
			t.Fatal("no further ping came")
		}
	}
	lives.events <- welcomeEvent(1)
	if frame, ok := <-read; !ok || !bytes.Equal(frame, encoded(t, welcomeHeader(), welcomeBody(1))) {
		t.Errorf("the one that answers got %x", frame)
	}
}

// A reader that pauses gets ConsumerTooSlow. A reader that never reads is disconnected. Neither
// has an effect on other readers.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// A reader is too slow after 2 s, and cut after 4: the one that pauses reads in between, also on a
	// busy machine.
	const pause = 3 * time.Second
	w.server.Hurry(api.Pace{Write: 2 * time.Second, Close: 2 * time.Second})
	h, alice := w.pretend(), w.user()
	fast := alice.dial()
	quick := h.next(t)
	conn, pausing := alice.raw(256 << 10)
	late := h.next(t)
	_, _ = alice.raw(256 << 10)
	never := h.next(t)
	events := make([]*events.Event, 100)
	for i := range events {
		events[i] = large(int64(i+1), 64<<10-1000)
		late.events <- events[i]
		never.events <- events[i]
	}
	begun := time.Now()
	for i := range 20 {
		quick.events <- welcomeEvent(int64(i))
		fast.read()
	}
	if took := time.Since(begun); took > pause/2 && !raceEnabled {
		t.Errorf("the one that reads waited %s for 20 events", took)
	}
	time.Sleep(pause - time.Since(begun))
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(pausing) // no close frame is sent back, so the server closes after a while
	if err != nil {
		t.Logf("read: %v", err)
	}
	want := encoded(t, map[string]any{"op": int64(-1)},
		map[string]any{"error": "ConsumerTooSlow", "message": "the events come faster than they are read; connect " +
			"again at the last cursor"})
	if !bytes.Contains(all, want) ||
		!bytes.HasSuffix(all, append([]byte{0x88, 17, 1008 >> 8, 1008 & 0xff}, "ConsumerTooSlow"...)) {
		t.Errorf("%d bytes were read; the end is %.100q", len(all), all[max(0, len(all)-100):])
	}
	late.ended(t)
	if len(late.slow) != 1 {
		t.Error("the hub did not learn it")
	}
	never.ended(t)
	w.counts(2, "mlsd_subscriptions_ended_total", "kind", "websocket", "reason", "too_slow")
}

// The same for event streams.
func TestSlowReadersOfEventStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Hurry(api.Pace{Write: 400 * time.Millisecond, KeepAlive: 50 * time.Millisecond})
	h, alice := w.pretend(), w.user()
	fast := alice.stream(nil)
	quick := h.next(t)
	never := alice.stream(nil)
	stuck := h.next(t)
	for i := range 400 {
		stuck.events <- large(int64(i+1), 64<<10-1000)
	}
	for i := range 20 {
		quick.events <- welcomeEvent(int64(i + 1))
		if e := fast.event(); e.id != itoa(int64(i+1)) {
			t.Fatalf("got %+v", e)
		}
	}
	stuck.ended(t)
	_ = never
	quick.fails <- events.ErrConsumerTooSlow
	if e := fast.event(); !strings.HasPrefix(e.data,
		typed("infoEvent")+`"cursor":"20","info":"ConsumerTooSlow: the events come faster than they are read; `+
			`connect again`) {
		t.Errorf("got %+v", e)
	}
	fast.ends()
}

// An event stream has its form, and lasts longer than any other answer.
func TestEventStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Hurry(api.Pace{KeepAlive: 100 * time.Millisecond})
	w.deadline = time.Second
	h, alice := w.pretend(), w.user()
	r := alice.stream(nil, "Last-Event-ID", "6")
	s := h.next(t)
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache",
		"X-Accel-Buffering": "no"} {
		if got := r.resp.Header.Get(name); got != want || r.resp.StatusCode != http.StatusOK {
			t.Errorf("%s is %q", name, got)
		}
	}
	for range 15 { // longer than the server's deadlines for requests
		if got := r.next(); got != (sent{comment: "keep-alive"}) {
			t.Errorf("got %+v", got)
		}
	}
	s.events <- welcomeEvent(7)
	want := sent{event: "welcomeEvent", id: "7",
		data: typed("welcomeEvent") +
			`"convoId":"ffffffff-ffff-ffff-ffff-ffffffffffff","createdAt":"2026-11-20T10:20:30.400Z",` +
			`"cursor":"7","deviceId":"phone","epoch":2,"keyPackageRef":"00ff"}`}
	if got := r.event(); got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if err := r.resp.Body.Close(); err != nil {
		t.Error(err)
	}
	s.ended(t)
	for _, bad := range []string{"x", "-1", "+1", "1.0", " 1", "9007199254740993", "99999999999999999999"} {
		for name, a := range map[string]answer{
			"cursor": alice.get(mlsapi.NSIDStreamConvoEvents, "cursor", bad),
			"Last-Event-ID": w.do(http.MethodGet, mlsapi.NSIDStreamConvoEvents, query("cursor", "1"), nil,
				alice.authorization(mlsapi.NSIDStreamConvoEvents), "Last-Event-ID", bad),
		} {
			if message := a.fails(http.StatusBadRequest, "InvalidRequest"); !strings.HasPrefix(message,
				name+" must be the cursor of an event, got a text of ") {
				t.Errorf("%q: %s", bad, message)
			}
		}
	}
}

// A panic in a stream ends that stream only.
func TestStreamPanics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, faulty)
	h, alice := w.pretend(), w.user()
	k := alice.dial()
	s := h.next(t)
	s.events <- &events.Event{StreamSeq: 1, Kind: outbox.Application} // without its log entry
	if _, _, err := k.ws.Read(t.Context()); err == nil {
		t.Error("something was sent")
	}
	s.ended(t)
	drained, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.server.Drain(drained); err != nil {
		t.Error(err)
	}
	r := alice.stream(nil)
	s = h.next(t)
	s.events <- &events.Event{StreamSeq: 1, Kind: outbox.Application}
	_, _ = io.Copy(io.Discard, r.lines)
	s.ended(t)
	k = alice.dial()
	h.next(t).events <- welcomeEvent(7)
	k.wants(welcomeHeader(), welcomeBody(7))
}

// A client that gets more than it can read at once is not dead: it is not disconnected because of
// pings that it has not read yet.
func TestPingsWaitForWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Hurry(api.Pace{Write: time.Minute, Ping: 50 * time.Millisecond, Pong: 5 * time.Second})
	h, alice := w.pretend(), w.user()
	k := alice.dial()
	s := h.next(t)
	const n = 200
	for i := range n {
		s.events <- large(int64(i+1), 64<<10-1000)
	}
	time.Sleep(6 * time.Second) // a pong comes later than the server would wait
	for range n {
		k.read()
	}
}

// However a stream ends, the hub and the metrics count it as ended, and the server can drain.
func TestStreamsComeToAnEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Hurry(api.Pace{Write: 500 * time.Millisecond, Close: 200 * time.Millisecond, Ping: 100 * time.Millisecond,
		Pong: 100 * time.Millisecond, KeepAlive: 20 * time.Millisecond})
	h, alice := w.pretend(), w.user()
	w.listen()
	var clients sync.WaitGroup
	const n = 100
	for i := range n {
		clients.Go(func() {
			switch i % 5 {
			case 0: // closes in order
				k := alice.dial()
				_ = k.ws.Close(websocket.StatusNormalClosure, "")
			case 1: // is cut off
				conn, _ := alice.raw(0)
				_ = conn.Close()
			case 2: // never reads, and answers no ping
				_, _ = alice.raw(0)
			case 3:
				r := alice.stream(nil)
				_ = r.resp.Body.Close()
			default: // the answer says that the node shuts down
				_, _ = io.Copy(io.Discard, alice.stream(nil).lines)
			}
		})
		s := h.next(t)
		s.events <- welcomeEvent(1)
		if i%5 == 4 {
			s.fails <- events.ErrClosing
		}
		defer s.ended(t)
	}
	clients.Wait()
	drained, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.server.Drain(drained); err != nil {
		t.Error(err)
	}
	for _, kind := range []string{"websocket", "sse"} {
		w.counts(0, "mlsd_subscriptions", "kind", kind)
	}
}

// An idle subscriber costs less than 16 KiB, with its goroutines, its buffers and its data in the
// hub. The test is not parallel, because it measures memory.
func TestIdleSubscribersAreCheap(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	w := newWorld(t, live)
	used := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	// settled waits until what tests before this one have left no longer comes free.
	settled := func() int64 {
		for last := used(); ; {
			time.Sleep(100 * time.Millisecond)
			now := used()
			if now >= last {
				return now
			}
			last = now
		}
	}
	const people, each = 32, 16
	var users []*user
	for range people {
		u := w.user()
		u.create()
		users = append(users, u)
	}
	for kind, open := range map[string]func(*user){
		"websocket": func(u *user) { u.raw(0) },
		"sse":       func(u *user) { u.rawStream("HTTP/1.1", "") },
	} {
		open(users[0])
		before := settled()
		for i, u := range users {
			for j := range each {
				if i+j > 0 {
					open(u)
				}
			}
		}
		w.counts(people*each, "mlsd_subscriptions", "kind", kind)
		time.Sleep(500 * time.Millisecond) // until they have caught up
		got := (used() - before) / (people*each - 1)
		t.Logf("%s: %d bytes each, with the test's end of the connection", kind, got)
		if got > 16<<10 {
			t.Errorf("%s: an idle subscriber costs %d bytes", kind, got)
		}
		for _, u := range users {
			w.hub.End(u.did(), events.ErrReplaced)
		}
		w.counts(0, "mlsd_subscriptions", "kind", kind)
	}
}

// A client is possibly dead while an event is sent to it and a ping is due. Its device does not
// count as connected until it answers a ping.
func TestDoubtedWhileBeingSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Hurry(api.Pace{Write: 5 * time.Second, Ping: 50 * time.Millisecond, Pong: 5 * time.Second})
	h, alice := w.pretend(), w.user()
	alive := alice.dial()
	answering := h.next(t)
	go func() { _, _, _ = alive.ws.Reader(t.Context()) }() // which answers pings
	_, _ = alice.raw(4 << 10)                              // reads nothing
	dead := h.next(t)
	dead.events <- large(1, 4<<20)
	await.Until(t, "one is alive, and one is dead", func() bool {
		return dead.believed.Load() == -1 && answering.believed.Load() == 1
	})
}

// A client that has stopped reading does not delay a shutdown.
func TestStuckClientsAndShutdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t) // with the pace that servers have
	h, alice := w.pretend(), w.user()
	_, _ = alice.raw(4 << 10)
	socket := h.next(t)
	_ = alice.stream(nil)
	stream := h.next(t)
	for _, stuck := range []*subscription{socket, stream} {
		stuck.events <- large(1, 8<<20)
		stuck.fails <- events.ErrClosing
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	if err := w.server.Drain(ctx); err != nil {
		t.Error(err)
	}
}
