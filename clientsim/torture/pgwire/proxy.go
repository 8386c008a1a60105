// Package pgwire is a proxy in front of PostgreSQL that injects faults. It knows where messages of
// the wire protocol begin and end, in both directions, and which of them commit. So it can lose
// exactly the answer to a COMMIT. It has no TLS and listens on loopback.
package pgwire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy forwards connections to one PostgreSQL. It is safe for concurrent use.
type Proxy struct {
	listen  net.Listener
	network string // of PostgreSQL
	address string
	healed  chan struct{} // closed by Heal
	done    sync.WaitGroup
	orphans atomic.Int64 // links whose client is gone, while the server still runs its statement

	mu     sync.Mutex // guards what follows
	armed  []Fault
	fired  map[string]int
	links  map[*link]struct{}
	closed bool
}

// New listens on loopback, and forwards to the server of a database URL.
func New(databaseURL string) (*Proxy, error) {
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("pgwire: %w", err)
	}
	p := &Proxy{healed: make(chan struct{}), fired: map[string]int{}, links: map[*link]struct{}{}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	if p.listen, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("pgwire: %w", err)
	}
	p.done.Go(p.accept)
	return p, nil
}

// Through returns a database URL that goes through the proxy.
func (p *Proxy) Through(databaseURL string) (string, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", fmt.Errorf("pgwire: %w", err)
	}
	query := u.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	u.Host, u.RawQuery = p.listen.Addr().String(), query.Encode()
	return u.String(), nil
}

// Arm makes the fault hit the next message at its point, once, on whichever connection that message
// comes.
func (p *Proxy) Arm(f Fault) error {
	if !f.Valid() {
		return fmt.Errorf("pgwire: %s cannot happen", f.Name())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, f)
	return nil
}

// take returns the first armed fault for one of the points, and disarms it.
func (p *Proxy) take(points []Point) (Fault, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.armed, func(f Fault) bool { return slices.Contains(points, f.Point) })
	if i < 0 {
		return Fault{}, false
	}
	f := p.armed[i]
	p.armed = slices.Delete(p.armed, i, i+1)
	p.fired[f.Name()]++
	return f, true
}

// Disarm disarms the faults that have not happened yet.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = nil
}

// Fired counts the faults that happened, by name.
func (p *Proxy) Fired() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.fired)
}

// Heal disarms all faults and ends the faults that are in effect. It is called once.
func (p *Proxy) Heal() {
	p.Disarm()
	close(p.healed)
}

// CutAll ends all connections.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Close stops listening, ends all connections and waits for them.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listen.Close()
	p.CutAll()
	p.done.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // out of descriptors, or the client has gone
		}
		p.done.Go(func() { p.serve(client) })
	}
}

// serve forwards one connection until it ends. A client whose server cannot be reached is
// disconnected.
func (p *Proxy) serve(client net.Conn) {
	server, err := (&net.Dialer{}).DialContext(context.Background(), p.network, p.address)
	if err != nil {
		_ = client.Close()
		return
	}
	l := newLink(p, client, server)
	if !p.add(l) {
		l.cut()
		return
	}
	l.run()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// add keeps the link for CutAll, unless the proxy is closed.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.links[l] = struct{}{}
	}
	return !p.closed
}
