package push

import (
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"mlsd/features/push/pushtest"
)

// silentProxy forwards connections to a server. Those that it has when hush is called stay open and
// deliver nothing any more.
type silentProxy struct {
	net.Listener
	epoch atomic.Int64
}

func newSilentProxy(t *testing.T, to string) *silentProxy {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &silentProxy{Listener: listen}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			from, err := listen.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { from.Close(); upstream.Close() })
			born := p.epoch.Load()
			running.Go(func() { p.copy(from, upstream, born) })
			running.Go(func() { p.copy(upstream, from, born) })
		}
	})
	t.Cleanup(func() {
		if err := listen.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *silentProxy) copy(to io.Writer, from io.Reader, born int64) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if p.epoch.Load() != born {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *silentProxy) hush() { p.epoch.Add(1) }

// E6: a connection to Apple that has become silent is given up, and the next call uses another.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	if pings.SendPingTimeout <= 0 || pings.SendPingTimeout+pings.PingTimeout > 2*apnsTimeout {
		t.Errorf("a silent connection is found out after %v and %v", pings.SendPingTimeout, pings.PingTimeout)
	}
	apple := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	apple.EnableHTTP2 = true
	apple.StartTLS()
	t.Cleanup(apple.Close)
	proxy := newSilentProxy(t, apple.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(apple.Certificate())
	a, err := newAPNs(testKey(t), "https://"+proxy.Addr().String(), roots,
		http.HTTP2Config{SendPingTimeout: 50 * time.Millisecond, PingTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	call := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return a.call(ctx, Job{ID: uuid.New()},
			Target{Kind: KindAPNs, Address: "c0ffee", Topic: "example.app", Environment: Production})
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	proxy.hush()
	began := time.Now()
	first := call()
	if err := call(); err != nil {
		t.Fatalf("after the connection became silent: %v, then after %v: %v", first, time.Since(began), err)
	}
}

// testKey writes a new key for APNs.
func testKey(t *testing.T) APNsKey {
	t.Helper()
	_, file := pushtest.Key(t)
	return APNsKey{File: file, KeyID: "KEY", TeamID: "TEAM"}
}
