package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"mlsd/api"
	"mlsd/api/mlsapi"
)

// A request that the rate limit refuses does not use up its token, and so costs no row.
func TestRefusedTokensCostNoRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-3, Burst: 1} })
	alice := w.user()
	for range 5 {
		alice.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: "x"})
	}
	if n := w.count(`SELECT count(*) FROM used_tokens`); n != 1 {
		t.Fatalf("%d tokens are remembered, want the one that got through", n)
	}
}

// One caller's uploads that never end leave room for everybody's messages, and for its own.
func TestSlowUploads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, mallory := w.user(), w.user()
	c := alice.create()
	server := httptest.NewServer(w.server)
	defer server.Close()
	for i := range 20 {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}()
		_, err = fmt.Fprintf(conn, "POST /xrpc/%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", mlsapi.NSIDSendMessage, mallory.authorization(mlsapi.NSIDSendMessage), 14<<20)
		if err != nil {
			t.Fatal(err)
		}
		if i > 1 {
			continue // it waits for room, behind the first two
		}
		if word, err := bufio.NewReader(conn).ReadString('\n'); err != nil || word != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v; want the word that there is room and the body is being read", word, err)
		}
	}
	first, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}()
	body := alice.message(c, "hello").AppendJSON(nil)
	_, err = fmt.Fprintf(first, "POST /xrpc/%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		mlsapi.NSIDSendMessage, alice.authorization(mlsapi.NSIDSendMessage), len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(first), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%d %s, %v", answer.StatusCode, text, err)
	}
	alice.send(c, "and again")
	mallory.get(mlsapi.NSIDGetConvos).ok()
}
