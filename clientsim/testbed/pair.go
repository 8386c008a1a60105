package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Pair is a PostgreSQL and its standby on loopback. They change roles: the standby is promoted when
// the primary has died, and the old primary comes back as the standby by pg_rewind.
type Pair struct {
	programs    string // directory of initdb, pg_basebackup and pg_rewind
	home        string
	password    string
	owner       *syscall.Stat_t // of both servers
	synchronous bool
	servers     [2]*pairedServer
	primary     int // index in servers
}

// pairedServer is one of the two.
type pairedServer struct {
	*Postmaster
	name, dir string
	port      int
}

// pairDatabase is the name of the database that both have.
const pairDatabase = "mlsd"

// StandbyPrograms returns the directory of an installed PostgreSQL that has what a standby needs.
func StandbyPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", fmt.Errorf("PostgreSQL: %w", err)
	}
	for _, dir := range slices.Concat(filepath.SplitList(os.Getenv("PATH")), found) {
		missing := slices.ContainsFunc([]string{"initdb", "postgres", "pg_basebackup", "pg_rewind"},
			func(program string) bool {
				_, err := os.Stat(filepath.Join(dir, program))
				return err != nil
			})
		if filepath.IsAbs(dir) && !missing {
			return filepath.EvalSymlinks(dir)
		}
	}
	return "", errors.New("needs an installed PostgreSQL with pg_basebackup and pg_rewind")
}

// WithPair runs play on two servers that use a PostgreSQL with a standby. Their URL names both. The
// world's own server runs on, without anything to do. If synchronous is set, a COMMIT waits until
// the standby has it, whenever there is one.
func (w *World) WithPair(ctx context.Context, synchronous bool, play func(*Cluster, *Pair) error) (err error) {
	pair, err := newPair(synchronous)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	if err := pair.create(ctx); err != nil {
		return err
	}
	unlimited, err := Unlimited(ctx, w.Server.Binary())
	if err != nil {
		return err
	}
	o := ClusterOptions{Nodes: 2, Settings: unlimited}
	return w.withNodes(ctx, pair.url(pairDatabase, 0, 1), o, &Cluster{}, func(f *Cluster) error { return play(f, pair) })
}

// StartPair starts a PostgreSQL and an asynchronous standby with the given settings. The database is
// empty.
func StartPair(ctx context.Context, settings map[string]string) (*Pair, error) {
	p, err := newPair(false)
	if err != nil {
		return nil, err
	}
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

// PrimaryURL is the URL of the primary's database, and StandbyURL that of the standby's.
func (p *Pair) PrimaryURL() string { return p.url(pairDatabase, p.primary) }

// StandbyURL is the URL of the standby's database.
func (p *Pair) StandbyURL() string { return p.url(pairDatabase, 1-p.primary) }

func newPair(synchronous bool) (_ *Pair, err error) {
	defer Catch(&err)
	p := &Pair{password: fmt.Sprintf("%x", mlsclient.RandomBytes(16)), synchronous: synchronous}
	p.programs = Must(StandbyPrograms())
	p.owner = Must(databaseAccount())
	p.home = Must(os.MkdirTemp("", "clientsim-pair-"))
	if err := os.Chown(p.home, int(p.owner.Uid), int(p.owner.Gid)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.home))
	}
	for i, name := range []string{"a", "b"} {
		port, err := freePort()
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(p.home))
		}
		p.servers[i] = &pairedServer{name: name, dir: filepath.Join(p.home, name), port: port}
		p.servers[i].Postmaster = &Postmaster{
			args: []string{
				filepath.Join(p.programs, "postgres"), "-D", p.servers[i].dir, "-c", "port=" + strconv.Itoa(port),
				"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "cluster_name=" + name,
			},
			owner: p.owner, url: p.url("postgres", i), log: newLastLines(40),
		}
	}
	return p, nil
}

// databaseAccount is the account that PostgreSQL runs as: this process's own, or postgres if that is
// root, as which PostgreSQL does not run.
func databaseAccount() (*syscall.Stat_t, error) {
	if os.Geteuid() != 0 {
		return &syscall.Stat_t{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("uid of postgres: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("gid of postgres: %w", err)
	}
	return &syscall.Stat_t{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// url is the URL of a database of the given servers. Of several, the one is meant that accepts
// writes.
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

// run runs a program of PostgreSQL as its account.
func (p *Pair) run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(p.programs, program), args...)
	cmd.Dir = p.home
	cmd.Env = []string{"PATH=" + p.programs + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "PGPASSWORD=" + p.password}
	runAs(cmd, p.owner)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, output)
	}
	return nil
}

// create makes the primary with an empty database, and its standby.
func (p *Pair) create(ctx context.Context) (err error) {
	defer Catch(&err)
	secret := filepath.Join(p.home, "password")
	Check(os.WriteFile(secret, []byte(p.password+"\n"), 0o600))
	Check(os.Chown(secret, int(p.owner.Uid), int(p.owner.Gid)))
	a, b := p.servers[0], p.servers[1]
	Check(p.run(ctx, "initdb", "--no-sync", "--pgdata="+a.dir, "--username=mlsd", "--pwfile="+secret,
		"--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--data-checksums"))
	// In the file and not on the command line: pg_rewind starts the server without it.
	Check(p.write(a, "postgresql.conf",
		"wal_keep_size = 512MB\nmax_connections = 200\nwal_retrieve_retry_interval = 100ms\n"))
	Check(a.Start(ctx))
	Check(a.exec(ctx, `CREATE DATABASE `+pairDatabase))
	Check(p.run(ctx, "pg_basebackup", "--no-sync", "--checkpoint=fast", "--pgdata="+b.dir,
		"--dbname="+a.url))
	return p.follow(ctx, b)
}

// Crash kills all processes of the primary at once.
func (p *Pair) Crash() error { return p.servers[p.primary].kill() }

// Freeze stops all processes of the primary where they are. Its kernel still accepts connections,
// and nothing is answered: clients cannot tell that from a machine that is slow.
func (p *Pair) Freeze() error { return p.servers[p.primary].freeze() }

// CutOff ends the stream of WAL to the standby. What is written from then on is only on the primary.
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

// Promote makes the standby the primary. The old one must have ended, or must be frozen. The new one
// has no standby, so COMMITs wait for none.
func (p *Pair) Promote(ctx context.Context) (err error) {
	defer Catch(&err)
	standby := p.standby()
	Check(p.configure(standby, ""))
	Check(standby.exec(ctx, `DO $$ BEGIN ASSERT pg_promote(), 'it is not promoted'; END $$`))
	p.primary = 1 - p.primary
	return nil
}

// Rejoin makes the old primary, which has ended, the standby of the new one. It returns once the
// standby receives WAL.
func (p *Pair) Rejoin(ctx context.Context) (err error) {
	defer Catch(&err)
	// pg_rewind reads the new timeline from the last checkpoint. The old primary possibly has not
	// ended if it was frozen.
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
	Check(p.write(standby, "postgresql.auto.conf", conninfo))
	Check(p.write(standby, "standby.signal", ""))
	Check(standby.Start(ctx))
	state := "async"
	if p.synchronous {
		state = "sync"
		Check(p.configure(primary, fmt.Sprintf("synchronous_standby_names = '%s'\n", standby.name)))
	}
	err = xrpc.Until(ctx, startLimit, func() (bool, error) {
		n, err := primary.count(ctx,
			`SELECT count(*) FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming' AND sync_state = $2`,
			standby.name, state)
		return n == 1, err
	})
	if err != nil {
		return fmt.Errorf("%s does not become the standby: %w\n%s", standby.name, err, standby.log)
	}
	return nil
}

// configure replaces the settings that change with the role, and makes the running server read them.
func (p *Pair) configure(s *pairedServer, settings string) error {
	if err := p.write(s, "postgresql.auto.conf", settings); err != nil {
		return err
	}
	return s.signal(syscall.SIGHUP)
}

// write writes a file of a server's data directory.
func (p *Pair) write(s *pairedServer, name, text string) error {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Chown(path, int(p.owner.Uid), int(p.owner.Gid))
}

// exec runs a statement as the superuser.
func (s *pairedServer) exec(ctx context.Context, sql string) error {
	return s.query(ctx, func(db *pgx.Conn) error {
		_, err := db.Exec(ctx, sql)
		return err
	})
}

func (s *pairedServer) count(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = s.query(ctx, func(db *pgx.Conn) error { return db.QueryRow(ctx, sql, args...).Scan(&n) })
	return n, err
}

func (s *pairedServer) query(ctx context.Context, do func(*pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := InDatabase(ctx, s.url, do); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// AwaitStandby waits until the standby has what the primary has written up to now.
func (p *Pair) AwaitStandby(ctx context.Context) error {
	return p.servers[p.primary].query(ctx, func(db *pgx.Conn) error {
		var end string
		if err := db.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&end); err != nil {
			return err
		}
		return xrpc.Until(ctx, stopLimit, func() (received bool, err error) {
			err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE flush_lsn >= $1::pg_lsn)`,
				end).Scan(&received)
			return received, err
		})
	})
}

// Generation returns the id of the event stream's newest generation, and the place after which it
// begins.
func (p *Pair) Generation(ctx context.Context) (id, after int64, err error) {
	err = InDatabase(ctx, p.PrimaryURL(), func(db *pgx.Conn) error {
		return db.QueryRow(ctx, `SELECT id, after_seq FROM generations ORDER BY id DESC LIMIT 1`).Scan(&id, &after)
	})
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
