package node

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// peer is a client with connections from an address of its own.
type peer struct {
	t       *testing.T
	server  net.Addr
	address net.IP
	waits   <-chan struct{} // one for each connection that the server counts as new or idle
}

func (p peer) dial() net.Conn {
	p.t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: p.address}}).DialContext(p.t.Context(), "tcp", p.server.String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	<-p.waits
	return c
}

// write writes a request, or a part of one.
func (p peer) write(c net.Conn, text string) {
	p.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		p.t.Fatal(err)
	}
}

// read reads the whole answer, and waits until the server counts the connection as idle.
func (p peer) read(c net.Conn) {
	p.t.Helper()
	got := make([]byte, len(answered))
	if _, err := io.ReadFull(c, got); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
		p.t.Fatalf("the answer is %q, %v", got, err)
	}
	<-p.waits
}

// idle opens a connection, and sends a request.
func (p peer) idle() net.Conn {
	p.t.Helper()
	c := p.dial()
	p.write(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	p.read(c)
	return c
}

// isClosed waits until the server has closed a connection.
func (p peer) isClosed(name string, c net.Conn) {
	p.t.Helper()
	if n, err := c.Read(make([]byte, 1)); err == nil {
		p.t.Fatalf("%s: the server has sent %d bytes instead of closing the connection", name, n)
	}
}

const answered = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// served serves on loopback, at most 6 waiting connections, 3 of them of one address. A request for
// /slow has its answer when it is released.
func served(t *testing.T, proxies ...netip.Prefix) (at func(address string) peer, begun, release chan struct{}) {
	t.Helper()
	begun, release = make(chan struct{}), make(chan struct{})
	s := HTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			begun <- struct{}{}
			<-release
		}
		w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
		_, _ = io.WriteString(w, "ok")
	}), proxies, slog.New(slog.DiscardHandler))
	bounds := newWaiting(proxies)
	bounds.most, bounds.maxOfAddress = 6, 3
	waits := make(chan struct{}, 100)
	s.ConnState = func(c net.Conn, state http.ConnState) {
		bounds.changed(c, state)
		if state == http.StateNew || state == http.StateIdle {
			waits <- struct{}{}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-ended })
	return func(address string) peer { return peer{t, l.Addr(), net.ParseIP(address), waits} }, begun, release
}

// S13: of the connections of one address that wait for a request, the one that waits longest is
// closed, be it idle, half-open or new. One whose request is being answered stays.
func TestWaitingConnectionsOfAnAddress(t *testing.T) {
	t.Parallel()
	at, begun, release := served(t)
	mallory, honest := at("127.0.0.2"), at("127.0.0.3")
	others := honest.idle()
	busy := mallory.dial()
	mallory.write(busy, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
	<-begun
	new := mallory.dial()
	idle := mallory.idle()
	halfOpen := mallory.idle()
	mallory.write(halfOpen, "GET / HTTP/1.1\r\nHo")
	for i, oldest := range []net.Conn{new, idle, halfOpen} {
		mallory.idle()
		mallory.isClosed(fmt.Sprint(i), oldest)
	}
	release <- struct{}{}
	mallory.read(busy)
	honest.write(others, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	honest.read(others)
}

// S13: the connections of all addresses that wait are bounded too. The bound of an address does not
// apply to a proxy of the operator's.
func TestWaitingConnectionsOfAll(t *testing.T) {
	t.Parallel()
	at, _, _ := served(t, netip.MustParsePrefix("127.0.0.9/32"))
	proxy := at("127.0.0.9")
	var open []net.Conn
	for range 6 {
		open = append(open, proxy.idle())
	}
	for _, c := range open { // all of them are still good
		proxy.write(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		proxy.read(c)
	}
	for i, address := range []string{"127.0.0.4", "127.0.0.5"} {
		at(address).idle()
		proxy.isClosed(address, open[i])
	}
}
