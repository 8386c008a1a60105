package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mlsd/internal/errs"
)

// maxSocketPath is the longest path of a unix socket, in bytes: 103 on macOS and the BSDs. Linux
// allows 107.
const maxSocketPath = 103

const (
	socketName = ".s.PGSQL." + port
	tempPrefix = "mlsd-pg-"
)

// makeSocketDir makes the private directory for the socket and returns its path. The directory is
// run if the socket's path is short enough. Otherwise it is a new directory for temporary files,
// and run is a link to it, so that the next start finds it after a crash. No server of this cluster
// may run, because makeSocketDir removes the directory of an earlier server.
func makeSocketDir(run string, a *account) (string, error) {
	if err := removeSocketDir(run); err != nil {
		return "", err
	}
	if fits(run) {
		err := errors.Join(os.Mkdir(run, 0o700), a.own(run))
		return run, errs.Wrap(err, "socket directory")
	}
	for _, base := range []string{os.TempDir(), "/tmp"} {
		base, err := filepath.Abs(base)
		if err != nil || !fits(filepath.Join(base, tempPrefix+"0123456789")) {
			continue
		}
		dir, err := os.MkdirTemp(base, tempPrefix)
		if err != nil {
			return "", fmt.Errorf("socket directory: %w", err)
		}
		if err := errors.Join(a.own(dir), os.Symlink(dir, run)); err != nil {
			return "", errors.Join(fmt.Errorf("socket directory: %w", err), os.Remove(dir))
		}
		return dir, nil
	}
	return "", fmt.Errorf("no directory for a socket with a path of at most %d bytes: "+
		"use a shorter data directory or TMPDIR", maxSocketPath)
}

// fits reports whether the path of a socket in dir is short enough, and has no comma, which would
// separate two hosts in a connection string.
func fits(dir string) bool {
	return len(dir)+1+len(socketName) <= maxSocketPath && !strings.Contains(dir, ",")
}

// removeSocketDir removes what makeSocketDir made, with the files of the server, and nothing else.
// The socket's lock file protects only the socket, not the data. It can be removed as soon as no
// server runs.
func removeSocketDir(run string) error {
	dir := run
	if target, err := os.Readlink(run); err == nil {
		if dir = target; !strings.HasPrefix(filepath.Base(dir), tempPrefix) {
			return fmt.Errorf("socket directory: %s is in the way", run)
		}
	}
	var errs []error
	for _, path := range []string{filepath.Join(dir, socketName), filepath.Join(dir, socketName+".lock"), dir, run} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("socket directory: %w", err))
		}
	}
	return errors.Join(errs...)
}
