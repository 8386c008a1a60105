package attack

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// H2, H3 and H5: clients that do not read their answers, or do not send their requests, hold memory,
// connections and goroutines. Streams that are opened and closed at once use up the openings of all
// callers.
func slow() []Attack {
	return []Attack{
		{"pages", "H2", "14 DIDs of one address ask for 5.6 MB pages and do not read them", unreadPages(14, 1)},
		{"pages-many", "H2", "64 DIDs of 32 addresses ask for 5.6 MB pages and do not read them", unreadPages(64, 32)},
		{"bodies", "H3", "1,024 connections of 8 DIDs declare 256 KiB and send nothing", slowBodies(1024, 8, 1, 256<<10)},
		{"bodies-large", "H3", "256 connections of 32 DIDs at 32 addresses declare 8 MiB and send nothing",
			slowBodies(256, 32, 32, 8<<20)},
		{"headers", "H3", "1,024 connections send one byte of a header per second", slowHeaders},
		{"openings", "H5", "2,000 WebSockets per second without a token, which hang up at once", hangUps(0)},
		{"openings-account", "H5", "2,000 WebSockets per second of 40 accounts with valid tokens, which hang up at once",
			hangUps(40)},
	}
}

// head returns the beginning of a request of an account, up to the end of its first headers.
func (t *Target) head(verb, query string, who *xrpc.Account, method string) string {
	return fmt.Sprintf("%s /xrpc/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n", verb, query, t.Addr,
		Must(who.Token(t.Audience, syntax.NSID(method))))
}

// unreadPages asks for pages of a convo that all accounts are in. Each account has four requests.
func unreadPages(dids, addresses int) prepare {
	const parts, part, readersPerDID = 6, 930_000, 4
	return func(ctx context.Context, t *Target) *Prepared {
		accounts, c := t.accounts(dids), t.client(0)
		id, group := Must2(testbed.NewConvo(ctx, c, accounts[0], testbed.DIDsOf(accounts[1:]), nil))
		for i := range parts {
			who := accounts[i%dids]
			Must(c.Do(ctx, who, xrpc.SendCall(id, who.DID, 1, mlsclient.FakeMessage(group, 1, part), xrpc.NewKey())))
		}
		query := mlsapi.NSIDGetMessages + "?limit=100&messageType=all&sinceSeq=0&convoId=" + id
		return t.hold(dids*readersPerDID, func(i int) held {
			return held{address: i % addresses,
				head: t.head("GET", query, accounts[i%dids], mlsapi.NSIDGetMessages) + "\r\n"}
		})
	}
}

// slowBodies holds n uploads of several DIDs from several addresses.
func slowBodies(n, dids, addresses, declared int) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids)
		return t.hold(n, func(i int) held {
			return held{address: i % addresses, head: t.head("POST", mlsapi.NSIDSendMessage, accounts[i%dids],
				mlsapi.NSIDSendMessage) + fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", declared)}
		})
	}
}

func slowHeaders(_ context.Context, t *Target) *Prepared {
	return t.hold(1024, func(i int) held {
		return held{i % 4, "GET /xrpc/_health HTTP/1.1\r\nHost: " + t.Addr + "\r\nX-Slow: ", "a"}
	})
}

// held is one request of a slow client.
type held struct {
	address    int    // the client's
	head, drop string // the beginning of the request, and what the client sends each second
}

// How long a slow client keeps a connection: until the server answers, and then without reading.
const (
	answerLimit = 30 * time.Second
	unreadFor   = 10 * time.Second
)

// hold keeps n slow requests. When one ends, a new one replaces it.
func (t *Target) hold(n int, next func(i int) held) *Prepared {
	return &Prepared{Run: func(ctx context.Context) {
		Each(n, n, func(i int) {
			for ctx.Err() == nil {
				t.answered(t.holdOne(ctx, next(i)))
				xrpc.Sleep(ctx, time.Second/2)
			}
		})
	}}
}

// holdOne makes one slow request, and returns the status of its answer. 0 means that there was none.
func (t *Target) holdOne(ctx context.Context, h held) (status int) {
	conn, end, err := t.open(ctx, h.address, h.head)
	if err != nil {
		return 0
	}
	defer end()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10)
	}
	if h.drop != "" {
		feeding, stop := context.WithCancel(ctx)
		defer stop()
		go feed(feeding, conn, h.drop)
	}
	if err := conn.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return 0
	}
	line := make([]byte, len("HTTP/1.1 503"))
	if _, err := io.ReadFull(conn, line); err != nil {
		return 0
	}
	if status, err = strconv.Atoi(string(line[9:])); err == nil && status == http.StatusOK {
		xrpc.Sleep(ctx, unreadFor)
	}
	return status
}

// feed writes drop once per second until a write fails.
func feed(ctx context.Context, conn net.Conn, drop string) {
	for ctx.Err() == nil {
		xrpc.Sleep(ctx, time.Second)
		if _, err := io.WriteString(conn, drop); err != nil {
			return
		}
	}
}

// hangUps opens streams that hang up after a moment: of some accounts, or without a token. A client
// that leaves sooner gives its place back. It does not reset the connection, because the server
// could then not read the request, so the request would cost nothing.
func hangUps(accounts int) prepare {
	const rate, lanes, openFor = 2000, 512, 50 * time.Millisecond
	return func(_ context.Context, t *Target) *Prepared {
		method := mlsapi.NSIDSubscribeConvoEvents
		heads := []string{"GET /xrpc/" + method + " HTTP/1.1\r\nHost: " + t.Addr + "\r\nAuthorization: Bearer none\r\n"}
		for i, who := range t.accounts(accounts) {
			heads = append(heads[:i], t.head("GET", method, who, method))
		}
		return &Prepared{Run: func(ctx context.Context) {
			pace(ctx, rate, lanes, func(ctx context.Context, i int) {
				_, end, err := t.open(ctx, 0, heads[i%len(heads)]+"Connection: Upgrade\r\nUpgrade: websocket\r\n"+
					"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
				t.answered(0)
				if err == nil {
					xrpc.Sleep(ctx, openFor)
					end()
				}
			})
		}}
	}
}
