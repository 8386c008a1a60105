package localpg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/xi2/xz"

	"mlsd/internal/worker"
)

const (
	mavenCentral    = "https://repo1.maven.org/maven2"
	newestMajor     = 18 // the version to download for a new cluster
	downloadsPrefix = "tmp-"

	lockPoll = 50 * time.Millisecond // between attempts to lock while another process downloads

	downloading = "downloading PostgreSQL" // the name of a step
)

// fetch downloads an installation and checks that it runs. Its major version is want, or
// newestMajor if want is 0. The installation is made under a temporary name and then renamed.
func (f *finder) fetch(ctx context.Context, want int) (_ binaries, err error) {
	major := want
	if major == 0 {
		major = newestMajor
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("no PostgreSQL %d or newer is installed, and downloading version %d failed "+
				"(install it, or set a database URL): %w", MinMajor, major, err)
		}
	}()
	if err := makeDirs(f.downloads); err != nil {
		return binaries{}, err
	}
	lock, err := f.awaitLock(ctx)
	if err != nil {
		return binaries{}, err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	if b, _, err := f.first(ctx, f.downloaded(), want); err != nil || b.major != 0 {
		return b, err // another process downloaded it while this one waited for the lock
	}
	if err := removeLeftovers(ctx, f.downloads, downloadsPrefix, f.log); err != nil {
		return binaries{}, err
	}
	tmp, err := os.MkdirTemp(f.downloads, downloadsPrefix)
	if err != nil {
		return binaries{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()

	f.log.Warn("no PostgreSQL is installed: downloading one", "version", major, "into", f.downloads)
	f.step.is(downloading, "")
	if err := f.download(ctx, major, tmp); err != nil {
		return binaries{}, err
	}
	if err := readableByAll(tmp); err != nil {
		return binaries{}, err
	}
	b, err := f.inspect(ctx, filepath.Join(tmp, "bin"))
	if err != nil {
		return binaries{}, err
	}
	if !b.suits(want) {
		return binaries{}, fmt.Errorf("it is version %d", b.major)
	}
	final := filepath.Join(f.downloads, strconv.Itoa(b.major))
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

// awaitLock locks the download directory. It waits for the lock until ctx ends.
func (f *finder) awaitLock(ctx context.Context) (*lockFile, error) {
	for waiting := false; ; waiting = true {
		l, err := lock(filepath.Join(f.downloads, "lock"))
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return l, err
		}
		if !waiting {
			f.log.Warn("no PostgreSQL is installed: waiting for another process that downloads one", "into", f.downloads)
			f.step.is("waiting for another process that downloads PostgreSQL", "")
		}
		if worker.Pause(ctx, lockPoll); ctx.Err() != nil {
			return nil, context.Cause(ctx)
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

// maxArchive is the largest archive that is downloaded, in bytes. The largest known one has 33 MB.
const maxArchive = 128 << 20

// downloader returns a Download that fetches zonky's archives from a Maven repository. It unpacks
// an archive only if its checksum is the one in pins.
func downloader(
	repository string, pins map[archive]string, log *slog.Logger, step Step,
) func(ctx context.Context, major int, dir string) error {
	return func(ctx context.Context, major int, dir string) error {
		a, sum, err := pin(pins, major)
		if err != nil {
			return err
		}
		jar, err := fetch(ctx, repository+"/io/zonky/test/postgres/embedded-postgres-binaries-"+a.platform+"/"+a.version+
			"/embedded-postgres-binaries-"+a.platform+"-"+a.version+".jar", log, step)
		if err != nil {
			return err
		}
		if got := sha256.Sum256(jar); hex.EncodeToString(got[:]) != sum {
			return fmt.Errorf("the archive %s-%s has the SHA-256 %x, want %s: it was not unpacked",
				a.platform, a.version, got, sum)
		}
		step.is("unpacking PostgreSQL", "")
		return unpack(ctx, jar, dir)
	}
}

// fetch gets an archive into memory.
func fetch(ctx context.Context, url string, log *slog.Logger, step Step) (_ []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	said := &progress{from: resp.Body, all: resp.ContentLength, log: log, step: step}
	body, err := io.ReadAll(io.LimitReader(said, maxArchive+1))
	if err == nil && len(body) > maxArchive {
		err = fmt.Errorf("%s is larger than %d bytes", url, maxArchive)
	}
	return body, err
}

// progressStep is how many bytes come between two lines of the log.
const progressStep = 5 << 20

// progress tells the log and a step how much of a download has arrived.
type progress struct {
	from            io.Reader
	all, read, said int64 // bytes; all is -1 if the total is not known
	log             *slog.Logger
	step            Step
}

// Read implements io.Reader.
func (p *progress) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	p.read += int64(n)
	p.step.is(downloading, fmt.Sprintf("%d of %d MB, ", p.read/1e6, max(p.all, 0)/1e6))
	if p.read >= p.said+progressStep {
		p.said = p.read
		p.log.Info("downloading PostgreSQL", "mb", p.read/1e6, "of", max(p.all, 0)/1e6)
	}
	return n, err
}

// maxUnpacked is the largest content of an archive, in bytes. The largest known one has 149 MB.
const maxUnpacked = 512 << 20

// unpack unpacks a verified archive: a zip file, in which a tar.xz file has the programs.
func unpack(ctx context.Context, jar []byte, dir string) (err error) {
	z, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return fmt.Errorf("the archive: %w", err)
	}
	inner := slices.IndexFunc(z.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, ".txz") })
	if inner < 0 {
		return errors.New("the archive contains no .txz")
	}
	compressed, err := z.File[inner].Open()
	if err != nil {
		return fmt.Errorf("the archive: %w", err)
	}
	defer func() { err = errors.Join(err, compressed.Close()) }()
	files, err := xz.NewReader(compressed, xz.DefaultDictMax)
	if err != nil {
		return fmt.Errorf("the archive: %w", err)
	}
	return untar(ctx, files, dir, maxUnpacked)
}
