package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DefaultDataDir is where mlsd keeps its data unless told otherwise: /var/lib/mlsd as root, since the server cannot run as root
// and root's home is usually closed to the account that it runs as; else mlsd in the user's data directory
// ($XDG_DATA_HOME, or ~/.local/share). It does not make the directory.
func DefaultDataDir() (string, error) {
	return defaultDataDir(os.Geteuid(), os.Getenv("XDG_DATA_HOME"), os.UserHomeDir)
}

func defaultDataDir(uid int, xdg string, home func() (string, error)) (string, error) {
	if uid == 0 {
		return "/var/lib/mlsd", nil
	}
	if filepath.IsAbs(xdg) { // the specification says to ignore relative ones
		return filepath.Join(xdg, "mlsd"), nil
	}
	h, err := home()
	if err != nil {
		return "", fmt.Errorf("no default data directory: %w; name one", err)
	}
	return filepath.Join(h, ".local", "share", "mlsd"), nil
}

// prepareDir makes the data directory if it is missing and returns its absolute path without symbolic links, which is how
// processes that work in it report it.
func prepareDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := makeDirs(dir); err != nil {
		return "", fmt.Errorf("make data directory: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	return dir, nil
}

// makeDirs is os.MkdirAll, except that the directories it makes are closed to others; as root they can be passed through but not
// listed, whatever the umask, because the account that the server runs as must get to its own below.
func makeDirs(dir string) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeDirs(filepath.Dir(dir)); err != nil {
		return err
	}
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, mode)
}

// globEscape quotes the characters of a path that filepath.Glob would interpret.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
