package convos

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/messages"
	"mlsd/mls"
)

// publicGroup is the public state of the convo's group at its epoch.
type publicGroup struct {
	*mls.Group // nil if the group is not known

	// vouchedBy is the member from whose GroupInfo the server has learnt the group, with a commit
	// that it could not verify. It is "" if the group was verified, if it is the creator's own, or
	// once another member's commit was verified against it.
	vouchedBy syntax.DID
}

// has reports whether the known group has a device of did.
func (g publicGroup) has(did syntax.DID) bool {
	if g.Group == nil {
		return false
	}
	for m := range g.Tree.Members() {
		if m.DID() == did.String() {
			return true
		}
	}
	return false
}

// without yields the devices of the known group that removes does not name.
func (g publicGroup) without(removes []mls.Removal) iter.Seq[mls.Member] {
	return func(yield func(mls.Member) bool) {
		for m := range g.Tree.Members() {
			gone := slices.ContainsFunc(removes, func(r mls.Removal) bool { return r.Leaf == m.Leaf })
			if !gone && !yield(m) {
				return
			}
		}
	}
}

// sent returns the proposals whose senders own the leaves that they name. A GroupInfo for which a
// member vouches can give another person a leaf with a key of that member.
func (g publicGroup) sent(pending []messages.Proposal) (sent []*mls.ProposalMessage) {
	for _, p := range pending {
		if p.SenderType != mls.SenderTypeMember || g.owns(p.Sender, p.ProposalMessage) {
			sent = append(sent, p.ProposalMessage)
		}
	}
	return sent
}

// owns reports whether the leaf that sent m is a device of did.
func (g publicGroup) owns(did syntax.DID, m *mls.ProposalMessage) bool {
	sender, ok := g.Tree.Member(m.Sender)
	return ok && sender.DID() == did.String()
}

// externalProposers returns the DIDs of the group's external senders.
func (g publicGroup) externalProposers() []syntax.DID {
	dids := []syntax.DID{}
	for _, sender := range g.ExternalSenders() {
		if did, err := syntax.ParseDID(sender); err == nil { // only DIDs can call
			dids = append(dids, did)
		}
	}
	return dids
}

// publicGroup reads the group's public state. The caller holds the convo's row lock.
func (c *locked) publicGroup(ctx context.Context, tx pgx.Tx) (g publicGroup, err error) {
	var state []byte
	err = tx.QueryRow(ctx, `
		SELECT state, coalesce(vouched_by, '') FROM public_groups WHERE convo_id = $1 AND epoch = $2`, c.id, c.epoch).
		Scan(&state, &g.vouchedBy)
	if errors.Is(err, pgx.ErrNoRows) {
		return publicGroup{}, nil
	}
	if err != nil {
		return publicGroup{}, fmt.Errorf("read the public group: %w", err)
	}
	g.Group, err = mls.ParseGroup(state)
	return g, errs.Wrap(err, "read the public group")
}

// keepGroup stores the public state of the convo's group at epoch, and the GroupInfo if one was
// sent. If the state is not known, or is larger than a GroupInfo can be, keepGroup deletes the
// older state. Later commits are then checked only by their form.
func keepGroup(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64, g publicGroup, groupInfo []byte) error {
	var state []byte
	if g.Group != nil {
		state = g.Encode()
	}
	var err error
	if state == nil || len(state) > g.CipherSuite.Limits().GroupInfo {
		_, err = tx.Exec(ctx, `DELETE FROM public_groups WHERE convo_id = $1`, convo)
	} else {
		_, err = tx.Exec(ctx, `
			INSERT INTO public_groups (convo_id, epoch, state, vouched_by, group_info, external_senders)
			VALUES ($1, $2, $3, nullif($4, ''), $5, $6)
			ON CONFLICT (convo_id) DO UPDATE
			SET epoch = excluded.epoch, state = excluded.state, vouched_by = excluded.vouched_by, group_info =
				excluded.group_info, external_senders = excluded.external_senders`,
			convo, epoch, state, g.vouchedBy, groupInfo, g.externalProposers())
	}
	return errs.Wrap(err, "keep the public group")
}

// GroupInfoOf returns the GroupInfo of the convo's current epoch to a member, byte for byte.
// Errors: ErrNotFound, ErrNotMember, ErrNoGroupInfo.
func GroupInfoOf(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, reader syntax.DID) (groupInfo []byte,
	epoch int64, err error) {
	err = q.QueryRow(ctx, `
		SELECT g.epoch, g.group_info
		FROM members m
		JOIN convos c ON c.id = m.convo_id
		JOIN public_groups g ON g.convo_id = c.id AND g.epoch = c.epoch
		WHERE m.convo_id = $1 AND m.did = $2 AND m.left_at IS NULL AND g.group_info IS NOT NULL`, convo, reader).
		Scan(&epoch, &groupInfo)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err = Authorise(ctx, q, convo, reader); err == nil {
			err = ErrNoGroupInfo
		}
		return nil, 0, err
	}
	return groupInfo, epoch, errs.Wrap(err, "read the GroupInfo")
}
