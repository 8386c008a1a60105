package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrNotRunning means that no private PostgreSQL runs in a data directory.
var ErrNotRunning = errors.New("no mlsd is running on this data directory")

// Running returns the URL of a database of the server that another process runs in dataDir. It is
// like [Server.ConnString] of that server. It starts nothing. Only the account of that server and
// root can open its socket.
func Running(dataDir, database string) (string, error) {
	c := cluster{dir: filepath.Join(dataDir, "postgres")}
	pid := readPID(c.pidFile())
	text, err := os.ReadFile(c.pidFile())
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("look for the private PostgreSQL: %w", err)
	}
	if err != nil || pid == 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || !c.ready(pid) {
		return "", fmt.Errorf("%s: %w", dataDir, ErrNotRunning)
	}
	lines := strings.Split(string(text), "\n")
	return connString(lines[4], "", database), nil // the 5th line is the socket's directory
}
