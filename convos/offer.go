package convos

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"mlsd/mls"
	"mlsd/people/disputes"
)

// Report is what a member says of an epoch, with a GroupInfo that it offers.
type Report struct {
	disputes.EpochReport
	GroupInfo []byte    // nil: none
	Verified  *Verified // as in Proposed
}

// ReportEpoch records what a member says of an epoch. If the member offers a GroupInfo of the present
// epoch, and may replace the stored one (disputes.EpochOutcome.Trusted), it does so, and stored is
// true. So devices can enter an epoch whose committer has sent no GroupInfo, or a useless one.
//
// A GroupInfo is refused if it contradicts what the server has verified. What a member has only
// claimed does not count for that. Errors: those of disputes.ReportEpoch, *InvalidObjectError, and
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
		return out, false, nil // the convo has gone on meanwhile
	}
	if err := c.replaceGroupInfo(ctx, tx, r); err != nil {
		return out, false, err
	}
	return out, true, disputes.Offered(ctx, tx, r.EpochReport)
}

// replaceGroupInfo replaces the GroupInfo of the present epoch.
func (c *locked) replaceGroupInfo(ctx context.Context, tx pgx.Tx, r Report) error {
	info, err := checkGroupInfo(r.GroupInfo, c.groupID, c.cipherSuite, &c.epoch)
	if err != nil {
		return err
	}
	group, err := c.publicGroup(ctx, tx)
	if err != nil {
		return err
	}
	if group.Group != nil {
		err := group.Matches(&info)
		if err == nil {
			err = checkSigner(&info, group.Tree, r.Caller)
		}
		switch {
		case err == nil:
			return c.setGroupInfo(ctx, tx, r.GroupInfo)
		case group.vouchedBy == "":
			return invalid(GroupInfo, "%v", err)
		}
	}
	people, err := c.everMembers(ctx, tx)
	if err != nil {
		return err
	}
	tree, err := checkTree(&info, r.Caller, people)
	if err != nil {
		return err
	}
	devices := len(slices.Collect(tree.Members()))
	learnt, err := r.Verified.tree(c.epoch, devices, func() (*mls.Group, error) { return info.Verify(tree) })
	if err != nil {
		return invalidGroupInfo(err)
	}
	return keepGroup(ctx, tx, c.id, c.epoch, publicGroup{learnt, r.Caller}, bytes.Clone(r.GroupInfo))
}

// setGroupInfo replaces the GroupInfo by another one of the same group.
func (c *locked) setGroupInfo(ctx context.Context, tx pgx.Tx, groupInfo []byte) error {
	_, err := tx.Exec(ctx, `UPDATE public_groups SET group_info = $3 WHERE convo_id = $1 AND epoch = $2`, c.id, c.epoch,
		groupInfo)
	if err != nil {
		return fmt.Errorf("replace the GroupInfo: %w", err)
	}
	return nil
}
