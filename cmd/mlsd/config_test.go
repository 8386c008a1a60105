package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlsd/internal/pgtest"
)

// A lifetime that is not allowed is refused with the reason. Finding S5.
func TestBadLifetime(t *testing.T) {
	t.Parallel()
	s := launch(t, []string{"MLSD_IDEMPOTENCY_TTL=createConvo=1m", "MLSD_DATA_DIR=" + dataDir(t)})
	s.fails("MLSD_IDEMPOTENCY_TTL", "createConvo=1m", "at least 1h")
}

// A bad setting stops every command before anything is started.
func TestBadSetting(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"", "serve", "migrate up", "migrate version"} {
		dir := dataDir(t)
		s := launch(t, []string{"MLSD_WELCOME_GRACE=soon", "MLSD_DATA_DIR=" + dir}, strings.Fields(command)...)
		s.fails("MLSD_WELCOME_GRACE", "soon")
		if log := s.stderr.String(); log != "" || s.stdout.String() != "" {
			t.Errorf("%q: %s%s", command, s.stdout, log)
		}
	}
}

// If the service's DID does not contain its URL, the URL must be set. That is checked before
// anything is started.
func TestNoPublicURL(t *testing.T) {
	t.Parallel()
	s := launch(t, []string{"MLSD_SERVICE_DID=did:plc:ewvi7nxzyoun6zhxrhs64oiz", "MLSD_DATA_DIR=" + dataDir(t)})
	s.fails("MLSD_PUBLIC_URL", "did:plc:ewvi7nxzyoun6zhxrhs64oiz")
	if log := s.stderr.String(); log != "" || s.stdout.String() != "" {
		t.Errorf("%s%s", s.stdout, log)
	}
}

// A list of admitted accounts that cannot be read is fatal at the start.
func TestBrokenAdmitFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "admitted")
	if err := os.WriteFile(file, []byte("did:plc:alice\nbob\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := launch(t, []string{"MLSD_ADMIT=" + file, "MLSD_DATABASE_URL=" + pgtest.URL(t)})
	s.fails("MLSD_ADMIT", file, "line 2")
}
