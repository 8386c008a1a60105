//go:build unix && !linux

package localpg

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// processesIn returns the pid in postmaster.pid if it is a postmaster of the cluster in dir. The
// postmaster's command line contains the directory. That of a backend contains only its database,
// so that backends are not found. PostgreSQL itself refuses to start while they run.
func processesIn(dir string, pid int) ([]int, error) {
	if pid == 0 {
		return nil, nil
	}
	out, err := exec.Command("ps", "-ww", "-o", "state=,command=", "-p", strconv.Itoa(pid)).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) == 0 {
		return nil, nil // no such process
	}
	if err != nil {
		return nil, fmt.Errorf("processes of the cluster: %w", err)
	}
	state, command, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if strings.HasPrefix(state, "Z") || !strings.Contains(command, "postgres -D "+dir+" ") {
		return nil, nil
	}
	return []int{pid}, nil
}
