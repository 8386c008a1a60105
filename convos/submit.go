package convos

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Submission is a commit that leaves the roster as it is.
type Submission struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	Device  string // the one that Rejoin adds; "": any
	Proposed
}

// Submit accepts a commit that rotates keys, removes devices of the caller's own or of people who
// have left, or adds devices of the caller's own with a Welcome. One with ReInit closes the convo.
// Errors: ErrNotFound, ErrNotMember, ErrConvoClosed, ErrNotPermitted, *ReservedError,
// *messages.EpochMismatchError, *InvalidObjectError, and those of keypackages.Consume.
func Submit(ctx context.Context, tx pgx.Tx, s Submission) (Advanced, error) {
	return submit(ctx, tx, s, rights{})
}

// Rejoin accepts an external commit (RFC 9420 §12.4.3.2). It adds a device of a current member's
// to the group without a Welcome, and can remove an older device of the same member's. The
// commit must be verifiable. A device other than s.Device gets ErrNotPermitted. Errors: those of
// Submit, and ErrNoGroupInfo.
func Rejoin(ctx context.Context, tx pgx.Tx, s Submission) (Advanced, error) {
	return submit(ctx, tx, s, rights{joins: true, device: s.Device})
}

func submit(ctx context.Context, tx pgx.Tx, s Submission, allowed rights) (Advanced, error) {
	c, err := lockConvo(ctx, tx, s.ConvoID, s.Caller)
	if err != nil {
		return Advanced{}, err
	}
	if c.leftEpoch != nil {
		return Advanced{}, ErrNotMember
	}
	if err := c.refuseClosed(); err != nil {
		return Advanced{}, err
	}
	return c.advance(ctx, tx, s.Caller, s.Proposed, allowed)
}
