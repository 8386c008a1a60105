package localpg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A tar.xz with bin/postgres, bin/initdb, bin/pg_ctl and share/readme. The programs record in a
// file, such as bin/postgres.ran, that they ran. bin/postgres prints "postgres (PostgreSQL) 18.3".
// Made with:
//
//	tar -cJf testdata/postgres.txz --owner=0 --group=0 -C <dir> bin share
//
//go:embed testdata/postgres.txz
var txz []byte

func TestDownloadWhenNothingIsInstalled(t *testing.T) {
	t.Parallel()
	var calls []int
	cfg := Config{
		DataDir:   dataDir(t),
		installed: []string{},
		download: func(_ context.Context, major int, dir string) error {
			calls = append(calls, major)
			if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
				return err
			}
			writeScripts(t, filepath.Join(dir, "bin"), map[string]string{
				"postgres": `exec "$REAL/postgres" "$@"`,
				"initdb":   `exec "$REAL/initdb" "$@"`,
			})
			return nil
		},
	}
	s := start(t, cfg)
	mustStore(t, s)
	stop(t, s)
	if s := start(t, cfg); stored(t, s) != 1 {
		t.Error("a row is lost")
	}
	if len(calls) != 1 || calls[0] != newestMajor {
		t.Errorf("downloads of versions %v, want one of %d", calls, newestMajor)
	}
}

func TestFailedDownload(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	half := func(_ context.Context, _ int, dir string) error {
		return os.WriteFile(filepath.Join(dir, "half"), nil, 0o600)
	}
	cfg := Config{DataDir: dir, download: half, installed: []string{}}
	_, err := Start(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "downloading version 18 failed (install it, or set a database URL)") {
		t.Errorf("Start: %v", err)
	}
	// Only the file lock remains.
	if left, err := filepath.Glob(filepath.Join(dir, "pgbin", "[^l]*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestDownloadOnceForAll(t *testing.T) {
	t.Parallel()
	shared := newFinder(t)
	var calls atomic.Int32
	shared.download = func(_ context.Context, _ int, dir string) error {
		calls.Add(1)
		bin := filepath.Join(dir, "bin")
		if err := os.Mkdir(bin, 0o755); err != nil {
			return err
		}
		writeScripts(t, bin, map[string]string{"postgres": "echo 'postgres (PostgreSQL) 18.1'", "initdb": "exit 1"})
		return nil
	}
	var wg sync.WaitGroup
	for range 3 {
		f := *shared
		wg.Go(func() {
			if b, err := f.find(t.Context(), 0); err != nil || b.major != 18 {
				t.Errorf("%v, %v", b, err)
			}
		})
	}
	wg.Wait()
	if got := calls.Load(); got != 1 {
		t.Errorf("%d downloads", got)
	}
}

// repository serves one jar, as Maven Central does. It returns the checksum by which the jar is
// known for every version.
func repository(t *testing.T) (url string, pins map[archive]string) {
	t.Helper()
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	w, err := z.Create("postgres-some-platform.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(txz); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "-18.3.0.jar") {
			http.NotFound(w, r)
			return
		}
		if _, err := w.Write(jar.Bytes()); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	pins = map[archive]string{}
	for _, version := range versions {
		pins[archive{version, platform()}] = fmt.Sprintf("%x", sha256.Sum256(jar.Bytes()))
	}
	return srv.URL, pins
}

// An archive is unpacked. Nothing of it runs, apart from the question for its version.
func TestDownloader(t *testing.T) {
	t.Parallel()
	f := newFinder(t)
	url, pins := repository(t)
	f.download = downloader(url, pins, discard(), nil)
	dir := t.TempDir()
	if err := f.download(t.Context(), 18, dir); err != nil {
		t.Fatal(err)
	}
	if ran, err := filepath.Glob(filepath.Join(dir, "bin", "*.ran")); err != nil || len(ran) > 0 {
		t.Errorf("unpacking ran %v, %v", ran, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("unpacked %v, %v; want bin and share", entries, err)
	}
	b, err := f.find(t.Context(), 0)
	if want := (binaries{filepath.Join(f.downloads, "18", "bin"), 18}); err != nil || b != want {
		t.Errorf("%v, %v; want %v", b, err, want)
	}
	if _, err := f.find(t.Context(), 17); err == nil {
		t.Error("version 17 found")
	}
}

// H12: an archive whose checksum is not the one in the source is not unpacked, whatever the
// repository says. One that the source does not know is not downloaded.
func TestDownloaderFailures(t *testing.T) {
	t.Parallel()
	url, pins := repository(t)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx   context.Context
		url   string
		pins  map[archive]string
		major int
		want  string
	}{
		"not there":            {t.Context(), url, pins, 17, "status 404"},
		"unknown":              {t.Context(), url, pins, 14, "no download of PostgreSQL 14"},
		"wrong checksum":       {t.Context(), url, pinned, 18, "it was not unpacked"},
		"a platform of nobody": {t.Context(), url, map[archive]string{}, 18, "whose content can be verified"},
		"cancelled":            {cancelled, "http://192.0.2.1", pins, 18, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "wrong checksum" && pinned[archive{versions[18], platform()}] == "" {
				t.Skip("no checksum is known for this system")
			}
			dir := t.TempDir()
			if err := downloader(tc.url, tc.pins, discard(), nil)(tc.ctx, tc.major, dir); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// Each version that can be downloaded has checksums for the common systems.
func TestPins(t *testing.T) {
	t.Parallel()
	for major, version := range versions {
		for _, platform := range []string{"linux-amd64", "linux-amd64-alpine", "darwin-amd64"} {
			if len(pinned[archive{version, platform}]) != 64 {
				t.Errorf("PostgreSQL %d for %s has no checksum", major, platform)
			}
		}
	}
	for a, sum := range pinned {
		if _, err := hex.DecodeString(sum); err != nil || !slices.Contains(slices.Collect(maps.Values(versions)), a.version) {
			t.Errorf("%v: %s", a, sum)
		}
	}
}

// O5: a long download says how far it is.
func TestDownloadSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	const all = 12 << 20
	var step string
	p := &progress{from: bytes.NewReader(make([]byte, all)), all: all, log: slog.New(slog.NewTextHandler(&said, nil)),
		step: func(_, detail string) { step = detail }}
	if n, err := io.Copy(io.Discard, p); n != all || err != nil {
		t.Fatal(n, err)
	}
	if got := strings.Count(said.String(), "downloading PostgreSQL"); got != 2 ||
		!strings.Contains(said.String(), "mb=10 of=12") {
		t.Errorf("%d lines:\n%s", got, said.String())
	}
	if step != "12 of 12 MB, " {
		t.Errorf("the step is at %q", step)
	}
}
