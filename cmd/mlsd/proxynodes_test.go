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
	n.running[i] = spawn(t, dataDir(t), "MLSD_PLC_URL="+w.plc.URL, "MLSD_DATABASE_URL="+n.database, "MLSD_LISTEN="+n.addresses[i],
		"MLSD_TRUSTED_PROXIES=127.0.0.1/32", "MLSD_RATE_IP=0.01", "MLSD_RATE_IP_BURST=30")
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

// replaceNodes replaces the nodes one after the other, while a user sends through each proxy. It goes
// on when every proxy uses the new node. No request may fail behind a proxy that repeats it at the
// other node. Behind one that does not, the client repeats it. The streams learn that they must
// connect again.
func replaceNodes(t *testing.T, w *world, nodes *proxyNodes, all []*proxied) {
	t.Helper()
	stop := make(chan struct{})
	var sending sync.WaitGroup
	var senders []*proxySender
	for _, p := range all {
		alice, bob := p.user(), p.user()
		s := &proxySender{t: t, p: p, alice: alice, convo: alice.create(bob), nodes: map[string]bool{}}
		senders = append(senders, s)
		sending.Go(func() { s.send(stop) })
	}
	awaitNodes(t, senders, len(nodes.addresses))
	for i := range nodes.addresses {
		nodes.replace(t, w, i)
		awaitNodes(t, senders, len(nodes.addresses)+i+1)
	}
	close(stop)
	sending.Wait()
	for _, s := range senders {
		s.p.streams.restarted(t, s.p.kind.name)
		if most := len(nodes.addresses); s.failed > 0 && (s.p.kind.repeats || s.failed > most) {
			t.Errorf("%s: %d requests failed while %d nodes were replaced", s.p.kind.name, s.failed, most)
		}
		t.Logf("%s: %d messages sent while both nodes were replaced, %d of them twice", s.p.kind.name, s.sent, s.failed)
	}
}

// awaitNodes waits until every sender has had answers of this many nodes.
func awaitNodes(t *testing.T, senders []*proxySender, n int) {
	t.Helper()
	for _, s := range senders {
		eventually(t, s.p.kind.name+" uses the new node", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.nodes) >= n
		})
	}
}

// proxySender sends messages through a proxy.
type proxySender struct {
	t            *testing.T
	p            *proxied
	alice        *user
	convo        *convo
	sent, failed int

	mu    sync.Mutex
	nodes map[string]bool // that have answered: the parts of request ids that a process makes once
}

// send sends messages until stop is closed. One that the proxy could not pass on is sent again, under
// the same key.
func (s *proxySender) send(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		message := s.alice.procedure(mlsapi.NSIDSendMessage, s.alice.message(s.convo, fmt.Sprint(s.sent)))
		a, err := message.send()
		if err == nil && a.status == http.StatusBadGateway {
			s.failed++
			a, err = message.send()
		}
		if err != nil || a.status != http.StatusOK {
			s.t.Errorf("%s: message %d: %d %s %v", s.p.kind.name, s.sent, a.status, a.body, err)
		}
		s.sent++
		node, _, _ := strings.Cut(a.header.Get("X-Request-Id"), "-")
		s.mu.Lock()
		s.nodes[node] = true
		s.mu.Unlock()
	}
}

// restarted demands that both streams have ended with the notice of a restart.
func (s *proxiedStreams) restarted(t *testing.T, name string) {
	t.Helper()
	var end websocket.CloseError
	if err := <-s.frames; !errors.As(err, &end) || end.Code != websocket.StatusServiceRestart || !strings.HasPrefix(end.Reason, "restarting; reconnect after ") {
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
