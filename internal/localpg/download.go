package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	mavenCentral    = "https://repo1.maven.org/maven2"
	newestMajor     = 18 // the version to download for a new cluster
	downloadsPrefix = "tmp-"

	lockPoll = 50 * time.Millisecond // between attempts to lock while another process downloads
)

// download fetches an installation into the download directory and checks that it runs. Its major
// version is want, or newestMajor if want is 0. It is made under a temporary name and then renamed.
func (f *binaryFinder) download(ctx context.Context, want int) (_ binaries, err error) {
	major := want
	if major == 0 {
		major = newestMajor
	}
	fetch := f.cfg.Download
	if fetch == nil {
		fetch = downloader(mavenCentral)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("no PostgreSQL %d or newer is installed, and downloading version %d failed "+
				"(install it, or set a database URL): %w", MinMajor, major, err)
		}
	}()
	if err := makeDirs(f.dir); err != nil {
		return binaries{}, err
	}
	lock, err := awaitLock(ctx, filepath.Join(f.dir, "lock"))
	if err != nil {
		return binaries{}, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if b, _, err := f.first(ctx, f.downloaded(), want); err != nil || b.major != 0 {
		return b, err // another process downloaded it while this one waited for the lock
	}
	if err := removeLeftovers(f.dir, downloadsPrefix); err != nil {
		return binaries{}, err
	}
	tmp, err := os.MkdirTemp(f.dir, downloadsPrefix)
	if err != nil {
		return binaries{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()

	f.log.Warn("no PostgreSQL is installed: downloading one", "version", major, "into", f.dir)
	if err := fetch(ctx, major, tmp); err != nil {
		return binaries{}, err
	}
	if err := readableByAll(tmp); err != nil {
		return binaries{}, err
	}
	b, err := f.inspect(ctx, filepath.Join(tmp, "bin"))
	if err != nil {
		return binaries{}, err
	}
	if err := f.suits(b, want); err != nil {
		return binaries{}, err
	}
	final := filepath.Join(f.dir, strconv.Itoa(b.major))
	// If final exists, it is not usable: first did not return it.
	if err := os.RemoveAll(final); err != nil {
		return binaries{}, err
	}
	if err := os.Rename(tmp, final); err != nil {
		return binaries{}, err
	}
	f.log.Info("downloaded PostgreSQL", "version", b.major, "dir", final)
	b.dir = filepath.Join(final, "bin")
	return b, nil
}

// awaitLock locks a file with flock. It waits until ctx ends.
func awaitLock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := flock(f)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// readableByAll lets every account read and run an installation, with any umask. Root unpacks it,
// and another account runs it.
func readableByAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}

// downloader returns a Download that uses the embedded-postgres library. It fetches zonky's
// binaries from a Maven repository, and compares their checksum if the repository has it.
//
// Only the library's fetching and unpacking is wanted. After that its Start deletes the data
// directory, runs initdb, and starts a server on TCP. To prevent this, the data directory is a path
// that ends in ".": os.RemoveAll fails with EINVAL for it, and Start stops there. So the error of
// Start does not tell success or failure. The presence of the binaries does.
func downloader(repository string) func(ctx context.Context, major int, dir string) error {
	return func(ctx context.Context, major int, dir string) error {
		version, ok := map[int]embeddedpostgres.PostgresVersion{
			15: embeddedpostgres.V15,
			16: embeddedpostgres.V16,
			17: embeddedpostgres.V17,
			18: embeddedpostgres.V18,
		}[major]
		if !ok {
			return fmt.Errorf("no download of PostgreSQL %d is known", major)
		}
		work := filepath.Join(dir, "fetch")
		cfg := embeddedpostgres.DefaultConfig().
			Version(version).
			BinaryRepositoryURL(repository).
			Port(0).
			CachePath(filepath.Join(work, "cache")).
			RuntimePath(filepath.Join(work, "runtime")).
			BinariesPath(dir).
			DataPath(filepath.Join(work, "none") + "/.").
			Logger(nil)
		done := make(chan error, 1)
		go func() { done <- embeddedpostgres.NewDatabase(cfg).Start() }()
		var err error
		select {
		case err = <-done:
		case <-ctx.Done():
			// The library takes no context and may still write, but only below the temporary name.
			return context.Cause(ctx)
		}
		for _, name := range []string{"postgres", "initdb"} {
			if _, statErr := os.Stat(filepath.Join(dir, "bin", name)); statErr != nil {
				return errors.Join(err, statErr)
			}
		}
		return os.RemoveAll(work)
	}
}
