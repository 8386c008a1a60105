package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/localpg"
	"mlsd/internal/testdir"
)

// Pair is a PostgreSQL server for one test, with a migrated database, and a standby that streams
// its WAL. Both stop when the test ends. The test can stop the standby, start it again and promote
// it.
type Pair struct {
	Primary, Standby string // URLs of the database
	t                testing.TB
	dirs             [2]string // data directories of the primary and of the standby
	servers          [2]*localpg.Server
	upstream         string // conninfo of the primary
}

// pairSettings returns the settings of both servers. Commits do not sync the disk, but their WAL
// counts as flushed only when they are done.
func pairSettings() map[string]string {
	return map[string]string{
		"fsync": "off", "full_page_writes": "off", "max_connections": "100", "shared_buffers": "16MB", "min_wal_size": "32MB",
		"wal_keep_size": "64MB", "wal_retrieve_retry_interval": "100ms", "dynamic_shared_memory_type": "mmap",
		"max_standby_streaming_delay": "0", // replay at once ends statements that block it
	}
}

// NewPair starts the two servers.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	p := &Pair{t: t}
	for i := range p.dirs {
		p.dirs[i] = testdir.For(t)
		t.Cleanup(func() { p.Stop(i) })
	}
	must(t, p.create(ctx))
	return p
}

// The servers of a pair.
const (
	PrimaryServer = 0
	StandbyServer = 1
)

func (p *Pair) create(ctx context.Context) error {
	for _, dir := range p.dirs { // a standby begins as a copy of its primary
		if err := copyTemplate(ctx, pairTemplate, dir); err != nil {
			return err
		}
	}
	if err := p.start(ctx, PrimaryServer); err != nil {
		return err
	}
	p.Primary = p.servers[PrimaryServer].ConnString(localpg.Database)
	if err := p.admitReplication(ctx); err != nil {
		return err
	}
	p.BeStandby(StandbyServer)
	if err := p.start(ctx, StandbyServer); err != nil {
		return err
	}
	p.Standby = p.servers[StandbyServer].ConnString(localpg.Database)
	return nil
}

func (p *Pair) start(ctx context.Context, i int) (err error) {
	settings := pairSettings()
	if i == StandbyServer {
		settings["primary_conninfo"] = p.upstream
	}
	downloads, err := testdir.Downloads()
	if err != nil {
		return err
	}
	p.servers[i], err = localpg.Start(ctx, localpg.Config{DataDir: p.dirs[i], DownloadDir: downloads, Settings: settings})
	return err
}

// admitReplication lets the standby connect to the primary, and sets upstream.
func (p *Pair) admitReplication(ctx context.Context) error {
	hba := filepath.Join(p.dirs[PrimaryServer], "postgres", "mlsd_hba.conf")
	if err := appendTo(hba, "local replication all peer map=mlsd\n"); err != nil {
		return err
	}
	conn := Session(p.t, p.Primary)
	p.RecordGeneration(conn)
	if _, err := conn.Exec(ctx, `SELECT pg_reload_conf()`); err != nil {
		return err
	}
	cfg := conn.Config()
	p.upstream = fmt.Sprintf("host=%s port=%d user=%s application_name=standby", cfg.Host, cfg.Port, cfg.User)
	return nil
}

// RecordGeneration records that a server writes the newest generation of the event stream, as a
// node does when the server is the primary.
func (p *Pair) RecordGeneration(db *pgx.Conn) {
	p.t.Helper()
	_, err := db.Exec(context.Background(), `
		INSERT INTO generations (id, after_seq, system_identifier, timeline, cause, begun_at)
		SELECT (SELECT max(id) + 1 FROM generations), 0, system_identifier,
			('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint, 'another database', clock_timestamp()
		FROM pg_control_system()`)
	must(p.t, err)
}

// giveToServer makes the account of the primary the owner of another server's files.
func (p *Pair) giveToServer(dir string) error {
	info, err := os.Stat(filepath.Join(p.dirs[PrimaryServer], "postgres"))
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return filepath.WalkDir(filepath.Join(dir, "postgres"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}

// Pool returns a pool on the primary, with the options of [Database].
func (p *Pair) Pool(opts ...Option) *pgxpool.Pool {
	p.t.Helper()
	return Connect(p.t, p.Primary, opts...)
}

// PID is the process id of a running server.
func (p *Pair) PID(i int) int { return p.servers[i].PID() }

// Stop stops a server, if it is running.
func (p *Pair) Stop(i int) {
	p.t.Helper()
	if p.servers[i] == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
	defer cancel()
	if err := p.servers[i].Stop(ctx); err != nil {
		p.t.Errorf("pgtest: %v", err)
	}
	p.servers[i] = nil
}

// Start starts a server that was stopped. Its URL stays the same.
func (p *Pair) Start(i int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	must(p.t, p.start(ctx, i))
}

// BeStandby makes a stopped server a standby that gets no more WAL.
func (p *Pair) BeStandby(i int) {
	p.t.Helper()
	path := filepath.Join(p.dirs[i], "postgres", "standby.signal")
	must(p.t, errors.Join(os.WriteFile(path, nil, 0o600), p.giveToServer(p.dirs[i])))
}
