package localpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDefaultDataDir(t *testing.T) {
	t.Parallel()
	home := func() (string, error) { return "/home/ada", nil }
	homeless := func() (string, error) { return "", errors.New("no home") }
	for name, tc := range map[string]struct {
		uid  int
		xdg  string
		home func() (string, error)
		want string
	}{
		"root":         {0, "", home, "/var/lib/mlsd"},
		"root's xdg":   {0, "/data", home, "/data/mlsd"},
		"user":         {1000, "", home, "/home/ada/.local/share/mlsd"},
		"xdg":          {1000, "/data/ada", homeless, "/data/ada/mlsd"},
		"relative xdg": {1000, "ada", home, "/home/ada/.local/share/mlsd"},
		"homeless":     {1000, "", homeless, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := defaultDataDir(tc.uid, tc.xdg, tc.home)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestDataDirThroughALink(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	link := filepath.Join(filepath.Dir(dir), "link")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{DataDir: link})
	mustStore(t, s)
	var inUse *InUseError
	if _, err := Start(t.Context(), Config{DataDir: dir, download: noDownload}); !errors.As(err, &inUse) {
		t.Errorf("Start by the other name: %v", err)
	}
	if none(t, dir) {
		t.Error("the server's processes are not seen")
	}
}

// The path contains every character that is special in a setting or a URL. It is also too long for
// a socket.
func TestLongAndOddDataDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), `o,d"d 'dir%20[x]*?#&\`, strings.Repeat("long", 25))
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	if strings.HasPrefix(s.socketDir, dir) || !fits(s.socketDir) {
		t.Errorf("socket in %s", s.socketDir)
	}
	stop(t, s)
	if _, err := os.Stat(s.socketDir); !os.IsNotExist(err) {
		t.Errorf("socket directory after Stop: %v", err)
	}

	o := launchOwner(t, dir, nil)
	o.ready(t)
	o.kill(t)
	left, err := os.Readlink(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	if s := start(t, Config{DataDir: dir}); stored(t, s) != 2 {
		t.Error("a row is lost")
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("the killed owner's socket directory: %v", err)
	}
}

func TestOddDataDir(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`o"d 'd%20[x]*?#&\`, "a,b"} {
		s := start(t, Config{DataDir: filepath.Join(dataDir(t), name)})
		mustStore(t, s)
	}
}
