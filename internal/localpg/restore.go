package localpg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// restorePrefix is the start of the name of a cluster that Restore has not finished.
const restorePrefix = "postgres.restore-"

// ErrNotEmpty means that a data directory has a cluster already. Restore does not overwrite it.
var ErrNotEmpty = errors.New("the data directory has a database already; a backup is restored into an empty one")

// Target says what is restored.
type Target struct {
	// To is the moment to which the cluster is restored. Zero means the end of the newest WAL in the
	// archive, or in the backup if there is no archive.
	To time.Time

	// Timeline is the timeline whose WAL is replayed. 0 means the backup's timeline: then the archive
	// must have no other timeline that began after the backup.
	Timeline uint32
}

// Restore makes the cluster of cfg.DataDir from a backup. The server begins a new timeline, so that
// its WAL is never taken for the WAL of another server. Restore calls prepare with the restored
// server, before the cluster gets its name. If anything fails, the data directory stays empty. last
// is when the newest replayed transaction was committed; it is zero if no transaction was replayed.
//
// Errors: [ErrNotEmpty], [*InUseError], [*VersionError], [*TimelinesError], errors of prepare, and
// PostgreSQL's error if the WAL ends before the moment.
func Restore(
	ctx context.Context, cfg Config, backup string, target Target, prepare func(context.Context, *Server) error,
) (last time.Time, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore %s into %s: %w", backup, cfg.DataDir, err)
		}
	}()
	m, err := readManifest(backup)
	switch {
	case err != nil:
		return last, err
	case !target.To.IsZero() && target.To.Before(m.Ended):
		return last, fmt.Errorf("the backup ended at %s, and can be restored to that moment or a later one: "+
			"take an older backup", m.Ended.UTC().Format(time.RFC3339Nano))
	}
	dir, err := prepareDir(cfg.DataDir)
	if err != nil {
		return last, err
	}
	lock, err := acquireLock(dir)
	if err != nil {
		return last, err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	final := &cluster{dir: filepath.Join(dir, "postgres")}
	if major, err := final.major(); err != nil || major != 0 {
		return last, errors.Join(err, ErrNotEmpty)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := removeLeftovers(ctx, dir, restorePrefix, log); err != nil {
		return last, err
	}
	tmp, err := os.MkdirTemp(dir, restorePrefix)
	if err != nil {
		return last, err
	}
	r := &restore{cfg: cfg, backup: m, target: target, dataDir: dir, cluster: &cluster{dir: tmp, log: log}}
	if last, err = r.run(ctx, filepath.Join(backup, clusterTar), prepare); err != nil {
		return last, errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Remove(final.dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // an empty directory
		return last, err
	}
	if err := os.Rename(tmp, final.dir); err != nil {
		return last, err
	}
	return last, syncDir(dir)
}

// readManifest reads the manifest of a backup, and compares it with the size of the tar.
func readManifest(backup string) (m Manifest, err error) {
	text, err := os.ReadFile(filepath.Join(backup, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("there is no complete backup: %w", err)
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, err
	}
	info, err := os.Stat(filepath.Join(backup, clusterTar))
	if err == nil && info.Size() != m.Bytes {
		err = fmt.Errorf("%s has %d bytes, and had %d", clusterTar, info.Size(), m.Bytes)
	}
	return m, err
}

// TimelinesError means that the archive has the WAL of timelines that began after the backup,
// because a server was restored before. The caller must say which timeline is meant.
type TimelinesError struct {
	Backup uint32   // the backup's timeline
	Later  []uint32 // in ascending order
}

func (e *TimelinesError) Error() string {
	return fmt.Sprintf("the backup is of timeline %d, and the archive has the later timelines %v, "+
		"which earlier restores have begun, also failed ones: say which one to restore", e.Backup, e.Later)
}

// checkTimelines returns a TimelinesError if the archive has a timeline that began after the
// backup.
func (m Manifest) checkTimelines(archive string) error {
	if archive == "" {
		return nil
	}
	own, err := timelineOf(m.FirstWAL)
	if err != nil {
		return err
	}
	histories, err := fs.Glob(os.DirFS(archive), "????????.history.gz")
	if err != nil {
		return fmt.Errorf("look for timelines: %w", err)
	}
	e := &TimelinesError{Backup: own}
	for _, name := range histories { // sorted
		timeline, err := timelineOf(name)
		if err != nil {
			return err
		}
		if timeline > own {
			e.Later = append(e.Later, timeline)
		}
	}
	if len(e.Later) > 0 {
		return e
	}
	return nil
}

// timelineOf reads the timeline in the name of a file of the WAL.
func timelineOf(name string) (uint32, error) {
	timeline, err := strconv.ParseUint(name[:min(len(name), 8)], 16, 32)
	if err != nil {
		return 0, fmt.Errorf("read the timeline of %q: %w", name, err)
	}
	return uint32(timeline), nil
}

// restore is a restore in progress.
type restore struct {
	cfg     Config
	backup  Manifest
	target  Target
	dataDir string
	cluster *cluster // under a temporary name
}

// run unpacks the backup, replays the WAL, calls prepare and stops the server again.
func (r *restore) run(
	ctx context.Context, backup string, prepare func(context.Context, *Server) error,
) (last time.Time, err error) {
	c := r.cluster
	if c.account, err = chooseAccount(c.dir, false); err != nil {
		return last, err
	}
	archive, err := c.prepare(ctx, r.cfg, r.dataDir, r.backup.Major)
	if err != nil {
		return last, err
	}
	if err := r.addSettings(archive); err != nil {
		return last, err
	}
	if err := r.unpack(ctx, backup); err != nil {
		return last, err
	}
	if c.account.cred != nil {
		if err := c.account.ownAll(c.dir); err != nil {
			return last, err
		}
	}
	c.log.Info("replaying the WAL", "dir", c.dir, "archive", r.cfg.Archive, "to", r.target.To)
	s, err := c.start(ctx, r.dataDir)
	if err != nil {
		return last, err
	}
	if last, err = lastReplayed(ctx, s); err == nil {
		err = prepare(ctx, s)
	}
	return last, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
}

// unpack makes the cluster of the backup, and says that it is to be restored. It does not put files
// on disk, because the server does so for the whole cluster before it replays the WAL.
func (r *restore) unpack(ctx context.Context, path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := untar(ctx, f, r.cluster.dir, math.MaxInt64); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.cluster.dir, "recovery.signal"), nil, 0o600)
}

// addSettings makes the server replay the WAL until the moment. Without hot_standby nobody can
// connect before that, and the settings may differ from the old server's settings.
func (r *restore) addSettings(archive string) error {
	settings := r.cluster.settings
	settings["restore_command"] = restoreCommand(archive)
	settings["hot_standby"] = "off"
	settings["recovery_target_timeline"] = "current"
	if r.target.Timeline != 0 {
		settings["recovery_target_timeline"] = fmt.Sprint(r.target.Timeline)
	} else if err := r.backup.checkTimelines(archive); err != nil {
		return err
	}
	if !r.target.To.IsZero() {
		settings["recovery_target_time"] = r.target.To.UTC().Format("2006-01-02 15:04:05.999999+00")
		settings["recovery_target_action"] = "promote"
	}
	return nil
}

// lastReplayed returns when the newest replayed transaction was committed.
func lastReplayed(ctx context.Context, s *Server) (at time.Time, err error) {
	conn, err := pgx.Connect(ctx, s.ConnString("postgres"))
	if err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	var found *time.Time
	if err := conn.QueryRow(ctx, `SELECT pg_last_xact_replay_timestamp()`).Scan(&found); err != nil {
		return at, fmt.Errorf("read what was replayed: %w", err)
	}
	if found != nil {
		at = *found
	}
	return at, nil
}
