package messages

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// SignalDraft is a ciphertext that is passed on and never stored. Group and epoch come from its own MLS
// header.
type SignalDraft struct {
	ConvoID uuid.UUID
	GroupID []byte
	Sender  syntax.DID
	Epoch   int64
}

// Bounds of the people who have blocked a sender. If a bound is exceeded, nobody gets the sender's
// signals.
const (
	maxHidden   = 16   // blockers who are members of the convo
	maxBlockers = 1000 // blockers in all
)

// AuthoriseSignal applies the rules of judge to a signal: the sender is a member, the convo is
// open, and the ciphertext is of the convo's group and at most window epochs behind. hidden are the
// members who have blocked the sender and must not get the signal. If nobody is true, there are too
// many such members to list, and no member gets the signal. AuthoriseSignal locks and writes
// nothing.
//
// Errors: ErrConvoNotFound, ErrNotMember, ErrConvoClosed, ErrWrongGroup, *EpochMismatchError.
func AuthoriseSignal(ctx context.Context, q pgpool.Queryer, s SignalDraft, window int64) (hidden []syntax.DID,
	nobody bool, err error) {
	var group []byte
	var epoch int64
	var closed, left, many bool
	var successor uuid.NullUUID
	err = q.QueryRow(ctx, `
		SELECT c.group_id, c.epoch, c.closed_at IS NOT NULL, c.successor_id, m.left_at IS NOT NULL,
			ARRAY(SELECT b.did FROM (SELECT did FROM blocks WHERE blocked_did = $2 LIMIT $4) b
				WHERE EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = b.did AND left_at IS NULL) LIMIT $3),
			(SELECT count(*) FROM (SELECT FROM blocks WHERE blocked_did = $2 LIMIT $4) b) = $4
		FROM convos c JOIN members m ON m.convo_id = c.id AND m.did = $2
		WHERE c.id = $1`, s.ConvoID, s.Sender, maxHidden+1, maxBlockers+1).Scan(&group, &epoch, &closed, &successor, &left,
		&hidden, &many)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, false, ErrConvoNotFound
	case err != nil:
		return nil, false, fmt.Errorf("authorise a signal: %w", err)
	case left:
		return nil, false, ErrNotMember
	case closed:
		return nil, false, Closed(successor.UUID)
	case !bytes.Equal(group, s.GroupID):
		return nil, false, ErrWrongGroup
	case s.Epoch > epoch || s.Epoch < epoch-window:
		return nil, false, &EpochMismatchError{Epoch: s.Epoch, Current: epoch}
	}
	return hidden, many || len(hidden) > maxHidden, nil
}
