package pgpool_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// E11: mlsd works with a pooler that gives each connection a session of its own, and refuses one
// that does not. The pooler refuses most parameters at the start of a connection, as PgBouncer does.
func TestPooler(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode string
		want error
	}{{"session", nil}, {"transaction", pgpool.ErrSharedSessions}, {"statement", pgpool.ErrSharedSessions}} {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			through := newPooler(t, pgtest.EmptyURL(t), tt.mode).url()
			conn, err := pgx.Connect(t.Context(), through)
			if err != nil {
				t.Fatal(err)
			}
			if err := pgpool.CheckSessions(t.Context(), conn); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err := conn.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if tt.want != nil {
				return
			}
			pool, err := pgpool.Open(t.Context(), through)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			var timeout, level string
			err = pool.QueryRow(t.Context(),
				`SELECT current_setting('lock_timeout'), current_setting('transaction_isolation')`).Scan(&timeout, &level)
			if err != nil || timeout != "2s" || level != "read committed" {
				t.Errorf("lock_timeout %q, isolation %q, %v", timeout, level, err)
			}
			migrate, err := pgpool.ConnectToMigrate(t.Context(), through)
			if err != nil {
				t.Fatal(err)
			}
			if err := migrate.QueryRow(t.Context(), `SELECT current_setting('statement_timeout')`).Scan(&timeout); err != nil ||
				timeout != "0" {
				t.Errorf("statement_timeout %q, %v", timeout, err)
			}
			if err := migrate.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without a pooler one connection is enough.
func TestDirectSession(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(pgtest.EmptyURL(t))
	if err != nil {
		t.Fatal(err)
	}
	dial, connections := cfg.DialFunc, 0
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		connections++
		return dial(ctx, network, address)
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pgpool.CheckSessions(t.Context(), conn), conn.Close(context.Background())); err != nil ||
		connections != 1 {
		t.Errorf("%d connections, %v", connections, err)
	}
}

// pooler stands for PgBouncer. A connection gets a session for as long as the mode says.
type pooler struct {
	t      *testing.T
	listen net.Listener
	mode   string // session, transaction or statement
	target *pgx.ConnConfig

	mu   sync.Mutex
	idle []*pgproto3.Frontend // sessions that no connection has; the last one is used first
}

func newPooler(t *testing.T, target, mode string) *pooler {
	t.Helper()
	cfg, err := pgx.ParseConfig(target)
	if err != nil {
		t.Fatal(err)
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{t: t, listen: listen, mode: mode, target: cfg}
	t.Cleanup(func() { _ = listen.Close() })
	go func() {
		for {
			conn, err := listen.Accept()
			if err != nil {
				return // the test is over
			}
			t.Cleanup(func() { _ = conn.Close() }) // the client has closed it already, as a rule
			go p.serve(conn)
		}
	}()
	return p
}

func (p *pooler) url() string {
	u := url.URL{Scheme: "postgres", User: url.User(p.target.User), Host: p.listen.Addr().String(),
		Path: "/" + p.target.Database, RawQuery: "sslmode=disable"}
	return u.String()
}

// serve relays the statements of one connection until it ends.
func (p *pooler) serve(conn net.Conn) {
	client := pgproto3.NewBackend(conn, conn)
	refuse := func(message string) {
		client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01", Message: message})
		_ = client.Flush()
		_ = conn.Close()
	}
	first, err := client.ReceiveStartupMessage()
	start, ok := first.(*pgproto3.StartupMessage)
	if err != nil || !ok {
		_ = conn.Close()
		return
	}
	for name := range start.Parameters {
		switch name {
		case "user", "database", "application_name", "client_encoding", "timezone", "DateStyle",
			"standard_conforming_strings":
		default:
			refuse("unsupported startup parameter: " + name)
			return
		}
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1 << 30, SecretKey: binary.BigEndian.AppendUint32(nil, 7)})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if client.Flush() != nil {
		return
	}
	var session *pgproto3.Frontend
	for {
		message, err := client.Receive()
		if err != nil {
			return // the client has closed the connection
		}
		if query, ok := message.(*pgproto3.Query); ok && p.mode == "statement" && query.String == "BEGIN" {
			refuse("transaction blocks not allowed in statement pooling mode")
			return
		}
		if _, end := message.(*pgproto3.Terminate); end {
			_ = conn.Close()
			return
		}
		if session == nil {
			if session, err = p.acquire(); err != nil {
				refuse(err.Error())
				return
			}
		}
		session.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			status, err := relay(session, client)
			if err != nil {
				_ = conn.Close()
				return
			}
			if p.mode != "session" && status == 'I' {
				p.release(session)
				session = nil
			}
		}
	}
}

// relay passes on what the server answers to one request, and returns the state of the transaction.
func relay(session *pgproto3.Frontend, client *pgproto3.Backend) (status byte, err error) {
	if err := session.Flush(); err != nil {
		return 0, err
	}
	for {
		answer, err := session.Receive()
		if err != nil {
			return 0, err
		}
		client.Send(answer)
		if err := client.Flush(); err != nil {
			return 0, err
		}
		if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus, nil
		}
	}
}

func (p *pooler) acquire() (*pgproto3.Frontend, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		session := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return session, nil
	}
	conn, err := pgx.ConnectConfig(context.Background(), p.target)
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	hijacked, err := conn.PgConn().Hijack()
	if err != nil {
		return nil, fmt.Errorf("take the connection: %w", err)
	}
	p.t.Cleanup(func() { _ = hijacked.Conn.Close() }) // the end of the test drops the database
	return hijacked.Frontend, nil
}

func (p *pooler) release(session *pgproto3.Frontend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, session)
}
