package localpg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scripts makes a directory of shell scripts that replace PostgreSQL's programs. $REAL in them is
// the directory of the real programs.
func scripts(t *testing.T, bodies map[string]string) string {
	t.Helper()
	dir := programDir(t)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeScripts(t, dir, bodies)
	return dir
}

func writeScripts(t *testing.T, dir string, bodies map[string]string) {
	t.Helper()
	real := installed(t).dir
	for name, body := range bodies {
		script := "#!/bin/sh\n" + strings.ReplaceAll(body, "$REAL", real) + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// installed returns this machine's PostgreSQL.
func installed(t *testing.T) binaries {
	t.Helper()
	dir := dataDir(t)
	a, err := chooseAccount(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	f := &finder{installed: InstalledDirs(), downloads: dir, download: noDownload, log: discard(), account: a}
	b, err := f.find(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
