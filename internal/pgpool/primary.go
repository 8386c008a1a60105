package pgpool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/worker"
)

// Primary knows which host of a database URL accepts writes. It keeps a session on that host. If
// the host does not answer, Primary looks for a host that has been promoted. Then it closes its
// pools' connections to all other hosts, because a host that hangs would keep their statements
// waiting.
//
// It does nothing if the URL names one host, or has no target_session_attrs.
type Primary struct {
	cfg *pgx.ConnConfig // for the session; nil means that there is nothing to do
	log *slog.Logger

	mu      sync.Mutex // guards the fields below
	address string     // the host that accepts writes; "" means not known
	conns   map[*followedConn]struct{}
}

const (
	primaryPing    = time.Second / 2        // how often the session is pinged
	primaryAnswer  = time.Second            // time limit for an answer, and to connect
	primaryAgain   = 100 * time.Millisecond // pause before the next search for a primary
	connectTimeout = 3 * time.Second        // time limit to connect to one host
)

var errNotPrimary = errors.New("another host accepts writes")

// NewPrimary returns the Primary of a URL. Run connects it.
func NewPrimary(url string, log *slog.Logger) (*Primary, error) {
	p := &Primary{log: log, conns: map[*followedConn]struct{}{}}
	cfg, err := config(url, nil)
	if err != nil {
		return nil, err
	}
	if cfg.ConnConfig.ValidateConnect == nil || !severalHosts(cfg.ConnConfig) {
		return p, nil
	}
	p.cfg = cfg.ConnConfig
	if err := SetLater(p.cfg); err != nil {
		return nil, err
	}
	p.cfg.ConnectTimeout = primaryAnswer
	p.cfg.DialFunc = dialled(p.cfg.DialFunc)
	return p, nil
}

func severalHosts(cfg *pgx.ConnConfig) bool {
	for _, other := range cfg.Fallbacks { // with sslmode=prefer a host has two entries
		if other.Host != cfg.Host || other.Port != cfg.Port {
			return true
		}
	}
	return false
}

// dialledConn is a connection whose RemoteAddr is the address that was dialled. The operating
// system names the same host in another way if the URL has a long form of an IPv6 address, or the
// path of a socket through a symbolic link.
type dialledConn struct {
	net.Conn
	address dialledAddr
}

type dialledAddr struct{ network, address string }

// Network implements net.Addr.
func (a dialledAddr) Network() string { return a.network }

// String implements net.Addr.
func (a dialledAddr) String() string { return a.address }

// RemoteAddr implements net.Conn.
func (c dialledConn) RemoteAddr() net.Addr { return c.address }

// dialled makes dial return a dialledConn.
func dialled(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return dialledConn{conn, dialledAddr{network, address}}, nil
	}
}

// Follow makes a pool connect only to the primary, while the primary is known.
func (p *Primary) Follow(cfg *pgxpool.Config) {
	if p.cfg == nil {
		return
	}
	dial := dialled(cfg.ConnConfig.DialFunc)
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if !p.allows(address) {
			return nil, errNotPrimary
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return p.follow(conn, address)
	}
}

func (p *Primary) allows(address string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address == "" || p.address == address
}

// followedConn is a connection of a pool.
type followedConn struct {
	net.Conn
	primary *Primary
	address string // the RemoteAddr, which is the dialled address
}

func (p *Primary) follow(conn net.Conn, address string) (net.Conn, error) {
	c := &followedConn{conn, p, address}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.address != "" && p.address != address { // the primary has changed meanwhile
		return nil, errors.Join(errNotPrimary, conn.Close())
	}
	p.conns[c] = struct{}{}
	return c, nil
}

// Close implements net.Conn.
func (c *followedConn) Close() error {
	c.primary.mu.Lock()
	delete(c.primary.conns, c)
	c.primary.mu.Unlock()
	return c.Conn.Close()
}

// Run watches the primary until ctx ends.
func (p *Primary) Run(ctx context.Context) {
	if p.cfg == nil {
		return
	}
	for last := ""; ctx.Err() == nil; {
		session, err := p.search(ctx, last)
		if err == nil {
			address := session.PgConn().Conn().RemoteAddr().String()
			p.promoted(ctx, last, address)
			last = address
			err = p.hold(ctx, session)
		}
		if p.lost() && ctx.Err() == nil {
			p.log.WarnContext(ctx, "the database's primary does not answer", "host", last, "error", err)
		}
		worker.Pause(ctx, primaryAgain)
	}
}

// search connects to the host that accepts writes. A standby may have been promoted while the last
// primary hangs, so search tries the other hosts first.
func (p *Primary) search(ctx context.Context, last string) (*pgx.Conn, error) {
	others := p.cfg.Copy()
	others.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == last {
			return nil, errNotPrimary
		}
		return p.cfg.DialFunc(ctx, network, address)
	}
	session, err := pgx.ConnectConfig(ctx, others)
	if err != nil && last != "" {
		session, err = pgx.ConnectConfig(ctx, p.cfg)
	}
	return session, errs.Wrap(err, "find the primary")
}

// hold returns when the session no longer answers, or ctx has ended.
func (p *Primary) hold(ctx context.Context, session *pgx.Conn) (err error) {
	for err == nil && ctx.Err() == nil {
		worker.Pause(ctx, primaryPing)
		asking, cancel := context.WithTimeout(ctx, primaryAnswer)
		err = session.Ping(asking)
		cancel()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), primaryAnswer)
	defer cancel()
	return errors.Join(err, session.Close(closing))
}

// promoted records the primary, and closes the connections to other hosts.
func (p *Primary) promoted(ctx context.Context, last, address string) {
	p.mu.Lock()
	p.address = address
	var others []*followedConn
	for c := range p.conns {
		if c.address != address {
			others = append(others, c)
		}
	}
	p.mu.Unlock()
	for _, c := range others {
		if err := c.Close(); err != nil {
			p.log.DebugContext(ctx, "a connection to another host was closed already", "error", err)
		}
	}
	if last != "" && last != address {
		p.log.WarnContext(ctx, "the database has another primary", "host", address, "before", last, "closed", len(others))
	}
}

// lost makes the pools try all hosts. It reports whether the primary was known.
func (p *Primary) lost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.address != ""
	p.address = ""
	return known
}

// boundConnect limits the time to connect to each host, because the driver would wait for minutes.
// connect_timeout in the URL overrides the limit.
func boundConnect(cfg *pgconn.Config) {
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, connectTimeout)
}
