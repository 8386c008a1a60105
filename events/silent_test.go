package events_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/worker"
)

// silencePatience is how long these tests wait. It is shorter than a minute, the limit of a round
// before.
const silencePatience = 40 * time.Second

// silentNetwork is a way to the database. The connections that exist when hush is called stay open
// and deliver nothing any more.
type silentNetwork struct {
	epoch atomic.Int64
	mu    sync.Mutex
	all   []net.Conn
}

func (s *silentNetwork) hush() { s.epoch.Add(1) }

// end closes all connections.
func (s *silentNetwork) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		c.Close()
	}
}

// pool returns a pool of two connections that go this way. pgx takes 15 seconds to close one that
// is silent. The end of the test does not wait for that: it ends all of them.
func (s *silentNetwork) pool(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := db.Config()
	cfg.MaxConns = 2
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		server, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		client, middle := net.Pipe()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, middle)
		born := s.epoch.Load()
		go s.forward(middle, server, born)
		go s.forward(server, middle, born)
		return client, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		pool.Close()
	})
	return pool
}

// forward copies until an end is closed, and then closes both.
func (s *silentNetwork) forward(to io.WriteCloser, from io.ReadCloser, born int64) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if s.epoch.Load() != born {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// E7: a connection that has become silent stops the presence for one interval, which is shorter
// than the lease.
func TestPresenceOverASilentConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var network silentNetwork
	p := events.NewPresence(network.pool(t, w.db), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx, worker.NewRounds(worker.Clock{}), time.Second)
	}()
	defer func() { cancel(); <-ended }()
	p.Connect(alice, "phone", true)
	w.appears(t, alice)
	network.hush()
	p.Connect(bob, "phone", true)
	w.appears(t, bob)
}

// appears waits until somebody counts as connected.
func (w *world) appears(t *testing.T, who any) {
	t.Helper()
	var there bool
	for deadline := time.Now().Add(silencePatience); !there && time.Now().Before(deadline); {
		if err := w.db.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_sleep(0.05), presence WHERE did = $1`,
			who).Scan(&there); err != nil {
			t.Fatal(err)
		}
	}
	if !there {
		t.Fatalf("%s is not connected after %s", who, silencePatience)
	}
}

// E7: a listener whose connection is silent from the beginning takes another one.
func TestListenOverASilentConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var network silentNetwork
	pool := network.pool(t, w.db)
	n := w.node(t, func(c *events.HubConfig) { c.DB = pool })
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	network.hush()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		events.Listen(ctx, n.hub, n.seq)
	}()
	defer func() { cancel(); <-ended }()
	var there bool
	for deadline := time.Now().Add(silencePatience); !there && time.Now().Before(deadline); {
		err := w.db.QueryRow(t.Context(), `
			SELECT count(*) > 0 FROM pg_sleep(0.05), pg_stat_activity WHERE datname = current_database() AND query LIKE
				'LISTEN mlsd%'`).Scan(&there)
		if err != nil {
			t.Fatal(err)
		}
	}
	if !there {
		t.Fatalf("nobody listens after %s", silencePatience)
	}
}
