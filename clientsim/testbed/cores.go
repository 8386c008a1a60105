package testbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Cores limits the processors that a service's database and its server use.
type Cores struct {
	postmaster, server int // process ids
	groups             []coreGroup
}

// Limit gives the service's database and its server these numbers of cores, until Lift. It needs
// root.
func (s *Service) Limit(ctx context.Context, database, server float64) (_ *Cores, err error) {
	defer Catch(&err)
	c := &Cores{server: s.Server.PID()}
	var backend int
	Check(s.Server.inDatabase(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend)
	}))
	c.postmaster = Parent(backend)
	if c.postmaster == 0 {
		return nil, errors.New("no process of the database was found")
	}
	for _, part := range []struct {
		cores float64
		pids  []int
	}{
		{database, append(slices.Collect(maps.Keys(childrenOf(c.postmaster))), c.postmaster)},
		{server, []int{c.server}},
	} {
		group, err := newCoreGroup(part.cores, part.pids)
		if err != nil {
			return nil, errors.Join(err, c.Lift(ctx))
		}
		c.groups = append(c.groups, group)
	}
	return c, nil
}

// Used returns the processor time that the database and the server have used since they began.
func (c *Cores) Used() (database, server time.Duration) {
	return TreeTime(c.postmaster), ProcessTime(c.server)
}

// Lift takes the limits away.
func (c *Cores) Lift(ctx context.Context) (err error) {
	for _, group := range c.groups {
		err = errors.Join(err, group.remove(ctx))
	}
	return err
}

// coreGroup is the directory of a control group of the kernel (cgroups(7), version 1 or 2).
type coreGroup string

// quotaPeriod is the period of a group's quota, in µs. With the kernel's default of 100,000, a
// process with a tenth of a core waits for 90 ms at a time.
const quotaPeriod = 20_000

// newCoreGroup limits the cores that processes and their later children use together.
func newCoreGroup(cores float64, pids []int) (_ coreGroup, err error) {
	defer Catch(&err)
	parent, quota := "/sys/fs/cgroup", int64(cores*quotaPeriod)
	files := map[string]string{"cpu.max": fmt.Sprint(quota, " ", quotaPeriod)}
	if _, err := os.Stat(filepath.Join(parent, "cpu", "cgroup.procs")); err == nil {
		parent = filepath.Join(parent, "cpu")
		files = map[string]string{"cpu.cfs_period_us": fmt.Sprint(quotaPeriod), "cpu.cfs_quota_us": fmt.Sprint(quota)}
	}
	dir := Must(os.MkdirTemp(parent, "clientsim-"))
	for file, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	if err := errors.Join(err, takeIn(dir, pids)); err != nil {
		return "", errors.Join(err, coreGroup(dir).remove(context.Background()))
	}
	return coreGroup(dir), nil
}

// takeIn moves processes into a control group. Some may have ended.
func takeIn(dir string, pids []int) error {
	for _, pid := range pids {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// remove moves the group's processes out of the group and removes it. It tries again if a new child
// has begun.
func (g coreGroup) remove(ctx context.Context) error {
	return xrpc.Until(ctx, stopLimit, func() (_ bool, err error) {
		defer Catch(&err)
		text := Must(os.ReadFile(filepath.Join(string(g), "cgroup.procs")))
		var pids []int
		for _, line := range strings.Fields(string(text)) {
			pid := Must(strconv.Atoi(line))
			pids = append(pids, pid)
		}
		Check(takeIn(filepath.Dir(string(g)), pids))
		err = syscall.Rmdir(string(g))
		if errors.Is(err, syscall.EBUSY) {
			return false, nil
		}
		return true, err
	})
}
