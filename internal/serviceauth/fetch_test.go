package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/net/dns/dnsmessage"

	"mlsd/internal/limit"
	"mlsd/internal/ssrf"
)

// A public name whose DNS answer is a loopback address gets no connection (DNS rebinding).
func TestDNSRebinding(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			reached.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	for _, allow := range []bool{false, true} {
		client := publicClient(allow, fakeDNS(t, &asked, [4]byte{127, 0, 0, 1}))
		one := lookups{unknown: limit.Rate{PerSecond: 1, Burst: 1}, inFlight: 1, unverified: 1}
		_, err := newSource(client, one).get(t.Context(), lookup{url: "https://rebind.test:" + port + "/"})
		if forbidden := errors.Is(err, ssrf.ErrForbidden) && errors.Is(err, ErrIssuer); forbidden == allow || err == nil {
			t.Errorf("loopback allowed: %t: %v", allow, err)
		}
		if got := reached.Load() > 0; got != allow {
			t.Errorf("loopback allowed: %t: reached: %t", allow, got)
		}
	}
	if asked.Load() == 0 {
		t.Error("the DNS was not asked: the test shows nothing")
	}
}

// A did:web whose host has no name does not exist. If the PLC directory has no name, it fails, and no
// account loses its key.
func TestNoSuchHost(t *testing.T) {
	t.Parallel()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		},
	}}
	for _, l := range []lookup{{url: "https://plc.test/did:plc:a"}, {url: "https://web.test/", domain: "web.test"}} {
		_, err := newSource(client, webLookups()).get(t.Context(), l)
		if web := l.domain != ""; errors.Is(err, ErrIssuer) != web || outage(err) == web {
			t.Errorf("%s: %v", l.url, err)
		}
	}
}

// fakeDNS returns a resolver that answers every A question with ip.
func fakeDNS(t *testing.T, asked *atomic.Int32, ip [4]byte) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			asked.Add(1)
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: ip},
				}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: dialer(conn.LocalAddr().String())}
}

// A source returns ErrBusy if its rate limit is reached, or all its slots are taken.
func TestSourceLimits(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-leave
		_, _ = io.WriteString(w, "{}")
	}))
	defer server.Close()
	s := newSource(plainClient(), lookups{unknown: limit.Rate{Burst: 2}, inFlight: 1, unverified: 1})
	first := make(chan error)
	go func() {
		_, err := s.get(t.Context(), lookup{url: server.URL})
		first <- err
	}()
	<-entered
	ctx, cancel := contextDone(t)
	defer cancel()
	if _, err := s.get(ctx, lookup{url: server.URL}); !errors.Is(err, ErrBusy) {
		t.Errorf("no slot: %v, want ErrBusy", err)
	}
	if _, err := s.get(t.Context(), lookup{url: server.URL}); !errors.Is(err, ErrBusy) {
		t.Errorf("rate limit: %v, want ErrBusy", err)
	}
	close(leave)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// H9: hosts that answer slowly keep few slots if they are in one registered domain, and never those
// of accounts that verified before.
func TestTarpitsHoldFewSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int32
		s := newSource(&http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "honest.example" {
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, nil
			}
			held.Add(1)
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}, webLookups())
		var wg sync.WaitGroup
		defer wg.Wait()
		ask := func(domain string, n int) {
			for range n {
				wg.Go(func() {
					if _, err := s.get(context.WithoutCancel(t.Context()),
						lookup{url: "https://" + domain, domain: domain}); err == nil {
						t.Error("the tarpit has answered")
					}
				})
			}
			synctest.Wait()
		}
		honest := lookup{url: "https://honest.example", domain: "honest.example"}
		ask("tarpit.example", 32)
		if got := int(held.Load()); int64(got) != s.domains.Share {
			t.Errorf("%d requests at once in one domain, want %d", got, s.domains.Share)
		}
		if _, err := s.get(t.Context(), honest); err != nil {
			t.Errorf("beside the tarpits of one domain: %v", err)
		}
		for i := range 8 {
			ask(fmt.Sprintf("tarpit%d.example", i), 4)
		}
		if got, _ := s.slots.Used(); got != s.unverified.Size {
			t.Errorf("unverified accounts have %d slots, want %d", got, s.unverified.Size)
		}
		honest.known = true
		if _, err := s.get(t.Context(), honest); err != nil {
			t.Errorf("beside the tarpits of many domains: %v", err)
		}
	})
}

// roundTrip is a function that is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// While the PLC directory is down, a look-up without a place reports the outage, during which known
// keys stay in use. A directory that refuses requests for their number is not down.
func TestSourceIsDown(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	s := newSource(plainClient(), lookups{unknown: limit.Rate{Burst: 2 * failuresOfOutage}, inFlight: 1, unverified: 1})
	for _, code := range []int32{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		status.Store(code)
		for range failuresOfOutage {
			if _, err := s.get(t.Context(), lookup{url: server.URL}); outage(err) != (code == http.StatusServiceUnavailable) {
				t.Errorf("%d: %v", code, err)
			}
		}
		if s.down() != (code == http.StatusServiceUnavailable) {
			t.Errorf("after %d: down is %t", code, s.down())
		}
	}
	if _, err := s.get(t.Context(), lookup{url: server.URL}); !outage(err) {
		t.Errorf("without a place: %v, want the outage", err)
	}
}

// A did:web account's domain is the one that somebody registered.
func TestRegistrable(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"example.com": "example.com", "a.b.Example.com": "example.com", "a.example.co.uk": "example.co.uk",
		"alice.github.io": "alice.github.io", "github.io": "github.io",
	} {
		if got := registrable(host); got != want {
			t.Errorf("registrable(%s) = %s, want %s", host, got, want)
		}
	}
}
