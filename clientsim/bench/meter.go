package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
// database runs on another machine, it reads zero.
type meter struct {
	servers    []*testbed.Proc
	postmaster int
	dead       time.Duration // of killed servers
}

// tick is the unit of /proc/PID/stat on every Linux there is.
const tick = 10 * time.Millisecond

func (m *meter) read() report.Spent {
	s := report.Spent{Server: m.dead, Database: processTree(m.postmaster)}
	for _, server := range m.servers {
		s.Server += statOf(server.PID()).own
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err == nil {
		s.Load = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	}
	return s
}

// keep remembers the processor time of a process that is about to be killed.
func (m *meter) keep(pid int) { m.dead += statOf(pid).own }

// stat is a process's line in /proc/PID/stat.
type stat struct {
	parent      int
	own, reaped time.Duration // its own time, and that of its children that have ended
}

func statOf(pid int) (s stat) {
	if pid == 0 {
		return s
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s
	}
	return parseStat(text)
}

// parseStat reads proc(5). The command's name is in parentheses and may contain parentheses.
func parseStat(text []byte) (s stat) {
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return s
	}
	number := func(i int) int64 {
		n, err := strconv.ParseInt(fields[i-3], 10, 64) // proc(5) counts from 1, and the state is field 3
		if err != nil {
			return 0
		}
		return n
	}
	s.parent = int(number(4))
	s.own = time.Duration(number(14)+number(15)) * tick
	s.reaped = time.Duration(number(16)+number(17)) * tick
	return s
}

// processTree returns the time of a process and its children, living and dead.
func processTree(parent int) time.Duration {
	if parent == 0 {
		return 0
	}
	all := statOf(parent)
	sum := all.own + all.reaped
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if child := parseStat(text); child.parent == parent {
			sum += child.own + child.reaped
		}
	}
	return sum
}

// settings are the PostgreSQL settings that decide what a COMMIT means and costs.
var settings = []string{
	"fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "min_wal_size", "max_wal_size", "checkpoint_timeout", "max_connections",
}

// inspect reads the database's settings, and finds its main process on this machine.
func inspect(ctx context.Context, url string) (d report.Database, postmaster int, err error) {
	pool, err := pgxpool.ParseConfig(url) // it also knows the pool's own settings in the URL
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
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", backend)); err == nil && strings.HasPrefix(string(name), "postgres") {
		postmaster = statOf(backend).parent
	}
	return d, postmaster, nil
}

// machine describes where everything runs.
func machine(server string) report.Machine {
	m := report.Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Server: server}
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
