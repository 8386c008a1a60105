package convos

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// publicGroup is what is public of the convo's group at its epoch; nil if that is not known. The caller holds the convo's row
// lock.
func (c *locked) publicGroup(ctx context.Context, tx pgx.Tx) (*mls.Group, error) {
	var state []byte
	err := tx.QueryRow(ctx, `SELECT state FROM public_groups WHERE convo_id = $1 AND epoch = $2`, c.id, c.epoch).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the public group: %w", err)
	}
	group, err := mls.ParseGroup(state)
	if err != nil {
		return nil, fmt.Errorf("read the public group: %w", err)
	}
	return group, nil
}

// keepGroup stores what is public of the convo's group at epoch, with the GroupInfo if one was sent. A nil group is one that is
// not known from here on.
func keepGroup(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64, group *mls.Group, groupInfo []byte) error {
	var err error
	if group == nil {
		_, err = tx.Exec(ctx, `DELETE FROM public_groups WHERE convo_id = $1`, convo)
	} else {
		_, err = tx.Exec(ctx, `
			INSERT INTO public_groups (convo_id, epoch, state, group_info) VALUES ($1, $2, $3, $4)
			ON CONFLICT (convo_id) DO UPDATE SET epoch = excluded.epoch, state = excluded.state, group_info = excluded.group_info`,
			convo, epoch, group.Encode(), groupInfo)
	}
	if err != nil {
		return fmt.Errorf("keep the public group: %w", err)
	}
	return nil
}

// GroupInfoOf returns the GroupInfo of the convo's current epoch to one of its members, exactly as it was sent. Errors:
// ErrNotFound, ErrNotMember, ErrNoGroupInfo.
func GroupInfoOf(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, reader syntax.DID) (groupInfo []byte, epoch int64, err error) {
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
	if err != nil {
		return nil, 0, fmt.Errorf("read the GroupInfo: %w", err)
	}
	return groupInfo, epoch, nil
}
