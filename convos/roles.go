package convos

import (
	"context"
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

// ErrLastAdmin refuses to demote the last admin.
var ErrLastAdmin error = &NotPermittedError{"a convo needs an admin; promote another member first"}

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

// handOver makes an admin of the member who has been there longest, if the convo has no admin. A
// member who has accepted the convo comes before one who has not.
func (c *locked) handOver(ctx context.Context, tx pgx.Tx) error {
	if len(c.admins) > 0 {
		return nil
	}
	var heir syntax.DID
	err := tx.QueryRow(ctx, `
		SELECT did FROM members WHERE convo_id = $1 AND left_at IS NULL
		ORDER BY requested_at IS NOT NULL, joined_seq, joined_at, did LIMIT 1`, c.id).Scan(&heir)
	if errors.Is(err, pgx.ErrNoRows) { // the convo is being deleted
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a new admin: %w", err)
	}
	return c.setRole(ctx, tx, heir, "", true)
}

// setRole makes did an admin or a member, and tells the members. by is who does it, or "" for the
// server and for operators. did is on the roster, and has the other role.
func (c *locked) setRole(ctx context.Context, tx pgx.Tx, did, by syntax.DID, promoted bool) error {
	batch := &pgx.Batch{}
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
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "change a role")
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
// ErrTargetNotMember, ErrLastAdmin.
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

// Promote makes a member an admin, as an operator wants it. Errors: ErrNotFound, ErrTargetNotMember.
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
		return ErrTargetNotMember
	case c.isAdmin(did) == promote:
		return nil
	case !promote && len(c.admins) == 1:
		return ErrLastAdmin
	}
	return c.setRole(ctx, tx, did, by, promote)
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

// SweepRoles hands over the convos whose creator has left while an older server, which knows no
// admins, wrote the roster. Such a creator still has its role.
func SweepRoles(db *pgxpool.Pool) worker.Sweep {
	const rows = "roles"
	return worker.Sweep{Rows: rows, Batch: func(ctx context.Context) (n int64, more bool, err error) {
		err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				SELECT set_config('mlsd.maintenance', 'on', true), set_config('mlsd.reason', $1, true)`, rows)
			if err != nil {
				return err
			}
			left, err := pgpool.Collect(ctx, tx, pgx.RowToStructByPos[leftAdmin], `
				SELECT convo_id, did FROM members WHERE role <> 'member' AND left_at IS NOT NULL
				ORDER BY convo_id, did LIMIT $1`, handOverRows)
			if err != nil {
				return err
			}
			n, more = int64(len(left)), len(left) == handOverRows
			for _, l := range left {
				if err := endRole(ctx, tx, l); err != nil {
					return err
				}
			}
			return nil
		})
		return n, more, errs.Wrap(err, "hand over")
	}}
}

// handOverRows bounds the convos of one batch of SweepRoles.
const handOverRows = 50

// leftAdmin is a person who has a role, and is not on the roster.
type leftAdmin struct {
	Convo uuid.UUID
	DID   syntax.DID
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
