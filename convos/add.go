package convos

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/outbox"
	"mlsd/people/consent"
	"mlsd/people/quota"
)

// AddMembers is a commit that adds members.
type AddMembers struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	DIDs    []syntax.DID
	Proposed
	Quota *quota.Spending // counts invited people who share no convo with the inviter; nil means no quota
}

// Add accepts the commit and puts the members on the roster. If an added person is on the roster
// and never joined, the commit replaces the person's leaves. Errors: ErrNotFound, ErrNotMember,
// ErrConvoClosed, ErrCommitRequired, *AlreadyMemberError, ErrTooManyMembers, *quota.ExceededError,
// *messages.EpochMismatchError, *InvalidObjectError, *consent.BlockedError, and those of
// keypackages.Consume.
func Add(ctx context.Context, tx pgx.Tx, a AddMembers) (Advanced, error) {
	c, err := lockOpen(ctx, tx, a.ConvoID, a.Caller)
	if err != nil {
		return Advanced{}, err
	}
	if a.Commit == nil {
		return Advanced{}, ErrCommitRequired
	}
	// The epoch is checked first. A caller that has lost a race must learn of the new epoch, not of
	// the winner's roster.
	if _, err := c.checkCommit(ctx, tx, a.Caller, a.Commit, rights{}); err != nil {
		return Advanced{}, err
	}
	if a.Welcome == nil {
		return Advanced{}, invalid(Welcome, "the added members need one to join with")
	}
	added := distinct(a.DIDs)
	present, replaced, err := checkAdditions(ctx, tx, &c, a.Caller, added, a.Quota)
	if err != nil {
		return Advanced{}, err
	}
	invited, err := consent.Invite(ctx, tx, a.Caller, added, &c.id)
	if err != nil {
		return Advanced{}, err
	}
	advanced, err := c.advance(ctx, tx, a.Caller, a.Proposed, rights{adds: added, replaces: replaced, invited: invited})
	if err != nil {
		return Advanced{}, notReplaced(err, replaced)
	}
	// A member that comes back keeps its row, and reads from the commit that added it again. A
	// member keeps its old reading position in two cases: it was on the roster without being in the
	// group, or its leaf is replaced.
	people := distinct(added, present...) // who is not on the roster
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq, cursor_seq, requested_at, invited_by)
		SELECT $1, did, 'member', date_trunc('milliseconds', clock_timestamp()), $2, $2,
			CASE WHEN did = ANY($5) THEN clock_timestamp() END, $4
		FROM unnest($3::text[]) AS did
		ON CONFLICT (convo_id, did) DO UPDATE SET joined_at = excluded.joined_at, joined_seq = excluded.joined_seq,
			cursor_seq = excluded.cursor_seq, left_at = NULL, left_seq = NULL, left_epoch = NULL,
			requested_at = excluded.requested_at, invited_by = excluded.invited_by`,
		c.id, advanced.Seq, people, a.Caller, invited.Requests)
	outbox.Queue(batch, c.id, joined(a.Caller, advanced.Epoch, people, invited.Requests)...)
	return advanced, errs.Wrap(tx.SendBatch(ctx, batch).Close(), "add to the roster")
}

// joined returns the events that tell the members that people have joined. requests are the people
// who have not accepted the convo.
func joined(by syntax.DID, epoch int64, people, requests []syntax.DID) []outbox.Event {
	events := make([]outbox.Event, len(people))
	for i, did := range people {
		events[i] = outbox.Event{Kind: outbox.Membership, DID: did, Detail: outbox.Detail{
			Change: outbox.Joined, By: by, Epoch: epoch, Request: slices.Contains(requests, did),
		}}
	}
	return events
}

// checkAdditions refuses DIDs that are already in the group, a roster that would become too long,
// and too many people who share no convo with the inviter. It returns who of added is on the roster
// already, and whose leaves the commit must replace.
func checkAdditions(ctx context.Context, tx pgx.Tx, c *locked, caller syntax.DID, added []syntax.DID,
	s *quota.Spending) (present, replaced []syntax.DID, err error) {
	var total int
	err = tx.QueryRow(ctx, `
		SELECT count(*), coalesce(array_agg(did ORDER BY did) FILTER (WHERE did = ANY($2)), '{}')
		FROM members WHERE convo_id = $1 AND left_at IS NULL`,
		c.id, added).Scan(&total, &present)
	if err != nil {
		return nil, nil, fmt.Errorf("read the roster: %w", err)
	}
	if n := total - len(present) + len(added); n > MaxMembers {
		return nil, nil, tooManyMembers(n)
	}
	if err := countInvited(ctx, tx, caller, c.id, distinct(added, present...), s); err != nil {
		return nil, nil, err
	}
	if len(present) > 0 {
		replaced, err = c.replaceable(ctx, tx, caller, present)
	}
	return present, replaced, err
}
