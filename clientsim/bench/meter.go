package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/clientsim/bench/report"
	"mlsd/clientsim/testbed"
)

// meter reads from /proc how much processor time the processes used. Without /proc, or if the
// database runs on another machine, the meter reads zero.
type meter struct {
	env        *environment
	postmaster int
	dead       time.Duration // processor time of killed servers
}

func (m *meter) read() report.Spent {
	s := report.Spent{Server: m.dead, Database: testbed.TreeTime(m.postmaster)}
	for _, server := range m.env.servers {
		s.Server += testbed.ProcessTime(server.PID())
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err == nil {
		s.Load = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	}
	return s
}

// keep remembers the processor time of a process that is about to be killed.
func (m *meter) keep(pid int) { m.dead += testbed.ProcessTime(pid) }

// settings are the PostgreSQL settings that decide what a COMMIT means and costs.
var settings = []string{
	"fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "min_wal_size", "max_wal_size",
	"checkpoint_timeout", "max_connections",
}

// inspect reads the database's settings, and finds its main process on this machine.
func inspect(ctx context.Context, url string) (d report.Database, postmaster int, err error) {
	pool, err := pgxpool.ParseConfig(url) // pgxpool accepts the pool's own settings in the URL
	if err != nil {
		return d, 0, err
	}
	db, err := pgx.ConnectConfig(ctx, pool.ConnConfig)
	if err != nil {
		return d, 0, err
	}
	defer func() { err = errors.Join(err, db.Close(ctx)) }()
	show := func(name string) (value string, err error) {
		err = db.QueryRow(ctx, "SHOW "+name).Scan(&value)
		return value, err
	}
	if d.Version, err = show("server_version"); err != nil {
		return d, 0, err
	}
	d.Settings = map[string]string{}
	for _, name := range settings {
		if d.Settings[name], err = show(name); err != nil {
			return d, 0, err
		}
	}
	var backend int
	if err := db.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		return d, 0, err
	}
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", backend)); err == nil &&
		strings.HasPrefix(string(name), "postgres") {
		postmaster = testbed.Parent(backend)
	}
	return d, postmaster, nil
}

// machine describes where everything runs.
func machine(server string) report.Machine {
	m := report.Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
		Server: server}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.OS += " " + strings.TrimSpace(string(release))
	}
	m.CPU = after("/proc/cpuinfo", "model name")
	if text, ok := strings.CutSuffix(after("/proc/meminfo", "MemTotal"), " kB"); ok {
		if kib, err := strconv.ParseUint(text, 10, 64); err == nil {
			m.Memory = kib << 10
		}
	}
	return m
}

// after returns the text after a name and a colon in a file, or "".
func after(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
