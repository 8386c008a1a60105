package node

import (
	"errors"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// crowd is a listener at which any number of clients wait.
type crowd struct{ net.Listener }

func (crowd) Accept() (net.Conn, error) { return &net.TCPConn{}, nil }

// closedListener is a listener that has been closed.
type closedListener struct{ net.Listener }

func (closedListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }

// Of many clients that come at once, some are accepted at once and the others one by one.
func TestNewcomers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, begun, processors := paceNewcomers(crowd{}), time.Now(), runtime.GOMAXPROCS(0)
		const seconds = 3
		for range processors * (newcomersAtOnce + seconds*newcomersPerSecond) {
			if _, err := l.Accept(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun).Round(time.Millisecond); took != seconds*time.Second {
			t.Errorf("accepted in %s, want %d s", took, seconds)
		}
		if _, err := paceNewcomers(closedListener{}).Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed listener: %v", err)
		}
	})
}
