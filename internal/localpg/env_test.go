package localpg

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hostileEnv is an environment with which every client and server that reads it fails, or uses
// another server.
func hostileEnv() []string {
	return []string{
		"PGDATA=/nonexistent", "PGPORT=1", "PGHOST=nowhere.invalid", "PGHOSTADDR=192.0.2.1", "PGUSER=somebody",
		"PGDATABASE=elsewhere",
		"PGPASSWORD=wrong", "PGPASSFILE=/nonexistent", "PGSERVICE=elsewhere", "PGSERVICEFILE=/nonexistent",
		"PGOPTIONS=-c search_path=elsewhere", "PGAPPNAME=another", "PGTZ=Mars/Olympus", "PGCONNECT_TIMEOUT=soon",
		"PGSSLMODE=verify-full", "PGSSLCERT=/nonexistent", "PGSSLKEY=/nonexistent", "PGSSLROOTCERT=/nonexistent",
		"PGSSLCERTMODE=require", "PGSSLNEGOTIATION=direct", "PGSSLSNI=2", "PGTARGETSESSIONATTRS=standby",
		"PGREQUIREAUTH=scram-sha-256", "PGCHANNELBINDING=require", "PGMINPROTOCOLVERSION=3.2", "PGMAXPROTOCOLVERSION=9.9",
		"PGLOCALEDIR=/nonexistent", "LC_ALL=tlh_QO", "LC_MESSAGES=tlh_QO", "TZ=Mars/Olympus",
	}
}

func TestEnvironmentDoesNotLeak(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	for range 2 { // with initdb, and without
		o := launchOwner(t, dir, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, hostileEnv()...) })
		o.ready(t) // the owner started, connected, and stored a row in the default schema
		o.finish(t)
	}
	s := start(t, Config{DataDir: dir})
	if got := stored(t, s); got != 2 {
		t.Errorf("%d rows, want 2", got)
	}
}

func TestChildEnvironment(t *testing.T) {
	t.Parallel()
	a := &account{}
	for _, kv := range a.command(t.Context(), filepath.Join("/bin", "true"), "/").Env {
		if strings.HasPrefix(kv, "PG") {
			t.Errorf("the child gets %s", kv)
		}
	}
}
