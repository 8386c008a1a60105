package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxSocketPath is the longest path of a unix socket, in bytes: 103 on macOS and the BSDs. Linux
// allows 107.
const maxSocketPath = 103

const (
	socketName      = ".s.PGSQL." + port
	serviceName     = "pg_service.conf"
	socketDirRecord = "postgres.socketdir"
	tempPrefix      = "mlsd-pg-"
)

// prepareSocketDir makes the private directory for the socket and returns its path. It is in the
// data directory if the path is short enough. Otherwise it is a new directory for temporary files,
// whose path is recorded in the data directory: the next start removes it after a crash. No server
// of this cluster may run: prepareSocketDir removes the files of an earlier one.
func prepareSocketDir(dataDir string, a *account) (string, error) {
	record := filepath.Join(dataDir, socketDirRecord)
	if err := removeRecorded(record); err != nil {
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
		if err := os.WriteFile(record, []byte(dir), 0o600); err != nil {
			return "", errors.Join(fmt.Errorf("socket directory: %w", err), os.Remove(dir))
		}
		if err := a.own(dir); err != nil {
			return "", errors.Join(fmt.Errorf("socket directory: %w", err), os.Remove(dir))
		}
		return dir, nil
	}
	return "", fmt.Errorf("no directory for a socket with a path of at most %d bytes: use a shorter data directory or TMPDIR", maxSocketPath)
}

// fits reports whether a socket in dir has a path that is short enough, and that a connection
// string can contain: a comma would separate two hosts.
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

// removeRecorded removes the temporary socket directory that an earlier process left, and its
// record.
func removeRecorded(record string) error {
	data, err := os.ReadFile(record)
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
	return os.Remove(record)
}

// emptySocketDir removes the files of this package and of the server, and no others. The socket's
// lock file protects only the socket, not the data. It can be removed as soon as no server runs.
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
