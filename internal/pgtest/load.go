package pgtest

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Trips counts round trips to the database.
type Trips struct{ n atomic.Int64 }

// CountTrips makes the pool count its round trips. A round trip is a wait for an answer after a
// write.
func CountTrips(trips *Trips) Option {
	return func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn, trips: trips}, nil
		}
	}
}

// Count returns the number of round trips so far.
func (t *Trips) Count() int64 { return t.n.Load() }

// countedConn counts the first read after each write. The driver can read and write in different
// goroutines.
type countedConn struct {
	net.Conn
	trips *Trips
	sent  atomic.Bool
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.sent.Store(true)
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.sent.Swap(false) {
		c.trips.n.Add(1)
	}
	return n, err
}

// Load is the rate and the duration of a number of calls.
type Load struct {
	Rate float64       // calls per second
	P50  time.Duration // median duration of a call
}

// Run makes n calls, inFlight at a time, and returns their rate and duration. The first call that
// fails ends the test.
func Run(t testing.TB, inFlight, n int, call func(ctx context.Context, i int) error) Load {
	t.Helper()
	took := make([]time.Duration, n)
	var next atomic.Int64
	var calling sync.WaitGroup
	begun := time.Now()
	for range inFlight {
		calling.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && !t.Failed(); i = next.Add(1) - 1 {
				at := time.Now()
				if err := call(t.Context(), int(i)); err != nil {
					t.Errorf("call %d: %v", i, err)
				}
				took[i] = time.Since(at)
			}
		})
	}
	calling.Wait()
	all := time.Since(begun)
	if t.Failed() {
		t.FailNow()
	}
	slices.Sort(took)
	return Load{Rate: float64(n) / all.Seconds(), P50: took[n/2]}
}
