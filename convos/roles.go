package convos

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
	"mlsd/outbox"
)

// A convo with members has an admin. members.role says who: a creator or an admin is one. Each
// change of a role holds the convo's lock, so two admins cannot both leave as the last but one.

// ErrNotAdmin refuses what only admins may do.
var ErrNotAdmin error = &NotPermittedError{"the caller is no admin of the convo; getConvo says who is"}

// ErrLastAdmin refuses to demote the last admin whom this service serves.
var ErrLastAdmin error = &NotPermittedError{"did: is the last admin whose account is served, and a convo needs one; " +
	"promote another member first"}

// TargetError says that the person whose role is to change is not on the roster. It is an
// ErrTargetNotMember.
type TargetError struct{ DID syntax.DID }

func (e *TargetError) Error() string {
	return fmt.Sprintf("did: %s is no member of the convo now; getConvo lists the members", e.DID)
}

// Is makes the error an ErrTargetNotMember.
func (e *TargetError) Is(target error) bool { return target == ErrTargetNotMember }

// queueRoles adds to the batch of lockConvo the reading of the roles. The batch reads c.epoch before.
func queueRoles(batch *pgx.Batch, c *locked) {
	batch.Queue(`
		SELECT did, role <> 'member' AND left_at IS NULL, demoted_epoch FROM members
		WHERE convo_id = $1 AND (role <> 'member' OR demoted_epoch IS NOT NULL) ORDER BY did`, c.id).
		Query(func(rows pgx.Rows) error {
			var did syntax.DID
			var admin bool
			var demoted *int64
			_, err := pgx.ForEachRow(rows, []any{&did, &admin, &demoted}, func() error {
				switch {
				case admin:
					c.admins = append(c.admins, did)
				case demoted != nil && *demoted == c.epoch:
					c.formerAdmins = append(c.formerAdmins, did)
				}
				return nil
			})
			return err
		})
}

// retire notes that did is no longer an admin.
func (c *locked) retire(did syntax.DID) {
	if i := slices.Index(c.admins, did); i >= 0 {
		c.admins = slices.Delete(c.admins, i, i+1)
		c.formerAdmins = append(c.formerAdmins, did)
	}
}

// heirsSQL reads which convos need an admin, and who becomes it.
//
//go:embed heirs.sql
var heirsSQL string

// heir is the member who becomes an admin of a convo.
type heir struct {
	Convo uuid.UUID
	Epoch int64
	DID   syntax.DID
}

func heirs(ctx context.Context, q pgpool.Queryer, convos ...uuid.UUID) ([]heir, error) {
	found, err := pgpool.Collect(ctx, q, pgx.RowToStructByPos[heir], heirsSQL, convos)
	return found, errs.Wrap(err, "look for new admins")
}

// handOver makes an admin of the member who has been there longest, if the convo has no admin whom
// this service serves.
func (c *locked) handOver(ctx context.Context, tx pgx.Tx) error {
	found, err := heirs(ctx, tx, c.id)
	for _, h := range found {
		err = c.setRole(ctx, tx, h.DID, "", true)
	}
	return err
}

// HandOver runs refuse, which makes the service refuse people, and hands over the convos of which
// they were the only admins. They stay on the rosters and keep their roles, for when they come back.
//
// The convos are locked before refuse runs, so of two admins who are refused at once, the second
// sees that the first is gone. An heir who is refused at the same moment is found by SweepRoles.
func HandOver(ctx context.Context, tx pgx.Tx, dids []syntax.DID, refuse func() error) error {
	convos, err := pgpool.Collect(ctx, tx, pgx.RowTo[uuid.UUID], `
		SELECT id FROM convos WHERE closed_at IS NULL AND id IN (
			SELECT convo_id FROM members WHERE did = ANY($1) AND left_at IS NULL AND role <> 'member')
		ORDER BY id FOR NO KEY UPDATE`, dids)
	if err != nil {
		return fmt.Errorf("lock the convos of admins: %w", err)
	}
	if err := refuse(); err != nil || len(convos) == 0 {
		return err
	}
	_, err = promoteHeirs(ctx, tx, convos)
	return err
}

// promoteHeirs hands over those of the convos that need an admin, and returns how many they are.
// The convos are locked.
func promoteHeirs(ctx context.Context, tx pgx.Tx, convos []uuid.UUID) (n int64, err error) {
	found, err := heirs(ctx, tx, convos...)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	batch := &pgx.Batch{}
	for _, h := range found {
		c := locked{id: h.Convo, epoch: h.Epoch}
		c.queueRole(batch, h.DID, "", true)
	}
	return int64(len(found)), errs.Wrap(tx.SendBatch(ctx, batch).Close(), "hand over")
}

// setRole makes did an admin or a member, and tells the members. by is who does it, or "" for the
// server and for operators. did is on the roster, and has the other role.
func (c *locked) setRole(ctx context.Context, tx pgx.Tx, did, by syntax.DID, promoted bool) error {
	batch := &pgx.Batch{}
	c.queueRole(batch, did, by, promoted)
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "change a role")
}

// queueRole adds setRole to a batch.
func (c *locked) queueRole(batch *pgx.Batch, did, by syntax.DID, promoted bool) {
	change := outbox.Promoted
	if promoted {
		c.admins = append(c.admins, did)
		batch.Queue(`
			UPDATE members m SET demoted_epoch = NULL, role = CASE m.did WHEN c.creator_did THEN 'creator' ELSE 'admin' END
			FROM convos c WHERE c.id = $1 AND m.convo_id = $1 AND m.did = $2`, c.id, did)
	} else {
		change = outbox.Demoted
		c.retire(did)
		batch.Queue(`UPDATE members SET demoted_epoch = $3, role = 'member' WHERE convo_id = $1 AND did = $2`,
			c.id, did, c.epoch)
	}
	outbox.Queue(batch, c.id, outbox.Event{Kind: outbox.Role, DID: did, Detail: outbox.Detail{
		Change: change, By: by, Epoch: c.epoch,
	}})
}

// RoleChange is the request of an admin to promote or to demote a member.
type RoleChange struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	Target  syntax.DID
	Promote bool
}

// ChangeRole makes a member an admin, or an admin a member. If Target has the role already,
// ChangeRole changes nothing: a repeated request gets the same answer, also the request of an admin
// that has demoted itself. Errors: ErrNotFound, ErrNotMember, those of a closed convo, ErrNotAdmin,
// *TargetError, ErrLastAdmin.
func ChangeRole(ctx context.Context, tx pgx.Tx, r RoleChange) error {
	c, err := lockOpen(ctx, tx, r.ConvoID, r.Caller)
	if err != nil {
		return err
	}
	again := r.Caller == r.Target && !r.Promote && !c.isAdmin(r.Caller)
	if !again && !may(c.roleOf(r.Caller), changeRoles) {
		return ErrNotAdmin
	}
	return c.changeRole(ctx, tx, r.Target, r.Caller, r.Promote)
}

// Promote makes a member an admin, as an operator wants it. Errors: ErrNotFound, *TargetError.
func Promote(ctx context.Context, tx pgx.Tx, convo uuid.UUID, did syntax.DID) error {
	c, err := lockConvo(ctx, tx, convo, did)
	if err != nil {
		return err
	}
	return c.changeRole(ctx, tx, did, "", true)
}

func (c *locked) changeRole(ctx context.Context, tx pgx.Tx, did, by syntax.DID, promote bool) error {
	present, err := c.present(ctx, tx, []string{did.String()})
	switch {
	case err != nil:
		return err
	case len(present) == 0:
		return &TargetError{did}
	case c.isAdmin(did) == promote:
		return nil
	case promote:
		return c.setRole(ctx, tx, did, by, true)
	}
	if err := c.setRole(ctx, tx, did, by, false); err != nil {
		return err
	}
	found, err := heirs(ctx, tx, c.id)
	if err == nil && len(found) > 0 { // the transaction is rolled back
		err = ErrLastAdmin
	}
	return err
}

// Labels are a new name and description of a convo. nil keeps what the convo has; an empty text
// removes it.
type Labels struct {
	ConvoID     uuid.UUID
	Caller      syntax.DID
	Name        *string
	Description *string
}

// Update changes the name and the description. If both stay as they are, no event follows. Errors:
// ErrNotFound, ErrNotMember, those of a closed convo, ErrNotAdmin.
func Update(ctx context.Context, tx pgx.Tx, l Labels) (Convo, error) {
	c, err := lockOpen(ctx, tx, l.ConvoID, l.Caller)
	if err != nil {
		return Convo{}, err
	}
	if !may(c.roleOf(l.Caller), rename) {
		return Convo{}, ErrNotAdmin
	}
	tag, err := tx.Exec(ctx, `
		UPDATE convos SET name = nullif(coalesce($2, name), ''), description = nullif(coalesce($3, description), '')
		WHERE id = $1 AND (name, description)
			IS DISTINCT FROM (nullif(coalesce($2, name), ''), nullif(coalesce($3, description), ''))`,
		c.id, l.Name, l.Description)
	if err != nil {
		return Convo{}, fmt.Errorf("rename the convo: %w", err)
	}
	if tag.RowsAffected() > 0 {
		err = outbox.Insert(ctx, tx, c.id, outbox.Event{Kind: outbox.Metadata, Detail: outbox.Detail{By: l.Caller}})
		if err != nil {
			return Convo{}, fmt.Errorf("tell the members: %w", err)
		}
	}
	return Get(ctx, tx, c.id, l.Caller)
}

// SweepRoles returns the sweeps that hand over where no transaction did:
//
// Where a creator has left while an older server, which knows no admins, wrote the roster. Such a
// creator still has its role.
//
// Where a person became an admin and was refused in the same moment, and where nobody was served
// when the last admin was refused, and somebody has come back.
func SweepRoles(db *pgxpool.Pool) []worker.Sweep {
	const left, refused = "roles", "admins"
	changed := changedAccounts{db: db}
	return []worker.Sweep{
		{Rows: left, Batch: func(ctx context.Context) (n int64, more bool, err error) {
			err = maintain(ctx, db, left, func(tx pgx.Tx) (err error) {
				n, more, err = endRoles(ctx, tx)
				return err
			})
			return n, more, errs.Wrap(err, "hand over")
		}},
		{Rows: refused, Batch: func(ctx context.Context) (n int64, more bool, err error) {
			page, more, err := changed.next(ctx)
			if err != nil || len(page) == 0 {
				return 0, false, err
			}
			err = maintain(ctx, db, refused, func(tx pgx.Tx) (err error) {
				n, err = handOverAll(ctx, tx, page)
				return err
			})
			return n, more, errs.Wrap(err, "hand over")
		}},
	}
}

// maintain runs f in a transaction of maintenance.
func maintain(ctx context.Context, db *pgxpool.Pool, reason string, f func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			SELECT set_config('mlsd.maintenance', 'on', true), set_config('mlsd.reason', $1, true)`, reason)
		if err != nil {
			return err
		}
		return f(tx)
	})
}

// handOverRows bounds the convos of one batch of SweepRoles.
const handOverRows = 50

// leftAdmin is a person who has a role, and is not on the roster.
type leftAdmin struct {
	Convo uuid.UUID
	DID   syntax.DID
}

// endRoles ends the roles of people who have left.
func endRoles(ctx context.Context, tx pgx.Tx) (n int64, more bool, err error) {
	left, err := pgpool.Collect(ctx, tx, pgx.RowToStructByPos[leftAdmin], `
		SELECT convo_id, did FROM members WHERE role <> 'member' AND left_at IS NOT NULL
		ORDER BY convo_id, did LIMIT $1`, handOverRows)
	if err != nil {
		return 0, false, err
	}
	for _, l := range left {
		if err := endRole(ctx, tx, l); err != nil {
			return 0, false, err
		}
	}
	return int64(len(left)), len(left) == handOverRows, nil
}

func endRole(ctx context.Context, tx pgx.Tx, l leftAdmin) error {
	c, err := lockConvo(ctx, tx, l.Convo, l.DID)
	if errors.Is(err, ErrNotFound) { // deleted meanwhile
		return nil
	}
	if err != nil || c.leftEpoch == nil {
		return err
	}
	_, err = tx.Exec(ctx, `UPDATE members SET role = 'member' WHERE convo_id = $1 AND did = $2`, c.id, l.DID)
	if err != nil {
		return fmt.Errorf("end a role: %w", err)
	}
	return c.handOver(ctx, tx)
}

// handOverAll hands over those of convos that need an admin.
func handOverAll(ctx context.Context, tx pgx.Tx, convos []uuid.UUID) (int64, error) {
	needed, err := heirs(ctx, tx, convos...)
	if err != nil || len(needed) == 0 {
		return 0, err
	}
	ids := make([]uuid.UUID, len(needed))
	for i, h := range needed {
		ids[i] = h.Convo
	}
	_, err = tx.Exec(ctx, `SELECT FROM convos WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE`, ids)
	if err != nil {
		return 0, fmt.Errorf("lock the convos without an admin: %w", err)
	}
	return promoteHeirs(ctx, tx, ids)
}

// changedAccounts reads the open convos of accounts that have changed. It begins with all accounts.
// Only one goroutine may use it.
type changedAccounts struct {
	db *pgxpool.Pool
	// after is the last convo of the running round, or uuid.Nil between two rounds. The round reads
	// what has changed since before, the version of the last round but one: a request that ran when
	// an account changed can end later.
	after        uuid.UUID
	before, last int64
	version      int64 // of account_clock, at the beginning of the round
}

// changedRows bounds the convos of a page.
const changedRows = 500

// next returns the next page of convos. more says that the round goes on.
func (a *changedAccounts) next(ctx context.Context) (page []uuid.UUID, more bool, err error) {
	if a.after == uuid.Nil {
		if err := a.db.QueryRow(ctx, `SELECT version FROM account_clock`).Scan(&a.version); err != nil {
			return nil, false, fmt.Errorf("read the version of the accounts: %w", err)
		}
	}
	page, err = pgpool.Collect(ctx, a.db, pgx.RowTo[uuid.UUID], `
		SELECT DISTINCT c.id FROM accounts a
		JOIN members m ON m.did = a.did AND m.left_at IS NULL
		JOIN convos c ON c.id = m.convo_id AND c.closed_at IS NULL
		WHERE a.version > $1 AND c.id > $2 ORDER BY c.id LIMIT $3`, a.before, a.after, changedRows)
	if err != nil {
		return nil, false, fmt.Errorf("read the convos of accounts that have changed: %w", err)
	}
	if more = len(page) == changedRows; more {
		a.after = page[changedRows-1]
	} else {
		a.after, a.before, a.last = uuid.Nil, a.last, a.version
	}
	return page, more, nil
}
