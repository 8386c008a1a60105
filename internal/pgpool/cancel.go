package pgpool

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var errNotCancelled = errors.New("statements are not cancelled")

// neverCancel makes one connection give up a statement without asking the server to cancel it. By
// default the driver sends such a request on a second connection when a context ends.
//
// A COMMIT that waits for a synchronous standby must not be cancelled. PostgreSQL would then end
// the wait and make the transaction visible, although no standby has it. A repetition would find
// the message and be acknowledged, and a failover would lose the message. Without the request, the
// transaction stays invisible and keeps its locks, until a standby has it or the primary ends. All
// other statements end by their time limits.
func neverCancel(cfg *pgx.ConnConfig) {
	var connected atomic.Bool
	dial, after := cfg.DialFunc, cfg.AfterConnect
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() {
			return nil, errNotCancelled
		}
		return dial(ctx, network, address)
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		connected.Store(true)
		if after == nil {
			return nil
		}
		return after(ctx, conn)
	}
}
