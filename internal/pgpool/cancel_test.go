package pgpool_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// endingConn tells when its client ends the session. The driver does so after it has asked the server
// to cancel, if it asks.
type endingConn struct {
	net.Conn
	ending func()
}

func (c *endingConn) Write(b []byte) (int, error) {
	const terminate = 'X'
	n, err := c.Conn.Write(b)
	if len(b) > 0 && b[0] == terminate {
		c.ending()
	}
	return n, err
}

// A COMMIT waits for a synchronous standby that is away, and its caller gives up. Nobody may see the
// transaction, because a failover would lose it.
func TestCommitIsNotCancelled(t *testing.T) {
	t.Parallel()
	servers := pgtest.NewPair(t)
	admin := servers.Pool()
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE effects (id int)`)
	exec(`ALTER SYSTEM SET synchronous_standby_names = 'away'`)
	exec(`SELECT pg_reload_conf()`)
	var dialled atomic.Int64
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	counted := func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled.Add(1)
			conn, err := dial(ctx, network, address)
			return &endingConn{conn, end}, err
		}
	}
	db, err := pgpool.Open(t.Context(), servers.Primary, counted)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx := pgpool.NewTransaction(conn, "")
	if _, err := tx.Exec(t.Context(), `INSERT INTO effects VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { got <- tx.Commit(ctx) }()
	awaitSyncRep(t, admin)
	giveUp()
	if err := <-got; !pgpool.OutcomeUnknown(err) {
		t.Errorf("%v", err)
	}
	<-ended
	if n := dialled.Load(); n != 1 {
		t.Errorf("%d connections for one transaction: its COMMIT was cancelled", n)
	}
	var visible int
	if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM effects`).Scan(&visible); err != nil || visible != 0 {
		t.Errorf("%d rows are visible, %v", visible, err)
	}
	exec(`ALTER SYSTEM RESET synchronous_standby_names`) // else the pool waits for the end of the session
	exec(`SELECT pg_reload_conf()`)
}

// awaitSyncRep asks the server until a session waits for a synchronous standby: nothing signals that.
func awaitSyncRep(t *testing.T, db pgpool.Queryer) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		var waiting bool
		err := db.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		if waiting {
			return
		}
	}
	t.Fatal("no session waits for a synchronous standby")
}
