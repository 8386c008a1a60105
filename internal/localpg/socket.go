package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxSocketPath is the longest path of a unix socket in bytes: 103 on macOS and the BSDs, 107 on Linux.
const maxSocketPath = 103

const (
	socketName    = ".s.PGSQL." + port
	serviceName   = "pg_service.conf"
	socketDirNote = "postgres.socketdir"
	tempPrefix    = "mlsd-pg-"
)

// prepareSocketDir makes the private directory for the socket: in the data directory if the path is short enough, where it leaves
// nothing behind elsewhere; else a fresh one among the temporary files, noted in the data directory so that the next start can
// remove it after a crash. The caller knows that no server of this cluster runs, so what is left of one goes.
func prepareSocketDir(dataDir string, a *account) (string, error) {
	note := filepath.Join(dataDir, socketDirNote)
	if err := removeNoted(note); err != nil {
		return "", err
	}
	run := filepath.Join(dataDir, "run")
	if fits(run) {
		return run, makeRunDir(run, a)
	}
	for _, base := range []string{os.TempDir(), "/tmp"} {
		if base, err := filepath.Abs(base); err != nil || !fits(filepath.Join(base, tempPrefix+"0123456789")) {
			continue
		}
		dir, err := os.MkdirTemp(base, tempPrefix)
		if err != nil {
			return "", fmt.Errorf("socket directory: %w", err)
		}
		if err := os.WriteFile(note, []byte(dir), 0o600); err != nil {
			return "", errors.Join(fmt.Errorf("socket directory: %w", err), os.Remove(dir))
		}
		if err := a.own(dir); err != nil {
			return "", errors.Join(fmt.Errorf("socket directory: %w", err), os.Remove(dir))
		}
		return dir, nil
	}
	return "", fmt.Errorf("no directory for a socket with a path of at most %d bytes: use a shorter data directory or TMPDIR", maxSocketPath)
}

// fits says whether a socket can be in dir and be named in a connection string, where a comma would separate two hosts.
func fits(dir string) bool {
	return len(dir)+1+len(socketName) <= maxSocketPath && !strings.Contains(dir, ",")
}

func makeRunDir(run string, a *account) error {
	err := os.Mkdir(run, 0o700)
	if errors.Is(err, fs.ErrExist) {
		var info fs.FileInfo
		if info, err = os.Lstat(run); err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is in the way", run)
		}
		err = errors.Join(err, emptySocketDir(run))
	}
	if err == nil {
		err = a.own(run)
	}
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	return nil
}

// removeNoted removes the temporary socket directory that an earlier run could not.
func removeNoted(note string) error {
	data, err := os.ReadFile(note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	if dir := string(data); filepath.IsAbs(dir) && strings.HasPrefix(filepath.Base(dir), tempPrefix) {
		if err := removeSocketDir(dir); err != nil {
			return err
		}
	}
	return os.Remove(note)
}

// emptySocketDir removes what we or a server put there, and nothing else. The socket's lock file guards only the socket, not the data,
// so it may go as soon as no server runs.
func emptySocketDir(dir string) error {
	var errs []error
	for _, name := range []string{socketName, socketName + ".lock", serviceName} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeSocketDir removes a socket directory after use.
func removeSocketDir(dir string) error {
	err := emptySocketDir(dir)
	if rmErr := os.Remove(dir); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	return nil
}
