package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mlsd/internal/errs"
)

// archiveTimeout is the time in seconds after which a segment of the WAL is archived, even if it is
// not full. It bounds what is lost if the machine is lost. An unfinished segment is small once it
// is compressed.
const archiveTimeout = "60"

// archiveSettings make the server copy every finished segment of its WAL to dir, compressed. A file
// in the archive is complete once it has its name. If the archive already has a segment, it must be
// the same.
func archiveSettings(dir string) map[string]string {
	dir = quoteShell(dir)
	return map[string]string{
		"archive_mode":    "on",
		"archive_timeout": archiveTimeout,
		"archive_command": `f=` + dir + `/%f.gz; if test -e "$f"; then gzip -dc "$f" | cmp -s - %p; ` +
			`else gzip -c %p >"$f.new" && sync "$f.new" && mv "$f.new" "$f" && sync ` + dir + `; fi`,
	}
}

// restoreCommand is the server's command that takes one segment from the archive in dir. Without an
// archive the command finds no segment.
func restoreCommand(dir string) string {
	if dir == "" {
		return "false"
	}
	f := quoteShell(dir) + "/%f.gz"
	return "test -e " + f + " && gzip -dc " + f + " >%p"
}

// quoteShell quotes a path for a command in PostgreSQL's settings, where % begins a placeholder.
func quoteShell(path string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(path, "'", `'\''`), "%", "%%") + "'"
}

// makeArchive makes the archive if it does not exist. "" means no archive.
func (a *account) makeArchive(dir string) error {
	if _, err := os.Stat(dir); dir == "" || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := makeDirs(dir)
	if err == nil {
		err = a.own(dir)
	}
	return errs.Wrap(err, "make the WAL archive")
}

// checkArchive returns the archive's absolute path. It fails unless the server's account can read
// and write the archive.
func (a *account) checkArchive(ctx context.Context, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil {
		return "", fmt.Errorf("WAL archive: %w", err)
	}
	const usable = `test -r "$0" && test -w "$0" && test -x "$0"`
	err = runChild(a.command(ctx, "/bin/sh", "/", "-c", usable, dir))
	return dir, errs.Wrap(err, "WAL archive: PostgreSQL runs as %s, which may not read and write %s", a.name, dir)
}
