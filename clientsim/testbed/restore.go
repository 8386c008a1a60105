package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
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

// run runs a command of mlsd that is about the server's data directory.
func (b *Backups) run(ctx context.Context, args ...string) error {
	return b.w.Server.Command(ctx, b.settings(), args...)
}

// Restore stops the server and replaces its data by what it had at a moment. Then it starts it again.
// The model learns what is gone.
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

// CheckRestored checks that clients have made good what a restore has lost, and that each device has
// read each message. What cannot come back is in the report's notes: what accounts wrote that never
// came back, and what the others wrote anew before a late one came back, in an epoch that it had left.
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
