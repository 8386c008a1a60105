package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mlsd/clientsim/xrpc"
)

// Share is a share of this machine's processor time for some processes: a small machine on a larger
// one. It is a control group (cgroups(7), version 1) and needs root. The nil Share is the whole
// machine.
type Share struct {
	homes []string // our own groups, in the order of shareControllers
	dirs  []string // of the new group
}

// shareControllers limit and count processor time.
var shareControllers = []string{"cpu", "cpuacct"}

// NewShare makes a share that is not limited yet.
func NewShare(name string) (*Share, error) {
	s := &Share{}
	for _, controller := range shareControllers {
		home, err := ownGroup(controller)
		if err == nil {
			err = s.make(home, name)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("no quota of processor time can be set here: %w", err), s.removeNow())
		}
	}
	return s, nil
}

// make makes the share's group in home, under the same name for all controllers. Two controllers may
// have one hierarchy.
func (s *Share) make(home, name string) (err error) {
	var dir string
	switch {
	case len(s.dirs) == 0:
		dir, err = os.MkdirTemp(home, "clientsim-"+name+"-")
	case s.homes[0] == home:
		dir = s.dirs[0]
	default:
		dir = filepath.Join(home, filepath.Base(s.dirs[0]))
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		s.homes, s.dirs = append(s.homes, home), append(s.dirs, dir)
	}
	return err
}

// ownGroup returns the directory of the control group that this process is in.
func ownGroup(controller string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	return findGroup(string(mounts), string(groups), controller)
}

// findGroup reads /proc/self/mounts and /proc/self/cgroup.
func findGroup(mounts, groups, controller string) (string, error) {
	for line := range strings.Lines(mounts) { // device, directory, type, options
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "cgroup" || !slices.Contains(strings.Split(f[3], ","), controller) {
			continue
		}
		for line := range strings.Lines(groups) { // number:controllers:path
			g := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(g) == 3 && slices.Contains(strings.Split(g[1], ","), controller) {
				return filepath.Join(f[1], g[2]), nil
			}
		}
	}
	return "", fmt.Errorf("the controller %s of cgroups version 1 is not mounted", controller)
}

// Limit sets how many cores the processes get together; 0: as many as there are.
func (s *Share) Limit(cores float64) error {
	quota := int64(-1)
	if cores > 0 {
		quota = int64(cores * float64(SharePeriod.Microseconds()))
	}
	return errors.Join(
		s.write(0, "cpu.cfs_period_us", SharePeriod.Microseconds()),
		s.write(0, "cpu.cfs_quota_us", quota),
	)
}

func (s *Share) write(at int, name string, value int64) error {
	return os.WriteFile(filepath.Join(s.dirs[at], name), strconv.AppendInt(nil, value, 10), 0o644)
}

// Use reads what the processes have used.
func (s *Share) Use() (u ShareUse, err error) {
	used, err := os.ReadFile(filepath.Join(s.dirs[1], "cpuacct.usage"))
	if err != nil {
		return u, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(used)), 10, 64)
	if err != nil {
		return u, fmt.Errorf("cpuacct.usage: %w", err)
	}
	u.Used = time.Duration(ns)
	stat, err := os.ReadFile(filepath.Join(s.dirs[0], "cpu.stat"))
	if err != nil {
		return u, err
	}
	for name, to := range map[string]*int64{"nr_periods ": &u.Periods, "nr_throttled ": &u.Throttled} {
		_, rest, ok := strings.Cut(string(stat), name)
		text, _, _ := strings.Cut(rest, "\n")
		if *to, err = strconv.ParseInt(text, 10, 64); err != nil || !ok {
			return u, fmt.Errorf("cpu.stat: no %s in %q", name, stat)
		}
	}
	return u, nil
}

// start starts a process in the share. A child begins in the groups of the thread that starts it.
func (s *Share) start(start func() error) (err error) {
	if s == nil {
		return start()
	}
	runtime.LockOSThread()
	thread := int64(syscall.Gettid())
	defer func() {
		for _, home := range s.homes {
			err = errors.Join(err, os.WriteFile(filepath.Join(home, "tasks"), strconv.AppendInt(nil, thread, 10), 0o644))
		}
		runtime.UnlockOSThread()
	}()
	for at := range s.dirs {
		if err := s.write(at, "tasks", thread); err != nil {
			return err
		}
	}
	return start()
}

// Remove removes the share when its processes have ended.
func (s *Share) Remove(ctx context.Context) error {
	var last error
	err := xrpc.Until(ctx, stopLimit, func() (bool, error) {
		last = s.removeNow()
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func (s *Share) removeNow() error {
	var errs []error
	for _, dir := range s.dirs {
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
