package convos

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/mls"
	"mlsd/outbox"
)

// NewConvo describes a group that its creator announces.
type NewConvo struct {
	Creator      syntax.DID
	GroupID      []byte
	CipherSuite  mls.CipherSuite
	Members      []syntax.DID // besides the creator
	Welcome      []byte       // for Members; nil if addMembers adds them to the group later
	GroupInfo    []byte
	CurrentEpoch *int64
	Name         *string
	Description  *string
	Key          string // idempotency key, or the one derived from the content
	Hash         [sha256.Size]byte
}

// Create announces a group. The unique group_id makes it safe to repeat. Errors:
// ErrGroupAlreadyExists, ErrTooManyMembers, *InvalidObjectError, and those of keypackages.Consume.
func Create(ctx context.Context, tx pgx.Tx, n NewConvo) (Convo, error) {
	others := distinct(n.Members, n.Creator)
	if len(others)+1 > MaxMembers {
		return Convo{}, ErrTooManyMembers
	}
	epoch, v, err := n.judge(others)
	if err != nil {
		return Convo{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Convo{}, fmt.Errorf("mint a convo id: %w", err)
	}
	var inserted bool
	var created Convo
	batch := &pgx.Batch{}
	batch.Queue(`
		WITH convo AS (
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, name, description, commit_level,
				idempotency_key, request_hash, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
				date_trunc('milliseconds', clock_timestamp()))
			ON CONFLICT (group_id) DO NOTHING
			RETURNING id, created_at
		), roster AS (
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
			SELECT convo.id, m.did, CASE m.ord WHEN 1 THEN 'creator' ELSE 'member' END, convo.created_at, 0
			FROM convo, unnest($11::text[]) WITH ORDINALITY AS m (did, ord)
			RETURNING convo_id, did
		), event AS (
			INSERT INTO outbox (kind, convo_id, seq, did, detail, created_at)
			SELECT $12, convo_id, 0, did,
				jsonb_build_object('change', $13::text, 'by', $3::text, 'epoch', $5::bigint, 'commitNeeded', false), clock_timestamp()
			FROM roster
		)
		SELECT EXISTS (SELECT FROM convo)`,
		id, n.GroupID, n.Creator, int32(n.CipherSuite), epoch, n.Name, n.Description, v.level, n.Key, n.Hash[:],
		append([]syntax.DID{n.Creator}, others...), outbox.Membership, outbox.Joined).
		QueryRow(func(row pgx.Row) error { return row.Scan(&inserted) })
	batch.Queue(selectConvos, n.Creator, id, id, 1).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, scanConvo)
		if len(all) > 0 {
			created = all[0]
		}
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return Convo{}, fmt.Errorf("insert the convo: %w", err)
	}
	if !inserted {
		return Convo{}, ErrGroupAlreadyExists
	}
	if v.group.Group != nil {
		if err := keepGroup(ctx, tx, id, epoch, v.group, n.GroupInfo); err != nil {
			return Convo{}, err
		}
	}
	if n.Welcome != nil {
		c := locked{id: id, groupID: n.GroupID, cipherSuite: int32(n.CipherSuite), epoch: epoch}
		if err := addWelcome(ctx, tx, c, n.Creator, epoch, n.Welcome, others, v); err != nil {
			return Convo{}, err
		}
	}
	return created, nil
}

// judge returns the group's epoch: the GroupInfo's if there is one, else the one that the creator
// states, else 1 if there is a Welcome, else 0. The GroupInfo must be signed by a device of the
// creator's, and every leaf must belong to a member. others are the members besides the creator.
func (n NewConvo) judge(others []syntax.DID) (epoch int64, v verdict, err error) {
	v.level = LevelHeader
	switch {
	case n.GroupInfo != nil:
		info, err := checkGroupInfo(n.GroupInfo, n.GroupID, int32(n.CipherSuite), n.CurrentEpoch)
		if err != nil {
			return 0, v, err
		}
		people := []syntax.DID{n.Creator}
		if n.Welcome != nil { // without one, the creator is alone in the group
			people = append(people, others...)
		}
		if v.group.Group, err = verifyGroupInfo(&info, n.Creator, people); err != nil {
			return 0, v, err
		}
		v.change = &mls.Change{Next: v.group.Group}
		for m := range v.group.Tree.Members() {
			v.change.Adds = append(v.change.Adds, mls.Addition{Member: m})
		}
		v.level, epoch = LevelVerified, int64(info.Epoch)
	case n.CurrentEpoch != nil:
		epoch = *n.CurrentEpoch
	case n.Welcome != nil:
		epoch = 1
	}
	if epoch == 0 && n.Welcome != nil {
		return 0, v, invalid(Welcome, "leads into epoch 1 or later, but the convo is said to be in epoch 0")
	}
	return epoch, v, nil
}

// distinct returns dids without repetitions and without those in except. It keeps the order.
func distinct(dids []syntax.DID, except ...syntax.DID) []syntax.DID {
	out := make([]syntax.DID, 0, len(dids))
	for _, did := range dids {
		if !slices.Contains(out, did) && !slices.Contains(except, did) {
			out = append(out, did)
		}
	}
	return out
}
