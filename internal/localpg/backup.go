package localpg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// manifestName is the file of a backup that is written last.
const manifestName = "backup.json"

// Manifest says what a backup holds. Times are the server's.
type Manifest struct {
	Major    int       `json:"postgres"` // the major version that it needs
	Began    time.Time `json:"began"`
	Ended    time.Time `json:"ended"`    // it can be restored to this moment, or to a later one
	FirstWAL string    `json:"firstWAL"` // the oldest segment of an archive that it needs
}

// Backup copies the cluster of the server that runs in dataDir to the directory dir, while it runs.
// The copy is complete without an archive: it holds the WAL of its own time. dir must be empty, or
// not exist. An interrupted backup has no manifest, and Restore refuses it.
//
// Errors: ErrNotRunning, those of the database and of the file system.
func Backup(ctx context.Context, dataDir, dir string) (m Manifest, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up %s to %s: %w", dataDir, dir, err)
		}
	}()
	url, err := Running(dataDir, "postgres")
	if err != nil {
		return m, err
	}
	if dir, err = emptyDir(dir); err != nil {
		return m, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return m, err
	}
	// The end of the session ends an unfinished backup.
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if m, err = backUp(ctx, conn, filepath.Join(dir, "postgres")); err != nil {
		return m, err
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = writeSynced(filepath.Join(dir, manifestName), append(text, '\n'))
	}
	return m, err
}

// emptyDir makes the directory if it does not exist, and returns its absolute path. Other accounts
// may not enter it.
func emptyDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = errors.New("the directory is not empty")
	}
	return dir, err
}

// backUp copies the cluster of conn's server to the directory to. The slot keeps the server from
// deleting WAL meanwhile. It belongs to the session.
func backUp(ctx context.Context, conn *pgx.Conn, to string) (m Manifest, err error) {
	var from, tablespaces string
	var version int
	err = conn.QueryRow(ctx, `
		SELECT current_setting('data_directory'), current_setting('server_version_num')::int / 10000, clock_timestamp(),
			coalesce((SELECT string_agg(spcname, ', ') FROM pg_tablespace WHERE spcname NOT IN ('pg_default', 'pg_global')), '')
		FROM pg_create_physical_replication_slot('mlsd_backup_' || pg_backend_pid(), true, true)`).
		Scan(&from, &version, &m.Began, &tablespaces)
	switch {
	case err != nil:
		return m, fmt.Errorf("keep the WAL: %w", err)
	case tablespaces != "":
		return m, fmt.Errorf("the cluster has tablespaces outside its directory: %s", tablespaces)
	}
	m.Major = version
	if err := conn.QueryRow(ctx, `SELECT pg_walfile_name(pg_backup_start('mlsd backup', true))`).Scan(&m.FirstWAL); err != nil {
		return m, fmt.Errorf("begin the backup: %w", err)
	}
	if err := copyRunning(ctx, from, to); err != nil {
		return m, err
	}
	var label, lastWAL string
	err = conn.QueryRow(ctx, `SELECT labelfile, pg_walfile_name(lsn), clock_timestamp() FROM pg_backup_stop(false)`).
		Scan(&label, &lastWAL, &m.Ended)
	if err != nil {
		return m, fmt.Errorf("end the backup: %w", err)
	}
	if err := writeSynced(filepath.Join(to, "backup_label"), []byte(label)); err != nil {
		return m, err
	}
	return m, copyWAL(ctx, filepath.Join(from, "pg_wal"), filepath.Join(to, "pg_wal"), m.FirstWAL, lastWAL)
}

// copyRunning copies the cluster of a running server, without what the server makes anew when it
// starts. Files can change and vanish meanwhile: the WAL repairs what was changed.
func copyRunning(ctx context.Context, from, to string) error {
	err := copyTree(ctx, from, to, func(path string, entry fs.DirEntry) bool {
		switch parent, name := filepath.Split(path); {
		case parent != "" && emptied[filepath.Clean(parent)]:
			return false
		case entry.IsDir():
			return !strings.HasPrefix(name, "pgsql_tmp")
		default:
			return name != "postmaster.pid" && name != "postmaster.opts" && !strings.HasPrefix(name, "pg_internal.init")
		}
	})
	if err != nil {
		return fmt.Errorf("copy the cluster: %w", err)
	}
	return nil
}

// emptied are the directories of a cluster that are copied without what is in them. PostgreSQL's
// documentation of backups lists them. The WAL is copied later.
var emptied = map[string]bool{
	"pg_wal": true, "pg_replslot": true, "pg_dynshmem": true, "pg_notify": true, "pg_serial": true, "pg_snapshots": true,
	"pg_stat_tmp": true, "pg_subtrans": true,
}

// copyWAL copies the segments from first to last, and the histories of timelines.
func copyWAL(ctx context.Context, from, to, first, last string) error {
	found := map[string]bool{}
	err := copyTree(ctx, from, to, func(path string, entry fs.DirEntry) bool {
		segment := len(path) == len(first) && first <= path && path <= last
		found[path] = segment
		return !entry.IsDir() && (segment || strings.HasSuffix(path, ".history"))
	})
	if err == nil && !found[first] {
		err = fmt.Errorf("segment %s is not there any more", first)
	}
	if err != nil {
		return fmt.Errorf("copy the WAL: %w", err)
	}
	return nil
}
