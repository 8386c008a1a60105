package convos

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/nsid"
	"mlsd/keypackages"
	"mlsd/mls"
	"mlsd/outbox"
	"mlsd/people/consent"
	"mlsd/people/quota"
)

// NewConvo describes a group that its creator announces.
type NewConvo struct {
	Creator      syntax.DID
	GroupID      []byte
	CipherSuite  mls.CipherSuite
	Members      []syntax.DID // besides the creator
	Welcome      []byte       // for Members; nil if addMembers adds them to the group later
	GroupInfo    []byte
	Foreign      []keypackages.Foreign // KeyPackages of other services that the Welcome can name
	CurrentEpoch *int64
	Name         *string
	Description  *string
	Key          string          // the idempotency key, or a key that is derived from the content
	Quota        *quota.Spending // counts invited people who share no convo with the inviter; nil means no quota

	judged *judgement // nil until Judge was called
}

// judgement is the result of Judge.
type judgement struct {
	others  []syntax.DID // the members besides the creator
	epoch   int64
	verdict verdict
	err     error // nil if the convo can be created
}

// Judge verifies the GroupInfo, which takes long if the group is large. Judge needs no database, so
// call it before the transaction. Create returns Judge's error. If Judge was not called, Create
// calls it.
func (n *NewConvo) Judge() {
	j := &judgement{others: distinct(n.Members, n.Creator)}
	if members := len(j.others) + 1; members > MaxMembers {
		j.err = tooManyMembers(members)
	} else {
		j.epoch, j.verdict, j.err = n.judge(j.others)
	}
	n.judged = j
}

// Create announces a group. The unique group_id makes a repeated call safe. Errors:
// ErrGroupAlreadyExists, ErrTooManyMembers, *quota.ExceededError, *InvalidObjectError,
// *consent.BlockedError, and those of keypackages.Consume.
func Create(ctx context.Context, tx pgx.Tx, n NewConvo) (Convo, error) {
	if n.judged == nil {
		n.Judge()
	}
	if err := n.judged.err; err != nil {
		return Convo{}, err
	}
	others, epoch, v := n.judged.others, n.judged.epoch, n.judged.verdict
	id, err := uuid.NewV7()
	if err != nil {
		return Convo{}, fmt.Errorf("mint a convo id: %w", err)
	}
	if err := countInvited(ctx, tx, n.Creator, id, others, n.Quota); err != nil {
		return Convo{}, err
	}
	invited, err := consent.Invite(ctx, tx, n.Creator, others, nil)
	if err != nil {
		return Convo{}, err
	}
	if n.Welcome == nil && len(invited.Refused) > 0 { // a Welcome names KeyPackages, and people who refuse have none
		return Convo{}, keypackages.ErrNotFound
	}
	people := append([]syntax.DID{n.Creator}, others...)
	var inserted bool
	var created Convo
	batch := &pgx.Batch{}
	batch.Queue(`
		WITH convo AS (
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, name, description, commit_level,
				idempotency_key, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,
				date_trunc('milliseconds', clock_timestamp()))
			ON CONFLICT (group_id) DO NOTHING
			RETURNING id, created_at
		), roster AS (
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq, requested_at, invited_by)
			SELECT convo.id, m.did, CASE m.ord WHEN 1 THEN 'creator' ELSE 'member' END, convo.created_at, 0,
				CASE WHEN m.did = ANY($11) THEN clock_timestamp() END, CASE WHEN m.ord > 1 THEN $3 END
			FROM convo, unnest($10::text[]) WITH ORDINALITY AS m (did, ord)
		)
		SELECT EXISTS (SELECT FROM convo)`,
		id, n.GroupID, n.Creator, int32(n.CipherSuite), epoch, n.Name, n.Description, v.level, n.Key,
		people, invited.Requests).QueryRow(func(row pgx.Row) error { return row.Scan(&inserted) })
	outbox.Queue(batch, id, joined(n.Creator, epoch, people, invited.Requests)...)
	batch.Queue(selectConvos, n.Creator, id, id, 1, All, unreadMost, unreadEntries).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, scanConvo)
		if len(all) > 0 {
			created = all[0]
		}
		return err
	})
	// A separate statement, so that it sees a deletion for which the insertion has waited.
	var deleted bool
	group := sha256.Sum256(n.GroupID)
	batch.Queue(`SELECT EXISTS (SELECT FROM deleted_convos WHERE group_hash = $1)`, group[:]).
		QueryRow(func(row pgx.Row) error { return row.Scan(&deleted) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return Convo{}, fmt.Errorf("insert the convo: %w", err)
	}
	if !inserted || deleted {
		return Convo{}, ErrGroupAlreadyExists
	}
	if n.Welcome != nil {
		allowed := rights{adds: others, invited: invited, foreign: n.Foreign}
		c := locked{id: id, groupID: n.GroupID, cipherSuite: int32(n.CipherSuite), epoch: epoch}
		if err := addWelcome(ctx, tx, c, n.Creator, epoch, n.Welcome, allowed, v); err != nil {
			return Convo{}, err
		}
	}
	if v.group.Group != nil {
		if err := keepGroup(ctx, tx, id, epoch, v.group, n.GroupInfo); err != nil {
			return Convo{}, err
		}
	}
	return created, nil
}

// judge returns the group's epoch: the epoch of the GroupInfo; without a GroupInfo, the epoch that
// the creator states; without both, 1 if there is a Welcome, and 0 if there is none. The GroupInfo
// must be signed by a device of the creator, and every leaf must belong to a member. others are the
// members besides the creator.
func (n NewConvo) judge(others []syntax.DID) (epoch int64, v verdict, err error) {
	v.level = LevelHeader
	switch {
	case n.GroupInfo != nil:
		info, err := checkGroupInfo(n.GroupInfo, n.GroupID, int32(n.CipherSuite), n.CurrentEpoch)
		if err != nil {
			return 0, v, err
		}
		people := []syntax.DID{n.Creator}
		if n.Welcome != nil { // without a Welcome, the creator is alone in the group
			people = append(people, others...)
		}
		tree, err := checkTree(&info, n.Creator, people)
		if err != nil {
			return 0, v, err
		}
		if err := n.checkWelcomed(tree); err != nil {
			return 0, v, err
		}
		if v.group.Group, err = info.Verify(tree); err != nil {
			return 0, v, invalid(GroupInfo, "%v", err)
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

// checkWelcomed checks that the tree has at most as many devices of others as the Welcome names
// KeyPackages. checkRecipients compares them one by one, but only after the tree was verified.
func (n NewConvo) checkWelcomed(tree *mls.Tree) error {
	welcomed := 0
	if n.Welcome != nil {
		w, err := mls.ParseWelcome(n.Welcome)
		if err != nil {
			return invalid(Welcome, "%v", err)
		}
		welcomed = len(w.Refs)
	}
	for m := range tree.Members() {
		if m.DID() == n.Creator.String() {
			continue
		}
		if welcomed--; welcomed < 0 {
			return invalid(GroupInfo, "ratchet_tree: leaf %d is new, and not of a device that the Welcome is for", m.Leaf)
		}
	}
	return nil
}

// distinct returns dids in their order, without repetitions and without the members of except.
func distinct(dids []syntax.DID, except ...syntax.DID) []syntax.DID {
	out := make([]syntax.DID, 0, len(dids))
	for _, did := range dids {
		if !slices.Contains(out, did) && !slices.Contains(except, did) {
			out = append(out, did)
		}
	}
	return out
}

// RetireKeys retires the keys with which convos were created. It implements [idem.Retire].
func RetireKeys(ctx context.Context, tx pgx.Tx, keys []idem.UsedKey) error {
	var creators, used []string
	for _, k := range keys {
		if k.NSID == nsid.CreateConvo {
			creators, used = append(creators, k.Caller), append(used, k.Key)
		}
	}
	if len(used) == 0 {
		return nil
	}
	// The rows are locked in the order in which batches of messages lock them, to avoid deadlocks.
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT id FROM convos
			WHERE id = ANY (ARRAY(
				SELECT c.id
				FROM unnest($1::text[], $2::text[]) AS k (creator_did, key)
				CROSS JOIN LATERAL (
					SELECT id FROM convos WHERE creator_did = k.creator_did AND idempotency_key = k.key AND NOT key_retired LIMIT 1
				) c))
			ORDER BY id FOR NO KEY UPDATE
		)
		UPDATE convos SET key_retired = true WHERE id = ANY (ARRAY(SELECT id FROM locked))`, creators, used)
	return err
}
