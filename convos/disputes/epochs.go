package disputes

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // for reporters.sql
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/messages"
	"mlsd/outbox"
)

// ErrHash refuses a hash whose length is not that of a SHA-256.
var ErrHash = errors.New("authenticatorHash: must have 32 bytes, as a SHA-256 has")

// EpochReport says that a member has entered an epoch.
type EpochReport struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	Epoch   int64
	Hash    []byte // SHA-256 of the epoch_authenticator
	// Counts says that the caller asks for the numbers, and for Trusted. A report without Counts
	// costs the same in convos of all sizes.
	Counts bool
}

// EpochOutcome is the result of an EpochReport.
type EpochOutcome struct {
	Recorded  bool // false if the epoch is too old
	Agreeing  int  // members that report the same authenticator, including the caller
	Differing int  // members that report another authenticator
	Forked    bool // two members have reported different authenticators
	Found     bool // this report has revealed the fork
	Open      *Dispute
	// Trusted says that the caller may replace the GroupInfo of the epoch: see ReportEpoch in
	// package convos.
	Trusted bool
}

// known is what the tables contain about an epoch before a report.
type known struct {
	own      []byte // the caller's hash; nil if it has reported none
	other    []byte // the hash of another member; nil if none has reported one
	offered  bool   // a GroupInfo of the caller has replaced the stored one
	forked   bool
	reported bool // the caller has reported commits of this epoch or an earlier one, and is not back
	empty    bool // the present epoch has no GroupInfo
}

// ReportEpoch records the authenticator that the caller has in an epoch. All devices of an account
// share one report: the last report counts. If another member has another authenticator, the epoch
// is forked, and all members get the event, once per epoch. A report of the present epoch ends the
// caller's reports of commits. Errors: those of member, ErrHash, and *messages.EpochMismatchError
// if the convo has not reached the epoch.
//
// A repeated report writes nothing. As long as an epoch is not forked, all its reports have the
// same hash, so a new report needs to be compared with only one of them. Reports that find no other
// report wait for each other, so that one of them finds the first.
func ReportEpoch(ctx context.Context, tx pgx.Tx, r EpochReport) (out EpochOutcome, err error) {
	current, err := member(ctx, tx, r.ConvoID, r.Caller)
	if err != nil {
		return out, err
	}
	if len(r.Hash) != sha256.Size {
		return out, ErrHash
	}
	if r.Epoch > current {
		return out, &messages.EpochMismatchError{Epoch: r.Epoch, Current: current}
	}
	if TooOld(r.Epoch, current) {
		return out, nil
	}
	out.Recorded = true
	k, err := readKnown(ctx, tx, r, current)
	if err != nil {
		return out, err
	}
	if !bytes.Equal(k.own, r.Hash) {
		if k, err = record(ctx, tx, r, current, k); err != nil {
			return out, err
		}
	}
	out.Forked = k.forked
	if k.other != nil && !bytes.Equal(k.other, r.Hash) && !k.forked {
		if out.Forked, out.Found, err = fork(ctx, tx, r); err != nil {
			return out, err
		}
	}
	if k.reported && r.Epoch == current {
		if _, err := lock(ctx, tx, r.ConvoID); err != nil {
			return out, err
		}
		if err := Rejoined(ctx, tx, r.ConvoID, r.Caller, r.Epoch); err != nil {
			return out, err
		}
	}
	if !r.Counts {
		return out, nil
	}
	return out, out.compare(ctx, tx, r, k, r.Epoch == current)
}

// readKnown reads what the tables contain about an epoch.
func readKnown(ctx context.Context, tx pgx.Tx, r EpochReport, current int64) (k known, err error) {
	err = tx.QueryRow(ctx, `
		SELECT own.hash, (SELECT hash FROM epoch_reports WHERE convo_id = $1 AND epoch = $2 AND did <> $3 LIMIT 1),
			coalesce(own.offered, false),
			EXISTS (SELECT FROM forked_epochs WHERE convo_id = $1 AND epoch = $2),
			EXISTS (SELECT FROM commit_reports WHERE convo_id = $1 AND epoch <= $2 AND did = $3 AND settled_at IS NULL),
			NOT EXISTS (SELECT FROM public_groups g WHERE g.convo_id = $1 AND g.epoch = $4 AND g.group_info IS NOT NULL)
		FROM (SELECT) one LEFT JOIN epoch_reports own ON own.convo_id = $1 AND own.epoch = $2 AND own.did = $3`,
		r.ConvoID, r.Epoch, r.Caller, current).Scan(&k.own, &k.other, &k.offered, &k.forked, &k.reported, &k.empty)
	return k, errs.Wrap(err, "read what is reported")
}

// record writes a report, and returns what is known afterwards. The first report of an epoch
// deletes the reports of epochs that are too old. The convo's writers do not wait for this. The
// convo's deletion does.
func record(ctx context.Context, tx pgx.Tx, r EpochReport, current int64, k known) (known, error) {
	tag, err := tx.Exec(ctx, `SELECT FROM convos WHERE id = $1 FOR KEY SHARE`, r.ConvoID)
	if err != nil {
		return k, fmt.Errorf("keep the convo: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return k, messages.ErrConvoNotFound
	}
	if k.other == nil {
		if err := pgpool.LockEpochs.Wait(ctx, tx, r.ConvoID.String()); err != nil {
			return k, err
		}
		if k, err = readKnown(ctx, tx, r, current); err != nil {
			return k, err
		}
	}
	batch := &pgx.Batch{}
	if k.other == nil {
		batch.Queue(`DELETE FROM epoch_reports WHERE convo_id = $1 AND epoch <= $2`, r.ConvoID, current-KeepEpochs)
		batch.Queue(`DELETE FROM forked_epochs WHERE convo_id = $1 AND epoch <= $2`, r.ConvoID, current-KeepEpochs)
	}
	batch.Queue(`
		INSERT INTO epoch_reports AS mine (convo_id, epoch, did, hash, reported_at) VALUES ($1, $2, $3, $4, clock_timestamp())
		ON CONFLICT (convo_id, epoch, did) DO UPDATE SET hash = excluded.hash, reported_at = excluded.reported_at
		WHERE mine.hash <> excluded.hash`, r.ConvoID, r.Epoch, r.Caller, r.Hash)
	err = tx.SendBatch(ctx, batch).Close()
	return k, errs.Wrap(err, "record the report")
}

// readReporters reads a convo's people, and the authenticators that they report.
//
//go:embed reporters.sql
var readReporters string

// compare counts the members who agree with a report, and says whether the caller may replace the
// GroupInfo. For that, at least two counted reports must agree, more than differ, and only members
// who have accepted the convo count.
func (out *EpochOutcome) compare(ctx context.Context, tx pgx.Tx, r EpochReport, k known, present bool) (err error) {
	type reporter struct {
		Person
		Hash []byte
	}
	var all []reporter
	rows := pgpool.Rows(ctx, tx, readReporters, r.ConvoID, r.Epoch)
	var p reporter
	var member bool
	_, err = pgx.ForEachRow(rows, []any{&p.DID, &p.InvitedBy, &p.Admin, &member, &p.Entitled, &p.Hash}, func() error {
		switch {
		case !member || p.Hash == nil:
		case bytes.Equal(p.Hash, r.Hash):
			out.Agreeing++
		default:
			out.Differing++
		}
		all = append(all, p)
		p.Hash = nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare the reports: %w", err)
	}
	if out.Open, err = Open(ctx, tx, r.ConvoID, r.Caller); err != nil {
		return err
	}
	counted := func(agree bool) int {
		people := make([]Person, len(all))
		for i, p := range all {
			people[i] = p.Person
			people[i].Reports = p.Entitled && p.Hash != nil && bytes.Equal(p.Hash, r.Hash) == agree
		}
		return CountReports("", people).Reports
	}
	needed := out.Open != nil || out.Forked || k.empty
	named := out.Open != nil && out.Open.Caller
	if present && needed && !named && !k.offered {
		agreeing := counted(true)
		out.Trusted = agreeing >= fewest && agreeing > counted(false)
	}
	return nil
}

// fork records that an epoch is forked. found says that the fork was not known before.
func fork(ctx context.Context, tx pgx.Tx, r EpochReport) (forked, found bool, err error) {
	c, err := lock(ctx, tx, r.ConvoID)
	if err != nil {
		return false, false, err
	}
	tag, err := tx.Exec(ctx, `
		INSERT INTO forked_epochs (convo_id, epoch, forked_at) VALUES ($1, $2, clock_timestamp()) ON CONFLICT DO NOTHING`,
		r.ConvoID, r.Epoch)
	if err != nil {
		return false, false, fmt.Errorf("record the fork: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return true, false, nil
	}
	return true, true, c.tell(ctx, tx, outbox.Forked, r.Epoch, "")
}

// Forked reports whether members have reported different authenticators of the epoch.
func Forked(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, epoch int64) (forked bool, err error) {
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM forked_epochs WHERE convo_id = $1 AND epoch = $2)`, convo, epoch).
		Scan(&forked)
	return forked, errs.Wrap(err, "look for a fork")
}

// Offered records that a GroupInfo of the caller has replaced the stored GroupInfo of an epoch. An
// account may do that once per epoch.
func Offered(ctx context.Context, tx pgx.Tx, r EpochReport) error {
	_, err := tx.Exec(ctx, `UPDATE epoch_reports SET offered = true WHERE convo_id = $1 AND epoch = $2 AND did = $3`,
		r.ConvoID, r.Epoch, r.Caller)
	return errs.Wrap(err, "record the GroupInfo")
}
