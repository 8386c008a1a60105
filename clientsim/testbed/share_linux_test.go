package testbed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A process of a share gets no more processor time than its quota, and its children count.
func TestShare(t *testing.T) {
	t.Parallel()
	s, err := NewShare("test")
	if err != nil {
		t.Skip(err)
	}
	const quota = 0.05 // less than a process gets on a busy machine
	if err := s.Limit(quota); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `sh -c 'i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done'; cat /proc/self/cgroup`)
	var out strings.Builder
	cmd.Stdout = &out
	began := time.Now()
	if err := s.start(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	use, err := s.Use()
	if err != nil {
		t.Fatal(err)
	}
	if cores := use.Used.Seconds() / took.Seconds(); cores > 1.25*quota || use.Used == 0 || use.Throttled == 0 || use.Throttled > use.Periods {
		t.Errorf("%.2f cores, %+v in %s", cores, use, took)
	}
	if want := "/" + filepath.Base(s.dirs[0]) + "\n"; strings.Count(out.String(), want) != len(shareControllers) {
		t.Errorf("the process was in %s", out.String())
	}
	own, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil || strings.Contains(string(own), "clientsim") {
		t.Errorf("this thread is in %s: %v", own, err)
	}
	if err := s.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFindGroup(t *testing.T) {
	t.Parallel()
	const mounts = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n"
	const groups = "2:cpu,cpuacct:/user.slice\n1:name=systemd:/\n0::/\n"
	if dir, err := findGroup(mounts, groups, "cpuacct"); err != nil || dir != "/sys/fs/cgroup/cpu,cpuacct/user.slice" {
		t.Errorf("%q, %v", dir, err)
	}
	if dir, err := findGroup("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/\n", "cpu"); err == nil {
		t.Errorf("version 2 only: %q", dir)
	}
}
