package pgwire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection of a client with its connection to the server.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	fromClient     *bufio.Reader
	commits        commits

	closing sync.Once
	closed  chan struct{}

	orphaned atomic.Bool // the client is gone, and its last request is still to be delivered

	mu     sync.Mutex // guards frozen
	frozen time.Time  // until when nothing is forwarded
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{
		proxy: p, client: client, server: server, fromClient: bufio.NewReader(client),
		commits: commits{prepared: map[string]statement{}}, closed: make(chan struct{}),
	}
}

// cut ends both connections. What they have not sent is lost.
func (l *link) cut() {
	l.closing.Do(func() {
		close(l.closed)
		_ = errors.Join(l.client.Close(), l.server.Close()) // they end, whatever Close says
	})
}

// run forwards until the link ends.
func (l *link) run() {
	defer l.cut()
	if !l.begin() {
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() {
		defer l.cut()
		l.pump(l.fromClient, l.server, l.commits.clientPoints)
	})
	pumps.Go(func() {
		defer l.cut()
		l.pump(bufio.NewReader(l.server), l.client, l.commits.serverPoints)
	})
	pumps.Wait()
}

// begin forwards the first message. It reports whether typed messages follow.
func (l *link) begin() bool {
	for {
		m, code, err := readFirst(l.fromClient)
		if err != nil {
			return false
		}
		if code == codeTLS || code == codeGSS {
			if _, err := l.client.Write([]byte("N")); err != nil {
				return false
			}
			continue
		}
		if code == codeCancel && l.proxy.orphans.Load() > 0 {
			return false // who was cut off cancels nothing either; pgx tries to
		}
		if _, err := l.server.Write(m); err != nil {
			return false
		}
		if code == codeCancel { // the server closes it when it has taken the request
			_, _ = io.Copy(io.Discard, l.server)
		}
		return code != codeCancel
	}
}

// pump forwards one direction. It sends when nothing more is there to read.
func (l *link) pump(from *bufio.Reader, to net.Conn, points func(message) []Point) {
	out := bufio.NewWriter(to)
	for {
		if from.Buffered() == 0 && !l.sent(out.Flush(), from) {
			return
		}
		m, err := readTyped(from)
		if err != nil {
			_ = out.Flush() // the last words of one that has closed; nobody may be there to read them
			return
		}
		l.await()
		f, faulty := l.proxy.take(points(m))
		if !faulty {
			if _, err := out.Write(m); !l.sent(err, from) {
				return
			}
			continue
		}
		// Only this message suffers. What came before it is sent.
		if !l.sent(out.Flush(), from) || !l.suffer(f, m, from, to) {
			return
		}
	}
}

// suffer does to a message what the fault says. It reports whether the direction goes on.
func (l *link) suffer(f Fault, m message, from *bufio.Reader, to net.Conn) bool {
	switch f.Action {
	case CutBefore:
		return false
	case CutInside:
		_, _ = to.Write(m[:len(m)/2]) // the connection ends in any case
		return false
	case CutAfter:
		if f.Point.fromClient() {
			l.orphan(m)
			return false
		}
		_, _ = to.Write(m) // the connection ends in any case
		return false
	case Delay:
		l.sleep(f.For)
	case Freeze:
		l.freeze(f.For)
		l.await()
	case HalfOpen:
		l.swallow(f.For, from)
		return false
	case Late:
		l.deliverLate(f.For, m)
		return false
	}
	_, err := to.Write(m)
	return err == nil
}

// sleep waits until d is over, the faults are healed or the link ends.
func (l *link) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.proxy.healed:
	case <-l.closed:
	}
}

// freeze holds both directions until d from now.
func (l *link) freeze(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = time.Now().Add(d)
}

// await waits until the link is not frozen.
func (l *link) await() {
	l.mu.Lock()
	left := time.Until(l.frozen)
	l.mu.Unlock()
	if left > 0 {
		l.sleep(left)
	}
}

// swallow drops what comes, until d is over. The other direction goes on meanwhile.
func (l *link) swallow(d time.Duration, from *bufio.Reader) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.sleep(d)
		l.cut() // ends the Copy
	}()
	_, _ = io.Copy(io.Discard, from) // until the link is cut, or its sender gives up
	l.cut()
	<-ended
}

// orphan ends the client's connection, so that no answer comes, sends m to the server, and waits until
// the server has taken it: a server whose connection is reset can lose what it has not read.
func (l *link) orphan(m []byte) {
	defer l.abandon()()
	if _, err := l.server.Write(m); err != nil {
		return
	}
	if half, ok := l.server.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		<-l.closed // the server ends the connection
	}
}

// abandon ends the client's connection. done is called when the server needs the link no longer.
func (l *link) abandon() (done func()) {
	l.proxy.orphans.Add(1)
	l.orphaned.Store(true)
	_ = l.client.Close() // it ends, whatever Close says
	return func() { l.proxy.orphans.Add(-1) }
}

// deliverLate ends the client's connection. After d it sends the rest of the client's request,
// which begins with m, to the server, and waits until the server has answered it.
func (l *link) deliverLate(d time.Duration, m message) {
	rest := bytes.Clone(m)
	for !endsRequest(m) {
		var err error
		if m, err = readTyped(l.fromClient); err != nil {
			return // the client ended in the middle of a request
		}
		rest = append(rest, m...)
	}
	defer l.abandon()()
	l.sleep(d)
	if _, err := l.server.Write(append(rest, terminate...)); err != nil {
		return
	}
	<-l.closed // the server ends the connection when it has answered
}

// sent reports whether a write succeeded. The answers to an orphaned request go nowhere.
func (l *link) sent(err error, from *bufio.Reader) bool {
	if err != nil && l.orphaned.Load() {
		_, _ = io.Copy(io.Discard, from) // until the server ends the connection
	}
	return err == nil
}
