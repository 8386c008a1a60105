package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// Streams do not delay a shutdown. Each gets an event that names the shutdown and when to
// reconnect.
func TestShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := boot(t, []string{"MLSD_DATABASE_URL=" + pgtest.URL(t)}, w.flags()...)
	w.use(s.admin, s.public)
	alice := w.user()
	ticket := read[mlsapi.GetSubscriptionTicketOutput](t,
		request{u: alice, verb: http.MethodPost, nsid: mlsapi.NSIDGetSubscriptionTicket}.must().ok())
	_, query, _ := strings.Cut(ticket.URL, "?")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	ws, _, err := websocket.Dial(ctx,
		strings.Replace(s.public, "http", "ws", 1)+"/xrpc/"+mlsapi.NSIDSubscribeConvoEvents+"?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.public+"/xrpc/"+mlsapi.NSIDStreamConvoEvents, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", alice.Authorization(t, serviceDID, mlsapi.NSIDStreamConvoEvents, time.Now()))
	stream, err := http.DefaultClient.Do(r)
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", stream, err)
	}
	defer func() { _ = stream.Body.Close() }()

	closed, received := make(chan error, 1), make(chan string, 1)
	go func() {
		_, _, err := ws.Read(ctx)
		closed <- err
	}()
	go func() {
		all, _ := io.ReadAll(stream.Body)
		received <- string(all)
	}()
	begun := time.Now()
	s.stop()
	if took := time.Since(begun); took > 7*time.Second {
		t.Errorf("the shutdown took %s", took)
	}
	var end websocket.CloseError
	if err := <-closed; !errors.As(err, &end) || end.Code != websocket.StatusServiceRestart ||
		!strings.HasPrefix(end.Reason, "restarting; reconnect after ") {
		t.Errorf("the WebSocket ended with %v", err)
	}
	if text := <-received; !strings.HasPrefix(text, "retry: ") ||
		!strings.Contains(text, "event: infoEvent\n"+
			`data: {"$type":"blue.catbird.mls.streamConvoEvents#infoEvent","cursor":"0","info":"Restarting: `) {
		t.Errorf("the event stream ended with %q", text)
	}
}
