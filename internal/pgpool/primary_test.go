package pgpool_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
)

// fakeHost is a server that speaks PostgreSQL's protocol. It can be a standby, and it can hang.
type fakeHost struct {
	listener net.Listener
	received chan string   // statements that contain "write"
	pinged   chan struct{} // gets a value if a ping has come since the last value was taken
	// endsAtExecute makes it end a connection instead of executing a prepared statement.
	endsAtExecute bool
	// outOfStep makes it send one message too early, as a pooler does that mixes up sessions, and end.
	outOfStep bool

	// hangsAtSettings makes it hang as soon as a connection sets its session settings.
	hangsAtSettings bool

	mu       sync.Mutex // guards what follows
	readOnly bool
	hangs    bool
}

func newFakeHost(t *testing.T, readOnly bool) *fakeHost {
	t.Helper()
	return newFakeHostAt(t, "tcp", "127.0.0.1:0", readOnly)
}

func newFakeHostAt(t *testing.T, network, address string, readOnly bool) *fakeHost {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	h := &fakeHost{listener: listener, received: make(chan string, 8), pinged: make(chan struct{}, 1),
		readOnly: readOnly}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			go h.serve(conn)
		}
	}()
	return h
}

// set changes what it is.
func (h *fakeHost) set(readOnly, hangs bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readOnly, h.hangs = readOnly, hangs
}

// serve answers until it hangs. Then it reads on and answers nothing.
func (h *fakeHost) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }() // what the client sees is what the test is about
	backend := pgproto3.NewBackend(conn, conn)
	first, err := backend.ReceiveStartupMessage()
	if _, cancels := first.(*pgproto3.CancelRequest); err != nil || cancels {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		h.mu.Lock()
		readOnly, hangs := h.readOnly, h.hangs
		h.mu.Unlock()
		if !hangs {
			if err := backend.Flush(); err != nil {
				return
			}
		}
		message, err := backend.Receive()
		if err != nil {
			return
		}
		if _, ok := message.(*pgproto3.Execute); ok && h.endsAtExecute {
			return
		}
		if _, ok := message.(*pgproto3.Describe); ok && h.outOfStep {
			backend.Send(&pgproto3.BindComplete{})
			_ = backend.Flush() // what the client sees is what the test is about
			return
		}
		if parse, ok := message.(*pgproto3.Parse); ok && h.hangsAtSettings && strings.Contains(parse.Query, "set_config") {
			h.set(readOnly, true)
			continue
		}
		h.answer(backend, message, readOnly)
	}
}

func (h *fakeHost) answer(backend *pgproto3.Backend, message pgproto3.FrontendMessage, readOnly bool) {
	switch m := message.(type) {
	case *pgproto3.Query:
		if strings.Contains(m.String, "write") {
			h.received <- m.String
		}
		if m.String == "-- ping" {
			select {
			case h.pinged <- struct{}{}:
			default:
			}
		}
		if strings.Contains(m.String, "transaction_read_only") {
			value := map[bool]string{true: "on", false: "off"}[readOnly]
			backend.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("transaction_read_only"),
				DataTypeOID: 25}}})
			backend.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(value)}})
		}
		backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	case *pgproto3.Parse:
		backend.Send(&pgproto3.ParseComplete{})
	case *pgproto3.Bind:
		backend.Send(&pgproto3.BindComplete{})
	case *pgproto3.Describe:
		if m.ObjectType == 'S' {
			backend.Send(&pgproto3.ParameterDescription{})
		}
		backend.Send(&pgproto3.NoData{})
	case *pgproto3.Execute:
		backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	case *pgproto3.Sync:
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

// E7: the primary hangs while it has a statement, and its standby is promoted. The statement ends,
// and the next one goes to the new primary.
func TestPrimaryHangs(t *testing.T) {
	t.Parallel()
	a, b := newFakeHost(t, false), newFakeHost(t, true)
	url := fmt.Sprintf("postgres://mlsd@%s,%s/mlsd?sslmode=disable&target_session_attrs=read-write", a.listener.Addr(),
		b.listener.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	primary, err := pgpool.NewPrimary(url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgpool.Open(ctx, url, primary.Follow)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var running sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer running.Wait()
	defer stop()
	running.Go(func() { primary.Run(watching) })
	if _, err := pool.Exec(ctx, "write 1"); err != nil {
		t.Fatal(err)
	}
	<-a.received
	a.set(false, true)
	hanging := make(chan error, 1)
	go func() {
		_, err := pool.Exec(ctx, "write 2")
		hanging <- err
	}()
	<-a.received
	b.set(false, false)
	if err := <-hanging; !pgpool.Unavailable(err) || !pgpool.OutcomeUnknown(err) {
		t.Errorf("the statement that hung: %v", err)
	}
	if _, err := pool.Exec(ctx, "write 3"); err != nil {
		t.Error(err)
	}
	select {
	case got := <-b.received:
		if got != "write 3" {
			t.Errorf("the new primary got %q", got)
		}
	default:
		t.Error("the new primary got nothing")
	}
}

// The pools connect to the primary, however the URL names its host.
func TestPrimaryInAnotherSpelling(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		make func(t *testing.T) (h *fakeHost, host, port string) // the primary, and how the URL names it
	}{
		{"an IPv6 address", func(t *testing.T) (*fakeHost, string, string) {
			h := newFakeHostAt(t, "tcp", "[::1]:0", false)
			_, port, err := net.SplitHostPort(h.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			return h, "0:0:0:0:0:0:0:1", port
		}},
		{"a linked socket", func(t *testing.T) (*fakeHost, string, string) {
			dir := t.TempDir()
			link := filepath.Join(dir, "link")
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			return newFakeHostAt(t, "unix", filepath.Join(dir, ".s.PGSQL.5432"), false), link, "5432"
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h, host, port := tc.make(t)
			other := newFakeHost(t, true).listener.Addr().(*net.TCPAddr)
			url := fmt.Sprintf("postgres://mlsd@/mlsd?host=%s,127.0.0.1&port=%s,%d&sslmode=disable&"+
				"target_session_attrs=read-write", host, port, other.Port)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			primary, err := pgpool.NewPrimary(url, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			watching, stop := context.WithCancel(ctx)
			defer running.Wait()
			defer stop()
			running.Go(func() { primary.Run(watching) })
			select {
			case <-h.pinged: // so the primary is known
			case <-ctx.Done():
				t.Fatal("nobody watches the primary")
			}
			pool, err := pgpool.Open(ctx, url, primary.Follow)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if _, err := pool.Exec(ctx, "write"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A host that hangs after the login, when the session's settings are set, is given up in time.
func TestHangAtSettings(t *testing.T) {
	t.Parallel()
	host := newFakeHost(t, false)
	host.hangsAtSettings = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pool, err := pgpool.Open(ctx,
		fmt.Sprintf("postgres://mlsd@%s/mlsd?sslmode=disable&connect_timeout=1", host.listener.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "write 1"); err == nil || ctx.Err() != nil {
		t.Errorf("%v, want an error in time", err)
	}
}

// E7: to connect to one host takes three seconds at most, unless the URL says otherwise.
func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{
		"postgres://a,b/mlsd?target_session_attrs=read-write": 3 * time.Second,
		"postgres://a/mlsd?connect_timeout=7":                 7 * time.Second,
	} {
		cfg, err := pgpool.Config(url)
		if err != nil || cfg.ConnConfig.ConnectTimeout != want {
			t.Errorf("%s: %s, %v; want %s", url, cfg.ConnConfig.ConnectTimeout, err, want)
		}
	}
}

// A server whose answers do not fit the requests is one that cannot be reached: nothing was sent that
// could have had an effect, and another connection may do.
func TestOutOfStep(t *testing.T) {
	t.Parallel()
	h := newFakeHost(t, false)
	h.outOfStep = true
	pool, err := pgxpool.New(t.Context(), fmt.Sprintf("postgres://mlsd@%s/mlsd?sslmode=disable", h.listener.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	batch := &pgx.Batch{}
	batch.Queue(`SELECT $1`, "a")
	err = pool.SendBatch(t.Context(), batch).Close()
	if err == nil || !pgpool.Unavailable(err) || pgpool.OutcomeUnknown(err) {
		t.Errorf("a batch: %v: unavailable %v, outcome unknown %v", err, pgpool.Unavailable(err),
			pgpool.OutcomeUnknown(err))
	}
}
