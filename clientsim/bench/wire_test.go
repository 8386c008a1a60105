package bench

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// talk serves connections on loopback, each by its own function, until the test ends.
func talk(t *testing.T, each func(net.Conn)) string {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listen.Close() })
	go func() {
		for {
			conn, err := listen.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				each(conn)
			}()
		}
	}()
	return listen.Addr().String()
}

const question = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func TestAnswers(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, tc := range map[string]struct {
		sent string
		want string // body
		err  error  // nil if there is none; errAnswer if the answer is unexpected
	}{
		"a length":   {ok + "Content-Length: 2\r\n\r\nhi", "hi", nil},
		"other case": {ok + "cONTENT-lENGTH:2\r\n\r\nhi", "hi", nil},
		"nothing":    {ok + "Content-Length: 0\r\n\r\n", "", nil},
		"chunks": {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nA\r\n0123456789\r\n0\r\n\r\n",
			"hi0123456789", nil},
		"refusal":         {"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}", "{}", nil},
		"no length":       {ok + "\r\nhi", "", errAnswer},
		"bad length":      {ok + "Content-Length: -2\r\n\r\nhi", "", errAnswer},
		"huge":            {ok + "Content-Length: 99999999999\r\n\r\n", "", errAnswer},
		"bad chunk":       {ok + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "", errAnswer},
		"long chunk":      {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi!\r\n0\r\n\r\n", "", errAnswer},
		"gzip":            {ok + "Transfer-Encoding: gzip\r\n\r\n", "", errAnswer},
		"more than one":   {ok + "Content-Length: 2\r\n\r\nhi" + ok, "", errAnswer},
		"HTTP/1.0":        {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "", errAnswer},
		"interim":         {"HTTP/1.1 100 Continue\r\n\r\n", "", errAnswer},
		"no body at all":  {"HTTP/1.1 204 No Content\r\n\r\n", "", errAnswer},
		"no colon":        {ok + "Content-Length 2\r\n\r\nhi", "", errAnswer},
		"nothing came":    {"", "", io.ErrUnexpectedEOF},
		"early in header": {ok + "Content-Le", "", io.ErrUnexpectedEOF},
		"early in body":   {ok + "Content-Length: 3\r\n\r\nhi", "", io.ErrUnexpectedEOF},
		"early in chunk":  {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhi", "", io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := talk(t, func(conn net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.WriteString(conn, tc.sent)
				}
			})
			w := newWire(addr)
			defer w.close()
			got, err := w.do(t.Context(), []byte(question))
			if !errors.Is(err, tc.err) {
				t.Fatalf("%v, want %v", err, tc.err)
			}
			if err != nil {
				if w.conn != nil {
					t.Error("the connection is still open")
				}
				return
			}
			if diff := cmp.Diff(tc.want, string(got.body)); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

// A connection is used again, unless the server closes it or says that it will close it.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64
	addr := talk(t, func(conn net.Conn) {
		opened.Add(1)
		in := bufio.NewReader(conn)
		for n := 1; ; n++ {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			header := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
			if n == 3 {
				header += "Connection: close\r\n"
			}
			_, _ = io.WriteString(conn, header+"X-Idempotency-Replay: true\r\n\r\nhi")
		}
	})
	w := newWire(addr)
	defer w.close()
	for i := range 6 {
		got, err := w.do(t.Context(), []byte(question))
		if err != nil || got.status != 200 || !got.replayed || string(got.body) != "hi" {
			t.Fatalf("request %d: %+v, %v", i, got, err)
		}
	}
	if opened.Load() != 2 {
		t.Errorf("%d connections, want 2", opened.Load())
	}
}
