package disputes

import (
	"context"
	_ "embed" // for people.sql
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/messages"
	"mlsd/outbox"
)

// CommitReport says that a member could not process an accepted commit.
type CommitReport struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	Epoch   int64 // the epoch that the commit has created
	Reason  string
}

// CommitOutcome is the result of a CommitReport.
type CommitOutcome struct {
	// Recorded is false if the epoch is too old, if its commit has expired, or if the commit is the
	// caller's own.
	Recorded bool
	// Open is the convo's newest open dispute; nil if there is none.
	Open *Dispute
	// Began says that this report has begun the dispute.
	Began bool
}

// ReportCommit records that the caller could not process the commit that created an epoch. An
// account reports a commit once. Once there are enough counted reports, the commit is disputed, and
// all members get the event. A repeated report can begin a dispute too, if the convo's pause has
// delayed it.
//
// Errors: those of member, and *messages.EpochMismatchError if the convo has not reached the epoch.
func ReportCommit(ctx context.Context, tx pgx.Tx, r CommitReport) (out CommitOutcome, err error) {
	if _, err := member(ctx, tx, r.ConvoID, r.Caller); err != nil {
		return out, err
	}
	c, err := lock(ctx, tx, r.ConvoID)
	if err != nil {
		return out, err
	}
	if r.Epoch > c.epoch {
		return out, &messages.EpochMismatchError{Epoch: r.Epoch, Current: c.epoch}
	}
	var seq int64
	var committer syntax.DID
	err = tx.QueryRow(ctx, `SELECT seq, sender_did FROM messages WHERE convo_id = $1 AND kind = 3 AND epoch = $2`,
		r.ConvoID, r.Epoch).
		Scan(&seq, &committer)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return out, fmt.Errorf("find the commit: %w", err)
	}
	if out.Recorded = err == nil && committer != r.Caller && !TooOld(r.Epoch, c.epoch); out.Recorded {
		if out.Began, err = c.report(ctx, tx, r, seq, committer); err != nil {
			return out, err
		}
	}
	out.Open, err = Open(ctx, tx, r.ConvoID, r.Caller)
	return out, err
}

// report inserts a report. If the report completes the number that a dispute needs, report begins
// the dispute.
func (c locked) report(ctx context.Context, tx pgx.Tx, r CommitReport, seq int64, committer syntax.DID) (began bool,
	err error) {
	_, err = tx.Exec(ctx, `DELETE FROM commit_reports WHERE convo_id = $1 AND epoch <= $2`, c.id, c.epoch-KeepEpochs)
	if err != nil {
		return false, fmt.Errorf("forget old reports: %w", err)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO commit_reports (convo_id, epoch, did, reason, reported_at) VALUES ($1, $2, $3, $4, clock_timestamp())
		ON CONFLICT DO NOTHING`, c.id, r.Epoch, r.Caller, r.Reason)
	if err != nil {
		return false, fmt.Errorf("record the report: %w", err)
	}
	var possible bool // before a look at the roster
	err = tx.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM disputes WHERE convo_id = $1 AND epoch = $2)
			AND (SELECT count(*) FROM commit_reports WHERE convo_id = $1 AND epoch = $2 AND settled_at IS NULL) >= $3`,
		c.id, r.Epoch, fewest).Scan(&possible)
	if err != nil {
		return false, fmt.Errorf("look for the dispute: %w", err)
	}
	if !possible {
		return false, nil
	}
	count, err := c.count(ctx, tx, r.Epoch, seq, committer)
	if err != nil || !count.Disputed() {
		return false, err
	}
	tag, err := tx.Exec(ctx, beginDispute, c.id, r.Epoch, committer, count.Possible, count.Reports, Lasts, Pause)
	if err != nil {
		return false, fmt.Errorf("begin the dispute: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	return true, c.tell(ctx, tx, outbox.Disputed, r.Epoch, committer)
}

// beginDispute begins a dispute in the convo $1, whose row is locked. It begins none if the
// disputes of the convo have already been open for $6 in all, counting disputes that ended less
// than $7 ago. So members who lie can neither renew a dispute nor begin one after the other. If
// another dispute is open, the new one ends with it.
const beginDispute = `
	WITH past AS (
		SELECT coalesce(sum(upper(r) - lower(r)), '0') AS spent
		FROM unnest((
			SELECT range_agg(tstzrange(began_at, least(ended_at, ends_at, clock_timestamp()))) FROM disputes
			WHERE convo_id = $1 AND least(ended_at, ends_at) > clock_timestamp() - $7::interval
		)) AS r
	)
	INSERT INTO disputes (convo_id, epoch, committer, state, voices, reports, began_at, ends_at)
	SELECT $1, $2, $3, 'open', $4, $5, clock_timestamp(), clock_timestamp() + $6::interval - spent FROM past
	WHERE spent < $6::interval
	ON CONFLICT DO NOTHING`

// readPeople reads a convo's people and which of them report a commit.
//
//go:embed people.sql
var readPeople string

// count counts the reports of the commit at seq, which created epoch.
func (c locked) count(ctx context.Context, tx pgx.Tx, epoch, seq int64, committer syntax.DID) (Count, error) {
	people, err := pgpool.Collect(ctx, tx, pgx.RowToStructByPos[Person], readPeople, c.id, epoch, seq)
	if err != nil {
		return Count{}, fmt.Errorf("read who reports: %w", err)
	}
	return CountReports(committer, people), nil
}

// Rejoined records that a member is in the group again: it has entered an epoch by its own external
// commit, or reports that it is in the epoch. That ends its reports of that epoch and of earlier
// epochs. It also ends the disputes that then have too few reports. The caller holds the convo's
// row lock.
func Rejoined(ctx context.Context, tx pgx.Tx, convo uuid.UUID, did syntax.DID, epoch int64) error {
	tag, err := tx.Exec(ctx, `
		UPDATE commit_reports SET settled_at = clock_timestamp()
		WHERE convo_id = $1 AND did = $2 AND epoch <= $3 AND settled_at IS NULL`, convo, did, epoch)
	if err != nil {
		return fmt.Errorf("settle a report: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	c, err := lock(ctx, tx, convo)
	if err != nil {
		return err
	}
	type open struct {
		Epoch     int64
		Committer syntax.DID
		Seq       int64
	}
	all, err := pgpool.Collect(ctx, tx, pgx.RowToStructByPos[open], `
		SELECT d.epoch, d.committer, coalesce(m.seq, 0)
		FROM disputes d LEFT JOIN messages m ON m.convo_id = d.convo_id AND m.kind = 3 AND m.epoch = d.epoch
		WHERE d.convo_id = $1 AND d.state = 'open' ORDER BY d.epoch`, convo)
	if err != nil {
		return fmt.Errorf("read the disputes: %w", err)
	}
	for _, d := range all {
		count, err := c.count(ctx, tx, d.Epoch, d.Seq, d.Committer)
		if err != nil {
			return err
		}
		if !count.Over() {
			continue
		}
		if err := c.end(ctx, tx, d.Epoch, d.Committer); err != nil {
			return err
		}
	}
	return nil
}

// end ends a dispute, and inserts the event for the members.
func (c locked) end(ctx context.Context, tx pgx.Tx, epoch int64, committer syntax.DID) error {
	_, err := tx.Exec(ctx, `
		UPDATE disputes SET state = 'ended', ended_at = clock_timestamp() WHERE convo_id = $1 AND epoch = $2 AND state =
			'open'`, c.id, epoch)
	if err != nil {
		return fmt.Errorf("end the dispute: %w", err)
	}
	return c.tell(ctx, tx, outbox.DisputeEnded, epoch, committer)
}
