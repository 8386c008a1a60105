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

// DefaultDataDir returns mlsd's default data directory. It does not make the directory. The
// directory is mlsd in $XDG_DATA_HOME. If that variable is not set, it is mlsd in ~/.local/share.
// For root it is then /var/lib/mlsd, because the server runs as another account, which usually may
// not enter root's home.
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

// prepareDir makes the data directory if it does not exist. It returns the directory's absolute
// path without symbolic links, because the processes that work in the directory report this path.
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

// makeDirs is os.MkdirAll with modes that do not depend on the umask. Other accounts may not enter
// the new directories. If root makes the directories, other accounts can enter but not list them,
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
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) { // ErrExist: another process was faster
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

// removeLeftovers deletes the entries of dir whose names start with prefix. A crash has left these
// entries incomplete. The caller holds the lock, so only the server of an interrupted restore can
// use an entry. removeLeftovers stops that server.
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
