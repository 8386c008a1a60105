package testbed

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlsd/clientsim/xrpc"
)

// script writes an executable that stands in for mlsd.
func script(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mlsd")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.Join(lines, "\n")+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// The first start fixes the address. A killed server comes back at that address with the settings
// of the new start. It gets no MLSD_ or PG variable of the caller.
func TestServerComesBackAtItsAddress(t *testing.T) {
	t.Setenv("MLSD_NONSENSE", "1") // unknown settings are fatal to mlsd
	t.Setenv("PGHOST", "elsewhere")
	dir := t.TempDir()
	binary := script(t,
		`env | grep -E "^(MLSD|PG)" | sort >>"$MLSD_DATA_DIR/env"`,
		`case $MLSD_LISTEN in *:0) MLSD_LISTEN=127.0.0.1:4711;; esac`,
		`trap 'exit 0' TERM`,
		`echo "mlsd admin on http://127.0.0.1:4712"; echo "mlsd listening on http://$MLSD_LISTEN"`,
		`while :; do sleep 0.05; done`)
	p := NewProc(binary, dir, "http://127.0.0.1:1", xrpc.DefaultServiceDID)
	if err := p.Start(t.Context(), map[string]string{"MLSD_WELCOME_GRACE": "1s"}); err != nil {
		t.Fatal(err)
	}
	if p.URL() != "http://127.0.0.1:4711" {
		t.Errorf("URL = %s", p.URL())
	}
	if err := p.Start(t.Context(), nil); err == nil {
		t.Error("started twice")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	seen, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(seen)
	for want, times := range map[string]int{
		"MLSD_NONSENSE": 0, "PGHOST": 0, "MLSD_WELCOME_GRACE=1s": 1, "MLSD_FAILPOINTS=true": 2,
		"MLSD_LISTEN=127.0.0.1:0": 1, "MLSD_LISTEN=127.0.0.1:4711": 1, "MLSD_PLC_URL=http://127.0.0.1:1": 2,
	} {
		if got := strings.Count(text, want); got != times {
			t.Errorf("%s stands %d times in the two environments, want %d:\n%s", want, got, times, text)
		}
	}
}

// Another server on a server's database has the same settings, and its own address. The database's
// socket stays where the first server keeps it.
func TestAnotherOnTheDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := NewProc(script(t, `exit 0`), dir, "http://127.0.0.1:1", xrpc.DefaultServiceDID)
	p.env["MLSD_LISTEN"] = "127.0.0.1:4711"
	for _, sockets := range []string{filepath.Join(dir, "run"), "/tmp/elsewhere"} {
		database, err := p.database()
		if err != nil {
			t.Fatal(err)
		}
		env := strings.Join(p.onDatabase(database, "-sibling").environment(nil), "\n")
		for _, want := range []string{
			"MLSD_LISTEN=127.0.0.1:0", "MLSD_PLC_URL=http://127.0.0.1:1", "MLSD_DATA_DIR=" + dir + "-sibling",
			"MLSD_DATABASE_URL=postgres://mlsd@/mlsd?host=" + url.QueryEscape(sockets) + "&",
		} {
			if !strings.Contains(env, want) {
				t.Errorf("no %s in its environment:\n%s", want, env)
			}
		}
		if err := os.Symlink("/tmp/elsewhere", filepath.Join(dir, "run")); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

func TestServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	p := NewProc(script(t, `echo "no such setting" >&2`, `exit 3`), t.TempDir(), "http://127.0.0.1:1",
		xrpc.DefaultServiceDID)
	err := p.Start(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such setting") {
		t.Errorf("Start = %v, want the status and the last words", err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("Stop of a dead server = %v", err)
	}
}

func TestServerDied(t *testing.T) {
	t.Parallel()
	binary := script(t, `echo "mlsd admin on http://x"; echo "mlsd listening on http://y"`,
		`while [ ! -e "$MLSD_DATA_DIR/die" ]; do sleep 0.01; done`, `kill -9 $$`)
	dir := t.TempDir()
	p := NewProc(binary, dir, "http://127.0.0.1:1", xrpc.DefaultServiceDID)
	if err := p.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "die"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Died(); err != nil {
		t.Error(err)
	}
}
