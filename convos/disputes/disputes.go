// Package disputes stores what members report about the epochs of their convos: the authenticator
// of an epoch that they have entered, and commits that they could not process. If members report
// two authenticators of one epoch, the epoch is forked. A commit is disputed if more people report
// it than one liar can speak for.
//
// The server cannot tell who is right, and never takes a commit back. A dispute only changes which
// commits come next: until all who reported are back, the server accepts only external commits, by
// which each of them enters the present epoch.
//
// The package owns the tables epoch_reports, forked_epochs, commit_reports and disputes.
package disputes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/messages"
	"mlsd/outbox"
)

const (
	// KeepEpochs is for how many of a convo's newest epochs reports are accepted and kept.
	KeepEpochs = 8
	// Lasts is the longest time that disputes of a convo are open. Disputes that follow each other
	// within Pause share that time.
	Lasts = 10 * time.Minute
	// Pause is how long a dispute counts against Lasts after it has ended.
	Pause = time.Hour

	// MaxReason is the longest reason of a report, in characters.
	MaxReason = 64

	// share is the part of the possible counted reports that a dispute needs: 1/share.
	share = 4
	// fewest is the least number of counted reports that a dispute needs. One liar counts as one.
	fewest = 2
)

// Person is someone who is or was on the roster of a convo.
type Person struct {
	DID       syntax.DID
	InvitedBy syntax.DID // who added the person last; "" for a founder, or if that is not known
	Admin     bool       // the person is an admin of the convo, or was one when it left
	// Entitled says that the person is a member now, has accepted the convo, and joined before the
	// reported commit.
	Entitled bool
	// Reports says that the person has reported the commit and has not come back to the group.
	Reports bool
}

// Count is the number of counted reports of a commit.
type Count struct {
	Possible int // how many reports could be counted
	Reports  int // how many reports are counted
}

// Disputed reports whether the commit is disputed: at least two reports are counted, and they are
// at least a quarter of all possible counted reports.
func (c Count) Disputed() bool { return c.Reports >= fewest && c.Reports*share >= c.Possible }

// Over reports whether a dispute is over: at most one counted report is left.
func (c Count) Over() bool { return c.Reports < fewest }

// CountReports counts the reports of a commit.
//
// Each founder and each admin counts as one, and so does each person whom an admin added. Every
// other person counts together with the one of them through whom it came: that one, the accounts
// that it added, and the accounts that these added count as one. So a liar counts as one, however
// many accounts it adds. Only admins can increase the count, and admins may remove members anyway.
// The committer is not counted.
func CountReports(committer syntax.DID, people []Person) Count {
	roots := inviters{admins: make(map[syntax.DID]bool), invitedBy: make(map[syntax.DID]syntax.DID, len(people)),
		found: make(map[syntax.DID]syntax.DID, len(people))}
	for _, p := range people {
		roots.invitedBy[p.DID] = p.InvitedBy
		if p.Admin {
			roots.admins[p.DID] = true
		}
	}
	reported := map[syntax.DID]bool{} // by the person as whom they count
	for _, p := range people {
		if !p.Entitled || p.DID == committer {
			continue
		}
		if root := roots.rootOf(p.DID); root != "" {
			reported[root] = reported[root] || p.Reports
		}
	}
	c := Count{Possible: len(reported)}
	for _, reports := range reported {
		if reports {
			c.Reports++
		}
	}
	return c
}

// inviters finds the person as whom somebody counts.
type inviters struct {
	admins    map[syntax.DID]bool
	invitedBy map[syntax.DID]syntax.DID
	found     map[syntax.DID]syntax.DID // earlier results, so that each chain is followed once
}

// rootOf returns the person as whom did counts. It is "" for accounts that have invited each other
// in a circle: they could leave and come back to count more than once.
func (s inviters) rootOf(did syntax.DID) (root syntax.DID) {
	var way []syntax.DID
	for {
		by, known := s.invitedBy[did]
		if before, twice := s.found[did]; twice || !known {
			root = before
			break
		}
		if s.admins[did] || s.admins[by] || by == "" {
			root = did
			break
		}
		s.found[did] = "" // ends the search in a circle
		way = append(way, did)
		did = by
	}
	for _, passed := range way {
		s.found[passed] = root
	}
	return root
}

// Dispute is an open dispute.
type Dispute struct {
	Epoch     int64 // the epoch that the disputed commit has created
	Committer syntax.DID
	Until     time.Time // when the dispute ends at the latest
	Caller    bool      // an open dispute of the convo, this one or another, names the caller
}

// OpenError refuses a commit because of an open dispute.
type OpenError struct{ Dispute }

// Error names the committer and the epoch, and says what to do. Clients behind a PDS get no other
// field.
func (e *OpenError) Error() string {
	until := e.Until.UTC().Format(time.RFC3339)
	if e.Caller {
		return fmt.Sprintf("members could not process a commit of yours: you can commit again when they are back, or at %s",
			until)
	}
	return fmt.Sprintf("members could not process the commit of epoch %d by %s: until they are back, or %s, the convo "+
		"takes only external commits; "+
		"read the log, and commit later; if you could not process it, use getGroupInfo and processExternalCommit", e.Epoch,
		e.Committer, until)
}

// TooOld reports whether the convo has gone so far beyond an epoch that reports of the epoch are no
// longer accepted.
func TooOld(epoch, current int64) bool { return epoch <= current-KeepEpochs }

// locked is a convo whose row lock the transaction holds.
type locked struct {
	id    uuid.UUID
	epoch int64
}

// lock takes the row lock that orders all writers of a convo. Error: messages.ErrConvoNotFound.
func lock(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (locked, error) {
	c := locked{id: convo}
	err := tx.QueryRow(ctx, `SELECT epoch FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo).Scan(&c.epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, messages.ErrConvoNotFound
	}
	return c, errs.Wrap(err, "lock the convo")
}

// member returns the convo's epoch to a member. It takes no lock. Errors:
// messages.ErrConvoNotFound, messages.ErrNotMember.
func member(ctx context.Context, tx pgx.Tx, convo uuid.UUID, did syntax.DID) (epoch int64, err error) {
	var left bool
	err = tx.QueryRow(ctx, `
		SELECT c.epoch, m.left_at IS NOT NULL FROM convos c JOIN members m ON m.convo_id = c.id AND m.did = $2 WHERE c.id =
			$1`, convo, did).
		Scan(&epoch, &left)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, messages.ErrConvoNotFound
	case err != nil:
		return 0, fmt.Errorf("look for the caller: %w", err)
	case left:
		return 0, messages.ErrNotMember
	}
	return epoch, nil
}

// tell inserts the event of a fork or of a dispute. The caller has locked the convo, so that the
// event has a fixed place among the convo's events.
func (c locked) tell(ctx context.Context, tx pgx.Tx, change string, epoch int64, committer syntax.DID) error {
	err := outbox.Insert(ctx, tx, c.id, outbox.Event{Kind: outbox.Dispute,
		Detail: outbox.Detail{Change: change, Epoch: epoch, By: committer}})
	return errs.Wrap(err, "tell the members")
}

// Open returns the newest open dispute of a convo, or nil if there is none.
func Open(ctx context.Context, tx pgx.Tx, convo uuid.UUID, caller syntax.DID) (d *Dispute, err error) {
	batch := &pgx.Batch{}
	QueueOpen(batch, convo, caller, &d)
	return d, errs.Wrap(tx.SendBatch(ctx, batch).Close(), "look for a dispute")
}

// QueueOpen adds Open to a batch. The batch sets *d.
func QueueOpen(batch *pgx.Batch, convo uuid.UUID, caller syntax.DID, d **Dispute) {
	batch.Queue(`
		SELECT epoch, committer, ends_at, bool_or(committer = $2) OVER () AS caller FROM disputes
		WHERE convo_id = $1 AND state = 'open' AND ends_at > clock_timestamp() ORDER BY epoch DESC LIMIT 1`, convo, caller).
		Query(func(rows pgx.Rows) error {
			found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[Dispute])
			if len(found) > 0 {
				*d = found[0]
			}
			return err
		})
}

// QueueReports adds a query to a batch: whether the caller reports a disputed commit, and is
// counted there. The batch sets *reports.
func QueueReports(batch *pgx.Batch, convo uuid.UUID, caller syntax.DID, reports *bool) {
	batch.Queue(`
		SELECT EXISTS (
			SELECT FROM disputes d
			JOIN commit_reports r ON r.convo_id = d.convo_id AND r.epoch = d.epoch AND r.did = $2 AND r.settled_at IS NULL
			JOIN messages c ON c.convo_id = d.convo_id AND c.kind = 3 AND c.epoch = d.epoch
			JOIN members m ON m.convo_id = d.convo_id AND m.did = $2
			WHERE d.convo_id = $1 AND d.state = 'open' AND d.ends_at > clock_timestamp() AND m.joined_seq < c.seq
				AND m.left_at IS NULL AND m.requested_at IS NULL)`, convo, caller).
		QueryRow(func(row pgx.Row) error { return row.Scan(reports) })
}
