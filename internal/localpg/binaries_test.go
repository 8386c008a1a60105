package localpg

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func noDownload(context.Context, int, string) error { return errors.New("no download in this test") }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// fakeVersion makes a directory whose postgres prints the given version.
func fakeVersion(t *testing.T, version string) string {
	t.Helper()
	return scripts(t, map[string]string{"postgres": "echo 'postgres (PostgreSQL) " + version + "'", "initdb": "exit 1"})
}

func newFinder(t *testing.T, dirs ...string) *finder {
	t.Helper()
	dir := dataDir(t)
	a, err := chooseAccount(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	return &finder{
		installed: dirs, downloads: filepath.Join(dir, "pgbin"), download: noDownload, log: discard(), account: a,
	}
}

func TestFindBinaries(t *testing.T) {
	t.Parallel()
	v14, v15, v18 := fakeVersion(t, "14.9"), fakeVersion(t, "15.14 (Debian 15.14-0+deb12u1)"), fakeVersion(t, "18beta1")
	onlyServer := scripts(t, map[string]string{"postgres": "echo 'postgres (PostgreSQL) 17.1'"})
	broken := scripts(t, map[string]string{"postgres": "exit 127", "initdb": "exit 127"})
	links := scripts(t, nil)
	if err := os.Symlink(filepath.Join(v18, "postgres"), filepath.Join(links, "postgres")); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(links, "none")
	for name, tc := range map[string]struct {
		dirs []string
		want int
		got  binaries
		err  string
	}{
		"the first that will do": {dirs: []string{none, v14, onlyServer, broken, v15, v18}, got: binaries{v15, 15}},
		"through a link":         {dirs: []string{links, v15}, got: binaries{v18, 18}},
		"the cluster's version":  {dirs: []string{v15, v18}, want: 18, got: binaries{v18, 18}},
		"not the cluster's version": {dirs: []string{v18, v15, v18}, want: 16,
			err: "made by PostgreSQL 16, but only [15 18] was found"},
		"nothing":                       {dirs: []string{none}, err: "no download in this test"},
		"too old":                       {dirs: []string{v14}, err: "no download in this test"},
		"too old, even for its cluster": {dirs: []string{v14}, want: 14, err: "made by PostgreSQL 14"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := newFinder(t, tc.dirs...).find(t.Context(), tc.want)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %s", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.got, got, cmp.AllowUnexported(binaries{})); diff != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		})
	}
}

func TestNewestFirst(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	want := []string{"postgresql@18", "postgresql@17", "postgresql@9.6", "postgresql@9.4"}
	for _, name := range want {
		if err := os.MkdirAll(filepath.Join(base, name, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, dir := range newestFirst(base, "postgresql@*/bin") {
		got = append(got, filepath.Base(filepath.Dir(dir)))
	}
	want[2], want[3] = want[3], want[2] // the same major version: by name
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
