package convos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// selectConvos reads convos with their rosters as the member $1 sees them.
const selectConvos = `
	SELECT c.id, c.group_id, c.creator_did, c.cipher_suite, c.epoch, c.created_at, c.commit_level, c.last_message_at, c.name, c.description,
		c.last_seq, unread.n, roster.dids, roster.joined
	FROM members me
	JOIN convos c ON c.id = me.convo_id
	CROSS JOIN LATERAL (
		SELECT least(count(*), 100) AS n FROM (
			SELECT kind, sender_did FROM messages m
			WHERE m.convo_id = c.id AND m.seq > greatest(me.cursor_seq, me.joined_seq)
			ORDER BY m.seq LIMIT 1000
		) ahead
		WHERE kind = 1 AND sender_did <> $1
	) unread
	CROSS JOIN LATERAL (
		SELECT array_agg(did ORDER BY joined_seq, role, did) AS dids, array_agg(joined_at ORDER BY joined_seq, role, did) AS joined
		FROM members WHERE convo_id = c.id AND left_at IS NULL
	) roster
	WHERE me.did = $1 AND me.left_at IS NULL`

// Get returns a convo to one of its members. Errors: ErrNotFound, ErrNotMember.
func Get(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, reader syntax.DID) (Convo, error) {
	rows, err := q.Query(ctx, selectConvos+` AND c.id = $2`, reader, convo)
	if err != nil {
		return Convo{}, fmt.Errorf("read the convo: %w", err)
	}
	c, err := pgx.CollectExactlyOneRow(rows, scanConvo)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = Authorise(ctx, q, convo, reader) // says which of the two it is
		if err == nil {
			err = ErrNotFound // joined between the two statements
		}
	}
	return c, err
}

// maxListedMembers bounds the rosters of one page, and so its size: about 5 MB of answer.
const maxListedMembers = 50_000

// List returns the convos that reader is a member of, newest first, starting behind the one called after (uuid.Nil: from the
// first), and whether there are more.
func List(ctx context.Context, q pgpool.Queryer, reader syntax.DID, after uuid.UUID, limit int) (page []Convo, more bool, err error) {
	rows, err := q.Query(ctx, selectConvos+` AND ($2 = '00000000-0000-0000-0000-000000000000'::uuid OR c.id < $2)
		ORDER BY me.convo_id DESC LIMIT $3`, reader, after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list convos: %w", err)
	}
	page, err = pgx.CollectRows(rows, scanConvo)
	if err != nil {
		return nil, false, fmt.Errorf("list convos: %w", err)
	}
	listed := 0
	for i, c := range page {
		listed += len(c.Members)
		if i == limit || (i > 0 && listed > maxListedMembers) {
			return page[:i], true, nil
		}
	}
	return page, false, nil
}

func scanConvo(row pgx.CollectableRow) (c Convo, err error) {
	var dids []syntax.DID
	var joined []time.Time
	var suite int32
	err = row.Scan(&c.ID, &c.GroupID, &c.Creator, &suite, &c.Epoch, &c.CreatedAt, &c.CommitLevel, &c.LastMessageAt, &c.Name, &c.Description,
		&c.LastSeq, &c.Unread, &dids, &joined)
	if err != nil {
		return c, err
	}
	c.CipherSuite = mls.CipherSuite(suite)
	c.Members = make([]Member, len(dids))
	for i := range dids {
		c.Members[i] = Member{DID: dids[i], JoinedAt: joined[i]}
	}
	return c, nil
}
