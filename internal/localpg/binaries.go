package localpg

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// VersionError means that no PostgreSQL was found with the major version that made the cluster. The
// cluster is unchanged.
type VersionError struct {
	Cluster int   // the major version that the cluster needs
	Found   []int // the major versions that are installed
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the cluster was made by PostgreSQL %d, but only %v was found: "+
		"install version %d, or convert the cluster with pg_upgrade or a dump; nothing has been changed", e.Cluster, e.Found,
		e.Cluster)
}

// binaries is an installation of PostgreSQL.
type binaries struct {
	// dir holds postgres and initdb. It has no symbolic links, because the programs find their
	// libraries relative to it.
	dir   string
	major int
}

func (b binaries) postgres() string { return filepath.Join(b.dir, "postgres") }
func (b binaries) initdb() string   { return filepath.Join(b.dir, "initdb") }

// finder chooses an installation.
type finder struct {
	installed []string // directories that can hold an installation, the best first
	downloads string   // the directory of downloads
	download  func(ctx context.Context, major int, dir string) error
	log       *slog.Logger
	step      Step
	account   *account
}

// find returns an installation that the account can run. Its major version is want, or any from
// MinMajor on if want is 0. If none is installed, find downloads one.
func (f *finder) find(ctx context.Context, want int) (binaries, error) {
	b, found, err := f.first(ctx, append(f.installed, f.downloaded()...), want)
	switch {
	case err != nil || b.major != 0:
		return b, err
	case want != 0 && len(found) > 0:
		slices.Sort(found)
		return binaries{}, &VersionError{want, slices.Compact(found)}
	}
	return f.fetch(ctx, want)
}

// first returns the first suitable installation. If there is none, it returns the versions that it
// found.
func (f *finder) first(ctx context.Context, dirs []string, want int) (_ binaries, found []int, err error) {
	for _, dir := range dirs {
		b, err := f.inspect(ctx, dir)
		switch {
		case ctx.Err() != nil:
			// The binaries may be suitable, so the end of ctx must not lead to a download.
			return binaries{}, nil, context.Cause(ctx)
		case err == nil && b.suits(want):
			return b, nil, nil
		case err == nil:
			found = append(found, b.major)
		case !errors.Is(err, fs.ErrNotExist): // most directories of PATH have no postgres
			f.log.Debug("PostgreSQL binaries not used", "dir", dir, "reason", err)
		}
	}
	return binaries{}, found, nil
}

// suits reports whether an installation can run a cluster of version want. 0 means a new cluster.
func (b binaries) suits(want int) bool {
	return b.major >= MinMajor && (want == 0 || b.major == want)
}

func (f *finder) downloaded() []string {
	return newestFirst(f.downloads, "[0-9]*/bin")
}

// InstalledDirs returns the directories where this system can have PostgreSQL: first the
// directories of PATH, then those of Debian, of the PostgreSQL project's RPMs and of Homebrew, the
// newest version of each first.
func InstalledDirs() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, pattern := range []string{
		"usr/lib/postgresql/*/bin",
		"usr/pgsql-*/bin",
		"opt/homebrew/opt/postgresql@*/bin",
		"usr/local/opt/postgresql@*/bin",
		"home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	} {
		dirs = append(dirs, newestFirst("/", pattern)...)
	}
	return dirs
}

// newestFirst returns the paths below a directory that match a pattern. The last but one element of
// a path holds a version. newestFirst sorts by the version as a number: 9.6 is older than 15.
func newestFirst(base, pattern string) []string {
	dirs, err := fs.Glob(os.DirFS(base), pattern)
	if err != nil {
		return nil // a malformed pattern matches nothing
	}
	version := func(dir string) int {
		name := filepath.Base(filepath.Dir(dir))
		return leadingInt(name[max(strings.IndexAny(name, "0123456789"), 0):])
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	for i, dir := range dirs {
		dirs[i] = filepath.Join(base, dir)
	}
	return dirs
}

// inspect returns the installation in a directory. Its files can be symbolic links to the real
// installation, as in /usr/local/bin of some images. Then inspect returns the real installation,
// which holds initdb and the libraries.
func (f *finder) inspect(ctx context.Context, dir string) (binaries, error) {
	path, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err != nil {
		return binaries{}, err
	}
	b := binaries{dir: filepath.Dir(path)}
	if b.postgres() != path {
		return binaries{}, fmt.Errorf("%s is not called postgres", path)
	}
	if _, err := os.Stat(b.initdb()); err != nil {
		return binaries{}, err
	}
	cmd := f.account.command(ctx, path, "/", "--version")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := runChild(cmd); err != nil {
		return binaries{}, fmt.Errorf("%s --version as %s: %w", path, f.account.name, err)
	}
	// "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"
	_, text, _ := strings.Cut(out.String(), ") ")
	if b.major = leadingInt(text); b.major == 0 {
		return binaries{}, fmt.Errorf("%s --version says %q", path, out.String())
	}
	return b, nil
}

// leadingInt returns the number at the start of s, or 0.
func leadingInt(s string) int {
	digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}
