package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Pair is a PostgreSQL and its standby on loopback. They change roles: the standby is promoted when
// the primary has died, and the old primary comes back as the standby by pg_rewind.
type Pair struct {
	*installation
	synchronous bool
	servers     [2]*pairedServer
	primary     int // index in servers
}

// pairedServer is one of the two servers of a Pair.
type pairedServer struct {
	*Postmaster
	name, dir string
	port      int
}

// pairDatabase is the name of the database on both servers.
const pairDatabase = "mlsd"

// WithPair runs play on two servers of ours that use a PostgreSQL with a standby. Their database
// URL names both PostgreSQL. The world's own server runs on, and is not used. If synchronous is
// set, a COMMIT waits for the standby, whenever there is one.
func (w *World) WithPair(ctx context.Context, synchronous bool, play func(*Cluster, *Pair)) {
	pair := Must(newPair(synchronous))
	err := Attempt(func() {
		Check(pair.create(ctx))
		o := ClusterOptions{Nodes: 2, Settings: Must(Unlimited(ctx, w.Server.Binary()))}
		w.withNodes(ctx, pair.url(pairDatabase, 0, 1), o, &Cluster{}, func(f *Cluster) { play(f, pair) })
	})
	Check(errors.Join(err, pair.Close()))
}

// StartPair starts a PostgreSQL and an asynchronous standby with the given settings. The database
// is empty.
func StartPair(ctx context.Context, settings map[string]string) (_ *Pair, err error) {
	defer Catch(&err)
	p := Must(newPair(false))
	for _, server := range p.servers {
		for name, value := range settings {
			server.Set(name, value)
		}
	}
	if err := p.create(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// PrimaryURL is the URL of the primary's database.
func (p *Pair) PrimaryURL() string { return p.url(pairDatabase, p.primary) }

// StandbyURL is the URL of the standby's database.
func (p *Pair) StandbyURL() string { return p.url(pairDatabase, 1-p.primary) }

func newPair(synchronous bool) (_ *Pair, err error) {
	defer Catch(&err)
	p := &Pair{installation: Must(install("pair")), synchronous: synchronous}
	for i, name := range []string{"a", "b"} {
		port, err := freePort()
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(p.home))
		}
		p.servers[i] = &pairedServer{name: name, dir: filepath.Join(p.home, name), port: port}
		p.servers[i].Postmaster = p.postmaster(p.servers[i].dir, port, "", p.url("postgres", i))
		p.servers[i].Set("cluster_name", name)
	}
	return p, nil
}

// url is the URL of a database of the given servers. With several servers, it means the server that
// accepts writes.
func (p *Pair) url(database string, servers ...int) string {
	hosts, query := "", "sslmode=disable"
	for i, at := range servers {
		if i > 0 {
			hosts += ","
			query = "sslmode=disable&target_session_attrs=read-write"
		}
		hosts += fmt.Sprintf("127.0.0.1:%d", p.servers[at].port)
	}
	// net/url does not write several hosts.
	return fmt.Sprintf("postgres://%s@%s/%s?%s", url.UserPassword("mlsd", p.password), hosts, database, query)
}

// create makes the primary with an empty database, and its standby.
func (p *Pair) create(ctx context.Context) (err error) {
	defer Catch(&err)
	a, b := p.servers[0], p.servers[1]
	Check(p.initdb(ctx, a.dir, "mlsd"))
	// The settings are in the file, because pg_rewind starts the server without the command line.
	Check(p.write(filepath.Join(a.dir, "postgresql.conf"),
		"wal_keep_size = 512MB\nmax_connections = 200\nwal_retrieve_retry_interval = 100ms\n"))
	Check(a.Start(ctx))
	Check(a.exec(ctx, `CREATE DATABASE `+pairDatabase))
	Check(p.run(ctx, "pg_basebackup", "--no-sync", "--checkpoint=fast", "--pgdata="+b.dir,
		"--dbname="+a.url))
	return p.follow(ctx, b)
}

// Crash kills all processes of the primary at once.
func (p *Pair) Crash() error { return p.servers[p.primary].kill() }

// Freeze stops all processes of the primary where they are. The kernel still accepts connections,
// but nothing answers. To clients, the machine looks slow.
func (p *Pair) Freeze() error { return p.servers[p.primary].freeze() }

// CutOff ends the stream of WAL to the standby. Later writes are only on the primary.
func (p *Pair) CutOff(ctx context.Context) error {
	standby := p.standby()
	if err := p.configure(standby, "primary_conninfo = ''\n"); err != nil {
		return err
	}
	return xrpc.Until(ctx, stopLimit, func() (bool, error) {
		receivers, err := standby.count(ctx, `SELECT count(*) FROM pg_stat_wal_receiver`)
		return receivers == 0, err
	})
}

// Promote makes the standby the primary. The old primary must have ended, or must be frozen. The
// new primary has no standby, so COMMITs wait for none.
func (p *Pair) Promote(ctx context.Context) (err error) {
	defer Catch(&err)
	standby := p.standby()
	Check(p.configure(standby, ""))
	Check(standby.exec(ctx, `DO $$ BEGIN ASSERT pg_promote(), 'it is not promoted'; END $$`))
	p.primary = 1 - p.primary
	return nil
}

// Rejoin makes the old primary, which has ended, the standby of the new primary. It returns when
// the standby receives WAL.
func (p *Pair) Rejoin(ctx context.Context) (err error) {
	defer Catch(&err)
	// pg_rewind reads the new timeline from the last checkpoint. An old primary that was frozen may
	// not have ended.
	Check(errors.Join(p.standby().kill(), p.servers[p.primary].exec(ctx, `CHECKPOINT`)))
	Check(p.run(ctx, "pg_rewind", "--no-sync", "--target-pgdata="+p.standby().dir,
		"--source-server="+p.servers[p.primary].url))
	return p.follow(ctx, p.standby())
}

func (p *Pair) standby() *pairedServer { return p.servers[1-p.primary] }

// follow starts a server as the standby of the primary.
func (p *Pair) follow(ctx context.Context, standby *pairedServer) (err error) {
	defer Catch(&err)
	primary := p.servers[p.primary]
	conninfo := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=mlsd password=%s'\n", primary.port,
		p.password)
	Check(p.write(filepath.Join(standby.dir, "postgresql.auto.conf"), conninfo))
	Check(p.write(filepath.Join(standby.dir, "standby.signal"), ""))
	Check(standby.Start(ctx))
	state := "async"
	if p.synchronous {
		state = "sync"
		Check(p.configure(primary, fmt.Sprintf("synchronous_standby_names = '%s'\n", standby.name)))
	}
	return errs.Wrap(xrpc.Until(ctx, startLimit, func() (bool, error) {
		n, err := primary.count(ctx,
			`SELECT count(*) FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming' AND sync_state = $2`,
			standby.name, state)
		return n == 1, err
	}), "%s does not become the standby (%s)", standby.name, standby.log)
}

// configure replaces the settings that change with the role, and makes the running server read
// them.
func (p *Pair) configure(s *pairedServer, settings string) error {
	if err := p.write(filepath.Join(s.dir, "postgresql.auto.conf"), settings); err != nil {
		return err
	}
	return s.signal(syscall.SIGHUP)
}

// exec runs a statement as the superuser.
func (s *pairedServer) exec(ctx context.Context, sql string) error {
	return errs.Wrap(Exec(ctx, s.url, sql), "%s", s.name)
}

func (s *pairedServer) count(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = Scan(ctx, s.url, sql, args, &n)
	return n, errs.Wrap(err, "%s", s.name)
}

// AwaitStandby waits until the standby has everything that the primary has written so far.
func (p *Pair) AwaitStandby(ctx context.Context) error {
	primary, end := p.servers[p.primary].url, ""
	if err := Scan(ctx, primary, `SELECT pg_current_wal_lsn()::text`, nil, &end); err != nil {
		return err
	}
	return xrpc.Until(ctx, stopLimit, func() (received bool, err error) {
		err = Scan(ctx, primary, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE flush_lsn >= $1::pg_lsn)`,
			[]any{end}, &received)
		return received, err
	})
}

// Generation returns the id of the event stream's newest generation, and the place after which it
// begins.
func (p *Pair) Generation(ctx context.Context) (id, after int64, err error) {
	err = Scan(ctx, p.PrimaryURL(), `SELECT id, after_seq FROM generations ORDER BY id DESC LIMIT 1`, nil, &id, &after)
	return id, after, err
}

// Close ends both servers and removes their files.
func (p *Pair) Close() error {
	var errs []error
	for _, s := range p.servers {
		if s.child != nil {
			errs = append(errs, s.kill())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(p.home))...)
}
