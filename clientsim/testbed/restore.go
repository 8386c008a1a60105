package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Backups are a backup of the world's server and an archive of its WAL.
type Backups struct {
	w   *World
	dir string
}

// NewBackups restarts the server with an archive, and makes a backup.
func (w *World) NewBackups(ctx context.Context) (b *Backups, err error) {
	defer Catch(&err)
	if b = (&Backups{w: w}); w.Server.data == "" {
		return nil, errors.New("the server has no PostgreSQL of its own")
	}
	b.dir = Must(os.MkdirTemp(filepath.Dir(w.Server.data), "backups-"))
	w.AtEnd(func() error { return os.RemoveAll(b.dir) })
	// The database may run as another user, who copies its WAL there.
	Check(os.Chmod(b.dir, 0o755))
	Check(w.Restart(ctx, b.settings()))
	return b, b.run(ctx, "backup", filepath.Join(b.dir, "base"))
}

func (b *Backups) settings() map[string]string {
	return map[string]string{"MLSD_WAL_ARCHIVE": filepath.Join(b.dir, "wal")}
}

// run runs a command of mlsd on the server's data directory.
func (b *Backups) run(ctx context.Context, args ...string) error {
	return b.w.Server.Command(ctx, b.settings(), args...)
}

// Restore stops the server, replaces its data by the data of a given moment, and starts the server
// again. The model learns what is gone.
func (b *Backups) Restore(ctx context.Context, to time.Time) (err error) {
	defer Catch(&err)
	w := b.w
	w.CloseIdle()
	Check(w.Server.Stop())
	Check(os.Rename(w.Server.data, filepath.Join(b.dir, "lost")))
	Check(b.run(ctx, "restore", "--to", to.UTC().Format(time.RFC3339Nano), filepath.Join(b.dir, "base")))
	Check(w.Server.Start(ctx, nil))
	return w.recordAllRestored(ctx)
}

// recordAllRestored tells the model what the server has after a restore.
func (w *World) recordAllRestored(ctx context.Context) error {
	w.ledger.Restored()
	for _, c := range w.Model.Snapshot() {
		if err := w.recordRestored(ctx, &c); err != nil {
			return err
		}
	}
	return nil
}

// recordRestored tells the model what the server has of a convo. The creator sees the whole log.
func (w *World) recordRestored(ctx context.Context, c *history.ConvoModel) (err error) {
	defer Catch(&err)
	creator := Must(w.founder(c))
	roster := Must(creator.Roster(ctx, c.ID))
	log, _ := Must2(w.wholeLog(ctx, w.Net, creator.Account, c.ID))
	w.Model.Restored(c.ID, log, roster)
	return nil
}

// founder returns a phone that is in a convo from its beginning and still is.
func (w *World) founder(c *history.ConvoModel) (*client.Phone, error) {
	live := c.Live()
	for _, p := range w.phones {
		if slices.Contains(live, p.Account.DID) && c.Founded(p.Account.DID) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no founder is left in convo %s", c.ID)
}

// CheckRestored checks that clients have made good what a restore has lost, and that each device
// has read each message. The report's notes name what cannot come back. An account that never came
// back leaves its writes lost. A late device cannot read messages that others wrote anew, before it
// came back, in an epoch that it had left.
func (w *World) CheckRestored(never, late func(syntax.DID) bool) {
	for _, c := range w.Model.Snapshot() {
		found, named := c.CheckRestored(never)
		for _, p := range w.membersOf(&c) {
			unread, err := unreadBy(p, &c)
			if err != nil {
				w.Broken("%v", err)
			}
			for _, text := range unread {
				if late(p.Account.DID) {
					named = append(named, fmt.Sprintf("%q to %s, which came back after it was written anew", text, p.Name))
					continue
				}
				found = append(found, history.Violation{Kind: history.Lost, Convo: c.ID, Who: p.Name,
					What: fmt.Sprintf("%q was never read", text)})
			}
		}
		w.Report(found...)
		for _, text := range named {
			w.Note("cannot come back: %s", text)
		}
	}
}

// unreadBy returns the messages that a phone has never read.
func unreadBy(p *client.Phone, c *history.ConvoModel) (_ []string, err error) {
	defer Catch(&err)
	inbox := Must(p.Inbox(c.ID))
	loose, err := p.Loose(c.ID)
	return c.Unread(p.Account.DID, append(inbox, loose...)), err
}

// Backrest is a PostgreSQL whose backups and WAL pgBackRest keeps, as
// deploy/patroni/pgbackrest.conf says. The world's server uses it.
type Backrest struct {
	*installation
	w        *World
	template string // the text of pgbackrest.conf
	port     int
	dir      string // data directory
	postgres *Postmaster

	newest int64 // newest generation of the event stream when the backup was made
}

// NewBackrest starts a PostgreSQL with pgBackRest, and the world's server on it.
func (w *World) NewBackrest(ctx context.Context) (b *Backrest, err error) {
	defer Catch(&err)
	text := Must(os.ReadFile(filepath.Join(w.Patroni, "pgbackrest.conf")))
	b = &Backrest{w: w, template: string(text), port: Must(freePort()), installation: Must(install("pgbackrest"))}
	w.AtEnd(b.close)
	Check(b.create(ctx))
	return b, w.Restart(ctx, b.settings())
}

func (b *Backrest) settings() map[string]string {
	return map[string]string{"MLSD_DATABASE_URL": b.url("mlsd")}
}

func (b *Backrest) url(database string) string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/%s?sslmode=disable", b.password, b.port, database)
}

// create makes the cluster with an archive, and the repository.
func (b *Backrest) create(ctx context.Context) (err error) {
	defer Catch(&err)
	b.dir = filepath.Join(b.home, "first")
	Check(b.configure())
	Check(b.initdb(ctx, b.dir, "postgres"))
	file := Must(os.OpenFile(filepath.Join(b.dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0))
	_, err = fmt.Fprintf(file, "archive_mode = on\narchive_timeout = 60\nmax_connections = 200\n"+
		"archive_command = 'pgbackrest --config=%s --stanza=mlsd archive-push %%p'\n", b.config())
	Check(errors.Join(err, file.Close()))
	Check(b.start(ctx))
	Check(Exec(ctx, b.url("postgres"), `CREATE DATABASE mlsd TEMPLATE template0 ENCODING 'UTF8'`))
	return b.pgbackrest(ctx, "stanza-create")
}

func (b *Backrest) config() string { return filepath.Join(b.home, "pgbackrest.conf") }

// configure writes the configuration of pgBackRest for the data directory.
func (b *Backrest) configure() error {
	text := strings.NewReplacer("/var/lib/postgresql/15/mlsd", b.dir, "/var/", b.home+"/").Replace(b.template)
	return os.WriteFile(b.config(), []byte(strings.ReplaceAll(text, b.home+"/run/postgresql", b.home)+
		"pg1-port="+strconv.Itoa(b.port)+"\n"), 0o644)
}

// start starts PostgreSQL in the data directory, at its usual port.
func (b *Backrest) start(ctx context.Context) error {
	b.postgres = b.postmaster(b.dir, b.port, b.home, b.url("postgres"))
	return b.postgres.Start(ctx)
}

func (b *Backrest) pgbackrest(ctx context.Context, args ...string) error {
	return b.run(ctx, "pgbackrest", append([]string{"--config=" + b.config(), "--stanza=mlsd"}, args...)...)
}

// Backup makes a full backup. Its settings are those of a primary with a synchronous standby, as
// Patroni writes them. This server has no standby, and does not read them.
func (b *Backrest) Backup(ctx context.Context) (err error) {
	defer Catch(&err)
	b.newest, _, err = b.generation(ctx)
	Check(err)
	file := Must(os.OpenFile(filepath.Join(b.dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0))
	_, err = file.WriteString("synchronous_standby_names = 'b'\n")
	Check(errors.Join(err, file.Close()))
	return b.pgbackrest(ctx, "--type=full", "backup")
}

// typed returns the commands by which the README tells to restore a moment, for this server.
func (b *Backrest) typed(to time.Time) string {
	text := string(Must(os.ReadFile(filepath.Join(b.w.Patroni, "README.md"))))
	_, text, _ = strings.Cut(text, "<!-- typed: restore -->\n\n")
	text, _, _ = strings.Cut(text, "\n\n")
	return strings.NewReplacer("pgbackrest ", "pgbackrest --config="+b.config()+" ", "2026-11-22 10:15:00+00",
		to.UTC().Format("2006-01-02 15:04:05.999999+00"), "/var/lib/postgresql/15/mlsd", b.dir).Replace(text)
}

// Restore restores the data of a given moment into another directory, as on a new machine. The old
// directory is not used. The model learns what is gone. The server must notice the restore by
// itself.
func (b *Backrest) Restore(ctx context.Context, to time.Time) (err error) {
	defer Catch(&err)
	w := b.w
	w.CloseIdle()
	// PostgreSQL archives the last segment when it stops.
	Check(errors.Join(w.Server.Stop(), b.postgres.Stop()))
	b.dir = filepath.Join(b.home, "second")
	Check(b.configure())
	Check(b.run(ctx, "mkdir", "--mode=700", b.dir))
	Check(b.run(ctx, "sh", "-e", "-c", b.typed(to)))
	Check(errors.Join(b.start(ctx), b.awaitPromotion(ctx), w.Server.Start(ctx, b.settings())))
	Check(b.awaitNoticed(ctx))
	return w.recordAllRestored(ctx)
}

// awaitNoticed waits until the server has begun a generation of the event stream.
func (b *Backrest) awaitNoticed(ctx context.Context) (err error) {
	defer Catch(&err)
	var id int64
	var cause string
	started := time.Now()
	Check(errs.Wrap(xrpc.Until(ctx, startLimit, func() (_ bool, err error) {
		id, cause, err = b.generation(ctx)
		return id > b.newest, err
	}), "the server has not noticed the restore"))
	b.w.Note("noticed within %s of its start: generation %d of the event stream, cause %q",
		time.Since(started).Round(time.Second/10), id, cause)
	return nil
}

// awaitPromotion waits until the restored server accepts writes.
func (b *Backrest) awaitPromotion(ctx context.Context) error {
	return xrpc.Until(ctx, startLimit, func() (writes bool, err error) {
		err = Scan(ctx, b.url("postgres"), `SELECT NOT pg_is_in_recovery()`, nil, &writes)
		return writes, err
	})
}

// generation returns the newest generation of the event stream, and its cause.
func (b *Backrest) generation(ctx context.Context) (id int64, cause string, err error) {
	err = Scan(ctx, b.url("mlsd"), `SELECT id, cause FROM generations ORDER BY id DESC LIMIT 1`, nil, &id, &cause)
	return id, cause, err
}

// close stops the server, which cannot run without its database, and PostgreSQL. It removes their
// files.
func (b *Backrest) close() error {
	errs := []error{b.w.Server.Stop()}
	if b.postgres != nil {
		errs = append(errs, b.postgres.Stop())
	}
	return errors.Join(append(errs, b.w.Server.Start(context.Background(), nil), os.RemoveAll(b.home))...)
}
