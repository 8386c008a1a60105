package pgpool_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
)

// lostConn notes when the connection is lost. What is written afterwards waits for the end of the
// test.
type lostConn struct {
	net.Conn
	lost *atomic.Bool
	test context.Context
}

func (c *lostConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.lost.Store(true)
	}
	return n, err
}

func (c *lostConn) Write(b []byte) (int, error) {
	if c.lost.Load() {
		<-c.test.Done()
	}
	return c.Conn.Write(b)
}

// L1: a connection that was lost while a transaction waited for its statements made the node panic
// ("slow write timer already active"): the transaction sent on, while the driver ended the
// connection.
func TestLostBeforeCommit(t *testing.T) {
	t.Parallel()
	host := newFakeHost(t, false)
	host.endsAtExecute = true
	cfg, err := pgxpool.ParseConfig("postgres://mlsd@" + host.listener.Addr().String() + "/mlsd?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	test, end := context.WithCancel(t.Context())
	defer end()
	var lost atomic.Bool
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if lost.Load() { // the driver tries to cancel the statement
			return nil, errors.New("the host is down")
		}
		conn, err := dial(ctx, network, address)
		return &lostConn{conn, &lost, test}, err
	}
	pool, err := pgxpool.NewWithConfig(test, cfg)
	if err != nil {
		t.Fatal(err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`SELECT 1`)
	err = pgpool.SendTx(test, pool, batch, func() error { t.Error("it went on to COMMIT"); return nil })
	if !pgpool.Unavailable(err) {
		t.Errorf("the transaction: %v", err)
	}
}
