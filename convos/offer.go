package convos

import (
	"bytes"
	"context"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos/disputes"
	"mlsd/internal/errs"
	"mlsd/messages"
	"mlsd/mls"
)

// Report is what a member says about an epoch, with the GroupInfo that the member offers.
type Report struct {
	disputes.EpochReport
	GroupInfo []byte         // nil if none is offered
	Verified  *Verifications // like Proposed.Verified
}

// ReportEpoch records what a member says about an epoch. If the member offers a GroupInfo of the
// present epoch and may replace the stored one (disputes.EpochOutcome.Trusted), the offered
// GroupInfo replaces it, and stored is true. So devices can enter an epoch whose committer has sent
// no GroupInfo, or a useless one.
//
// A GroupInfo is refused if it contradicts what the server has verified. It may contradict what a
// member has only claimed. Errors: those of disputes.ReportEpoch, *InvalidObjectError, and
// *UnverifiedError.
func ReportEpoch(ctx context.Context, tx pgx.Tx, r Report) (out disputes.EpochOutcome, stored bool, err error) {
	out, err = disputes.ReportEpoch(ctx, tx, r.EpochReport)
	if err != nil || r.GroupInfo == nil || !out.Trusted {
		return out, false, err
	}
	c, err := lockConvo(ctx, tx, r.ConvoID, r.Caller)
	switch {
	case err != nil:
		return out, false, err
	case c.leftEpoch != nil:
		return out, false, ErrNotMember
	case c.epoch != r.Epoch || c.closed:
		return out, false, nil // the epoch has ended meanwhile
	}
	info, err := checkGroupInfo(r.GroupInfo, c.groupID, c.cipherSuite, &c.epoch)
	if err != nil {
		return out, false, err
	}
	if err := c.replaceGroupInfo(ctx, tx, &info, Offer{r.ConvoID, r.Caller, r.GroupInfo, r.Verified}, true); err != nil {
		return out, false, err
	}
	return out, true, disputes.Offered(ctx, tx, r.EpochReport)
}

// Offer is a GroupInfo of the present epoch that a member offers without a commit.
type Offer struct {
	ConvoID   uuid.UUID
	Caller    syntax.DID
	GroupInfo []byte
	Verified  *Verifications // like Proposed.Verified
}

// PublishGroupInfo stores a member's GroupInfo of the present epoch, and returns that epoch. A
// later GroupInfo replaces an earlier one. So devices can enter an epoch whose committer has sent
// no GroupInfo.
//
// A GroupInfo is refused if it contradicts what the server has verified, or what another member has
// claimed about the group. During a dispute, and in a forked epoch, every GroupInfo is refused:
// ReportEpoch accepts one then, under its own conditions. Errors: ErrNotFound, ErrNotMember,
// ErrConvoClosed, ErrForked, *disputes.OpenError, *messages.EpochMismatchError,
// *InvalidObjectError, and *UnverifiedError.
func PublishGroupInfo(ctx context.Context, tx pgx.Tx, o Offer) (epoch int64, err error) {
	c, err := lockOpen(ctx, tx, o.ConvoID, o.Caller)
	if err != nil {
		return 0, err
	}
	info, err := checkGroupInfo(o.GroupInfo, c.groupID, c.cipherSuite, nil)
	switch {
	case err != nil:
		return 0, err
	case int64(info.Epoch) != c.epoch:
		return 0, &messages.EpochMismatchError{Epoch: int64(info.Epoch), Current: c.epoch}
	case c.dispute != nil:
		return 0, &disputes.OpenError{Dispute: *c.dispute}
	}
	forked, err := disputes.Forked(ctx, tx, c.id, c.epoch)
	switch {
	case err != nil:
		return 0, err
	case forked:
		return 0, ErrForked
	}
	return c.epoch, c.replaceGroupInfo(ctx, tx, &info, o, false)
}

// replaceGroupInfo replaces the GroupInfo of the present epoch by info. If overrules is true, info
// may contradict what another member has claimed about the group.
func (c *locked) replaceGroupInfo(ctx context.Context, tx pgx.Tx, info *mls.GroupInfo, o Offer, overrules bool) error {
	group, err := c.publicGroup(ctx, tx)
	if err != nil {
		return err
	}
	if group.Group != nil {
		err := group.Matches(info)
		if err == nil {
			err = checkSigner(info, group.Tree, o.Caller)
		}
		switch {
		case err == nil:
			return c.setGroupInfo(ctx, tx, o.GroupInfo)
		case group.vouchedBy == "", !overrules && group.vouchedBy != o.Caller:
			return invalid(GroupInfo, "%v", err)
		}
	}
	people, err := c.everMembers(ctx, tx)
	if err != nil {
		return err
	}
	tree, err := checkTree(info, o.Caller, people)
	if err != nil {
		return err
	}
	devices := len(slices.Collect(tree.Members()))
	learnt, err := o.Verified.tree(c.epoch, devices, func() (*mls.Group, error) { return info.Verify(tree) })
	if err != nil {
		return invalidGroupInfo(err)
	}
	return keepGroup(ctx, tx, c.id, c.epoch, publicGroup{learnt, o.Caller}, bytes.Clone(o.GroupInfo))
}

// setGroupInfo replaces the GroupInfo by another GroupInfo of the same group.
func (c *locked) setGroupInfo(ctx context.Context, tx pgx.Tx, groupInfo []byte) error {
	_, err := tx.Exec(ctx, `UPDATE public_groups SET group_info = $3 WHERE convo_id = $1 AND epoch = $2`, c.id, c.epoch,
		groupInfo)
	return errs.Wrap(err, "replace the GroupInfo")
}
