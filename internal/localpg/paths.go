package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"mlsd/internal/errs"
)

// DefaultDataDir returns mlsd's default data directory. It does not make the directory. It is mlsd
// in $XDG_DATA_HOME. If that is not set, it is mlsd in ~/.local/share, or /var/lib/mlsd for root:
// the server runs as another account, which usually may not enter root's home.
func DefaultDataDir() (string, error) {
	return defaultDataDir(os.Geteuid(), os.Getenv("XDG_DATA_HOME"), os.UserHomeDir)
}

func defaultDataDir(uid int, xdg string, home func() (string, error)) (string, error) {
	if filepath.IsAbs(xdg) { // the specification says to ignore relative paths
		return filepath.Join(xdg, "mlsd"), nil
	}
	if uid == 0 {
		return "/var/lib/mlsd", nil
	}
	h, err := home()
	if err != nil {
		return "", fmt.Errorf("no default data directory: %w; name one", err)
	}
	return filepath.Join(h, ".local", "share", "mlsd"), nil
}

// prepareDir makes the data directory if it does not exist. It returns its absolute path without
// symbolic links. That is the path which the processes that work in it report.
func prepareDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := makeDirs(dir); err != nil {
		return "", fmt.Errorf("make data directory: %w", err)
	}
	dir, err = filepath.EvalSymlinks(dir)
	return dir, errs.Wrap(err, "data directory")
}

// makeDirs is os.MkdirAll with other modes, which do not depend on the umask. Other accounts may
// not enter the directories that it makes. Those that root makes can be entered but not listed,
// because the account that the server runs as must reach its own directory below.
func makeDirs(dir string) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		return nil
	}
	if err := makeDirs(filepath.Dir(dir)); err != nil {
		return err
	}
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) { // in a race with another process
		return err
	}
	return os.Chmod(dir, mode)
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return errs.Wrap(errors.Join(d.Sync(), d.Close()), "sync directory")
}

// removeLeftovers deletes the entries of dir whose names start with prefix. A crash left them
// incomplete. The caller holds the lock, so only the server of an interrupted restore can use one.
// It is stopped.
func removeLeftovers(ctx context.Context, dir, prefix string, log *slog.Logger) error {
	names, err := fs.Glob(os.DirFS(dir), prefix+"*")
	if err != nil {
		return fmt.Errorf("look for leftovers: %w", err)
	}
	var errs []error
	for _, name := range names {
		c := &cluster{dir: filepath.Join(dir, name), log: log}
		errs = append(errs, c.stopPostmaster(ctx), os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
