package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/time/rate"
)

// The rate at which new connections are accepted: a quarter of the processors' time, about. When many
// clients come at once, the rest is left to those that are connected already. The others wait in the
// kernel's queue.
const (
	newcomersPerSecond = 4000 // for each processor
	newcomersAtOnce    = 16   // for each processor
)

// newcomers accepts the connections of another listener at a limited rate.
type newcomers struct {
	net.Listener
	rate *rate.Limiter
}

func paceNewcomers(l net.Listener) *newcomers {
	processors := runtime.GOMAXPROCS(0)
	return &newcomers{l, rate.NewLimiter(rate.Limit(newcomersPerSecond*processors), newcomersAtOnce*processors)}
}

// Accept waits for the next connection, and until it may be accepted.
func (n *newcomers) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := n.rate.Wait(context.Background()); err != nil {
		return nil, errors.Join(fmt.Errorf("pace a new connection: %w", err), conn.Close())
	}
	return conn, nil
}
