package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// proxyNodes are two nodes of one database, at addresses that they keep when they are replaced.
type proxyNodes struct {
	database  string
	addresses [2]string
	running   [2]*child
}

func newNodes(t *testing.T) *proxyNodes {
	t.Helper()
	return &proxyNodes{database: pgtest.URL(t), addresses: [2]string{freeAddress(t), freeAddress(t)}}
}

// start starts a node. Its clients' addresses have a low rate, and the proxies are trusted.
func (n *proxyNodes) start(t *testing.T, w *world, i int) {
	t.Helper()
	n.running[i] = spawn(t, dataDir(t), "MLSD_PLC_URL="+w.plc.URL, "MLSD_DATABASE_URL="+n.database,
		"MLSD_LISTEN="+n.addresses[i],
		"MLSD_TRUSTED_PROXIES=127.0.0.1/32", "MLSD_RATE_IP=0.01/30")
}

// replace ends a node in order, and starts another one in its place.
func (n *proxyNodes) replace(t *testing.T, w *world, i int) {
	t.Helper()
	n.running[i].signal(syscall.SIGTERM)
	if status := n.running[i].wait(); status.ExitStatus() != 0 {
		t.Fatalf("a node ended with %d", status.ExitStatus())
	}
	n.start(t, w, i)
}

// sendersOfAProxy is how many users send through a proxy at once. With one, requests would never go
// to a node that holds both streams: the other one has fewer connections.
const sendersOfAProxy = 4

// replaceNodes replaces the nodes one after the other, while users send through each proxy. It goes
// on when every proxy uses the new node. No request may fail behind a proxy that repeats it at the
// other node. Behind one that does not, the client repeats it. The streams learn that they must
// connect again.
func replaceNodes(t *testing.T, w *world, nodes *proxyNodes, all []*proxied) {
	t.Helper()
	stop := make(chan struct{})
	var sending sync.WaitGroup
	var loads []*proxyLoad
	for _, p := range all {
		l := &proxyLoad{t: t, p: p, nodes: map[string]bool{}}
		loads = append(loads, l)
		for range sendersOfAProxy {
			alice, bob := p.user(), p.user()
			c := alice.create(bob)
			sending.Go(func() { l.send(alice, c, stop) })
		}
	}
	func() {
		defer sending.Wait()
		defer close(stop)
		awaitNodes(t, loads, len(nodes.addresses))
		for i := range nodes.addresses {
			nodes.replace(t, w, i)
			awaitNodes(t, loads, len(nodes.addresses)+i+1)
		}
	}()
	for _, l := range loads {
		l.p.streams.restarted(t, l.p.kind.name)
		if most := len(nodes.addresses) * sendersOfAProxy; l.repeated > 0 && (l.p.kind.repeats || l.repeated > most) {
			t.Errorf("%s: %d requests failed while both nodes were replaced", l.p.kind.name, l.repeated)
		}
		t.Logf("%s: %d messages sent while both nodes were replaced, %d of them twice", l.p.kind.name, l.sent, l.repeated)
	}
}

// awaitNodes waits until answers of this many nodes have come through every proxy.
func awaitNodes(t *testing.T, loads []*proxyLoad, n int) {
	t.Helper()
	for _, l := range loads {
		await.Until(t, l.p.kind.name+" uses the new node", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.nodes) >= n || t.Failed()
		})
	}
}

// proxyLoad are users who send through a proxy.
type proxyLoad struct {
	t *testing.T
	p *proxied

	mu             sync.Mutex // guards what follows
	sent, repeated int
	nodes          map[string]bool // that have answered: the part of their request ids that a process makes once
}

// send sends messages until stop is closed, or one fails. One that the proxy could not pass on is sent
// again, under the same key.
func (l *proxyLoad) send(alice *user, c *convo, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		message := alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, fmt.Sprint(n)))
		a, err := message.send()
		again := err == nil && a.status == http.StatusBadGateway
		if again {
			a, err = message.send()
		}
		if err != nil || a.status != http.StatusOK {
			l.t.Errorf("%s: message %d: %d %s %v", l.p.kind.name, n, a.status, a.body, err)
			return
		}
		node, _, _ := strings.Cut(a.header.Get("X-Request-Id"), "-")
		l.mu.Lock()
		l.sent++
		if again {
			l.repeated++
		}
		l.nodes[node] = true
		l.mu.Unlock()
	}
}

// restarted demands that both streams have ended with the notice of a restart.
func (s *proxiedStreams) restarted(t *testing.T, name string) {
	t.Helper()
	var end websocket.CloseError
	if err := <-s.frames; !errors.As(err, &end) || end.Code != websocket.StatusServiceRestart ||
		!strings.HasPrefix(end.Reason, "restarting; reconnect after ") {
		t.Errorf("%s: the WebSocket ended with %v", name, err)
	}
	notice := false
	for line := range s.lines {
		notice = notice || strings.Contains(line, `"info":"Restarting: `)
	}
	if !notice {
		t.Errorf("%s: server-sent events ended without a notice of the restart", name)
	}
}
