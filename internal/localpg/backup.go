package localpg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
)

// The files of a backup. The manifest is written last.
const (
	clusterTar   = "postgres.tar"
	manifestName = "backup.json"
)

// Manifest says what a backup holds. Times are the server's.
type Manifest struct {
	Major    int       `json:"postgres"` // the major version that the backup needs
	Began    time.Time `json:"began"`
	Ended    time.Time `json:"ended"`    // the backup can be restored to this moment or a later one
	FirstWAL string    `json:"firstWAL"` // the oldest segment that the backup needs from an archive
	Bytes    int64     `json:"bytes"`    // size of the tar
}

// Backup copies the cluster of the server that runs in dataDir to a tar in the directory dir, while
// the server runs. The copy is complete without an archive, because it holds the WAL that was
// written during the backup. dir must be empty, or must not exist. An interrupted backup has no
// manifest, and Restore refuses it.
//
// Errors: ErrNotRunning, and errors of the database and of the file system.
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
	if err := emptyDir(dir); err != nil {
		return m, err
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return m, err
	}
	cfg.RuntimeParams["replication"] = "database" // such a session can make a base backup
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()

	const before = `SELECT current_setting('server_version_num')::int / 10000, clock_timestamp()`
	if err := conn.QueryRow(ctx, before).Scan(&m.Major, &m.Began); err != nil {
		return m, err
	}
	err = writeSynced(filepath.Join(dir, clusterTar), func(f io.Writer) error { return m.baseBackup(ctx, conn, f) })
	if err != nil {
		return m, err
	}
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&m.Ended); err != nil {
		return m, err
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return m, err
	}
	return m, writeSynced(filepath.Join(dir, manifestName), func(f io.Writer) error {
		_, err := f.Write(append(text, '\n'))
		return err
	})
}

// emptyDir makes the directory if it does not exist. Other accounts may not enter it.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = errors.New("the directory is not empty")
	}
	return err
}

// firstSegment finds, in the label of a backup, the WAL segment with which replaying begins.
var firstSegment = regexp.MustCompile(`START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)`)

// baseBackup writes the cluster of conn's server as a tar, with the WAL that is written meanwhile.
func (m *Manifest) baseBackup(ctx context.Context, conn *pgx.Conn, to io.Writer) error {
	const command = `BASE_BACKUP (LABEL 'mlsd backup', CHECKPOINT 'fast', WAL true, WAIT false, MANIFEST 'no')`
	s := &tarStream{to: to}
	if _, err := conn.PgConn().CopyTo(ctx, s, command); err != nil {
		return fmt.Errorf("copy the cluster: %w", err)
	}
	found := firstSegment.FindSubmatch(s.head)
	if found == nil {
		return errors.New("the backup does not begin with its label")
	}
	m.FirstWAL, m.Bytes = string(found[1]), s.bytes
	return nil
}

// headBytes is how much of a tar contains the label of the backup, which is the tar's first file.
const headBytes = 2048

// tarStream writes the tar that is in the messages of a base backup. The first byte of a message
// says what the message is.
type tarStream struct {
	to    io.Writer
	tars  int
	bytes int64
	head  []byte // the beginning of the tar, at least headBytes
}

// Write implements io.Writer.
func (s *tarStream) Write(message []byte) (int, error) {
	switch content := message[1:]; message[0] {
	case 'n':
		if s.tars++; s.tars > 1 {
			return 0, errors.New("the cluster has tablespaces outside its directory")
		}
	case 'd':
		s.bytes += int64(len(content))
		if len(s.head) < headBytes {
			s.head = append(s.head, content...)
		}
		if _, err := s.to.Write(content); err != nil {
			return 0, err
		}
	}
	return len(message), nil
}

// writeSynced writes a new file and puts it on disk.
func writeSynced(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
