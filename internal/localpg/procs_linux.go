package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// processesIn returns the pids of the PostgreSQL processes of the cluster in dir. All of them have
// dir as their working directory, until they have released their memory. Zombies have no working
// directory and are not counted. Processes that this process may not inspect belong to other
// accounts, and so not to this cluster. The pid in postmaster.pid is not needed on this system.
func processesIn(dir string, _ int) ([]int, error) {
	want, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("processes of the cluster: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("processes of the cluster: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		switch got, err := os.Stat("/proc/" + e.Name() + "/cwd"); {
		case err == nil:
			if os.SameFile(want, got) && isPostgres(pid) {
				pids = append(pids, pid)
			}
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ESRCH):
		default:
			return nil, fmt.Errorf("processes of the cluster: %w", err)
		}
	}
	return pids, nil
}

// isPostgres reports whether the process runs the program postgres. An administrator's shell can
// also have the directory as its working directory. A process without a program is ending, and may
// not have released its memory yet: it counts.
func isPostgres(pid int) bool {
	exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "postgres" // an upgrade deletes the file
}
