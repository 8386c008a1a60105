package convos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// selectConvos reads convos with their rosters as the member $1 sees them, where the memberships are those of the query that follows
// in brackets. Each roster is sorted once, and comes as two values however many members it has. What is unread is looked for no
// further than it is counted.
const selectConvos = `
	SELECT c.id, c.group_id, c.creator_did, c.cipher_suite, c.epoch, c.created_at, c.commit_level, c.last_message_at, c.name, c.description,
		c.last_seq, unread.n, roster.dids, roster.joined, me.more
	FROM (%s) me
	JOIN convos c ON c.id = me.convo_id
	CROSS JOIN LATERAL (
		SELECT count(*) AS n FROM (
			SELECT FROM (
				SELECT kind, sender_did FROM messages m
				WHERE m.convo_id = me.convo_id AND m.seq > greatest(me.cursor_seq, me.joined_seq)
				ORDER BY m.seq LIMIT 1000
			) ahead
			WHERE kind = 1 AND sender_did <> $1 LIMIT 100
		) counted
	) unread
	CROSS JOIN LATERAL (
		SELECT string_agg(did, ' ') AS dids, array_agg(joined_at) AS joined FROM (
			SELECT did, joined_at FROM members WHERE convo_id = me.convo_id AND left_at IS NULL ORDER BY joined_seq, role, did
		) present
	) roster`

// selectConvo and listConvos are selectConvos for one convo and for a page. The page's memberships are found by index, and nothing else
// is looked at behind it.
var (
	selectConvo = fmt.Sprintf(selectConvos, `
		SELECT convo_id, cursor_seq, joined_seq, false AS more FROM members WHERE did = $1 AND left_at IS NULL AND convo_id = $2`)
	listConvos = fmt.Sprintf(selectConvos, `
		SELECT convo_id, cursor_seq, joined_seq, lead(true) OVER (ORDER BY convo_id DESC) IS NOT NULL AS more
		FROM members WHERE did = $1 AND left_at IS NULL AND convo_id < $2
		ORDER BY convo_id DESC LIMIT $3`) + `
	ORDER BY me.convo_id DESC`
)

// Get returns a convo to one of its members. Errors: ErrNotFound, ErrNotMember.
func Get(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, reader syntax.DID) (Convo, error) {
	rows, err := q.Query(ctx, selectConvo, reader, convo)
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

// List calls each with the convos that reader is a member of, newest first, starting behind the one called after (uuid.Nil: from the
// first), at most limit of them, and says whether there are more. The convo is each's until it returns; if that is false, the page
// ends before that convo. With an error what each has got is void.
func List(
	ctx context.Context, q pgpool.Queryer, reader syntax.DID, after uuid.UUID, limit int, each func(*Convo) bool,
) (more bool, err error) {
	if after == uuid.Nil {
		after = uuid.Max
	}
	rows, err := q.Query(ctx, listConvos, reader, after, limit)
	if err != nil {
		return false, fmt.Errorf("list convos: %w", err)
	}
	defer rows.Close()
	var s scan
	for rows.Next() {
		if err := s.row(rows); err != nil {
			return false, fmt.Errorf("list convos: %w", err)
		}
		if !each(&s.Convo) {
			return true, nil
		}
	}
	if err := rows.Err(); err != nil {
		return false, fmt.Errorf("list convos: %w", err)
	}
	return s.more, nil
}

// scan reads rows of selectConvos, one after the other into the same memory.
type scan struct {
	Convo
	more   bool
	joined moments
}

func scanConvo(row pgx.CollectableRow) (Convo, error) {
	var s scan
	err := s.row(row)
	return s.Convo, err
}

func (s *scan) row(row pgx.CollectableRow) error {
	var (
		suite int32
		dids  string
	)
	err := row.Scan(&s.ID, &s.GroupID, &s.Creator, &suite, &s.Epoch, &s.CreatedAt, &s.CommitLevel, &s.LastMessageAt, &s.Name,
		&s.Description, &s.LastSeq, &s.Unread, &dids, &s.joined, &s.more)
	if err != nil {
		return err
	}
	s.CipherSuite = mls.CipherSuite(suite)
	s.Members = slices.Grow(s.Members[:0], len(s.joined))
	for _, at := range s.joined {
		did, behind, _ := strings.Cut(dids, " ") // a DID has no spaces
		s.Members, dids = append(s.Members, Member{DID: syntax.DID(did), JoinedAt: at}), behind
	}
	return nil
}

// moments is an array of timestamptz, scanned into memory that is there already.
type moments []time.Time

// SetDimensions implements pgtype.ArraySetter.
func (m *moments) SetDimensions(dimensions []pgtype.ArrayDimension) error {
	if len(dimensions) != 1 {
		return fmt.Errorf("an array of %d dimensions", len(dimensions))
	}
	n := int(dimensions[0].Length)
	*m = slices.Grow((*m)[:0], n)[:n]
	return nil
}

// ScanIndex implements pgtype.ArraySetter.
func (m *moments) ScanIndex(i int) any { return &(*m)[i] }

// ScanIndexType implements pgtype.ArraySetter.
func (m *moments) ScanIndexType() any { return new(time.Time) }
