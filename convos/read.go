package convos

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// selectConvos reads a page of convos, or one convo, as a member sees it.
//
//go:embed convos.sql
var selectConvos string

// Get returns a convo to one of its members. Errors: ErrNotFound, ErrNotMember.
func Get(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, reader syntax.DID) (Convo, error) {
	rows := pgpool.Rows(ctx, q, selectConvos, reader, convo, convo, 1, All, unreadMost, unreadEntries)
	c, err := pgx.CollectExactlyOneRow(rows, scanConvo)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = Authorise(ctx, q, convo, reader) // tells a former member from a non-member
		if err == nil {
			err = ErrNotFound // the reader has joined between the two statements
		}
	}
	return c, err
}

// Filter selects convos by whether the reader has accepted them.
type Filter string

// The filters of List.
const (
	All      Filter = "all"
	Accepted Filter = "accepted"
	Requests Filter = "requests"
)

// List calls yield with the convos of which reader is a member and that filter selects, newest
// first. It starts with the first convo older than after, or with the newest convo if after is
// uuid.Nil. It yields at most limit convos, and returns whether there are more, and counts that are
// worth keeping (Cursors.Keep). yield must not keep the convo. If yield returns false, the page ends
// before that convo. If List fails, the caller discards what yield has received.
func List(
	ctx context.Context, q pgpool.Queryer, reader syntax.DID, filter Filter, after uuid.UUID, limit int,
	yield func(*Convo) bool,
) (more bool, counts []Counted, err error) {
	newest := uuid.Max
	if after != uuid.Nil {
		newest = predecessor(after)
	}
	rows, err := q.Query(ctx, selectConvos, reader, uuid.Nil, newest, limit, filter, unreadMost, unreadEntries)
	if err != nil {
		return false, nil, fmt.Errorf("list convos: %w", err)
	}
	defer rows.Close()
	var s scan
	for rows.Next() {
		if err := s.row(rows); err != nil {
			return false, nil, fmt.Errorf("list convos: %w", err)
		}
		if s.counted.to-s.known > unreadKept {
			counts = append(counts, s.counted)
		}
		if !yield(&s.Convo) {
			return true, counts, nil
		}
	}
	if err := rows.Err(); err != nil {
		return false, nil, fmt.Errorf("list convos: %w", err)
	}
	return s.more, counts, nil
}

// predecessor returns the largest id that is smaller than id.
func predecessor(id uuid.UUID) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		id[i]--
		if id[i] != 0xff {
			break
		}
	}
	return id
}

// scan reads rows of selectConvos. Each row reuses the memory of the row before.
type scan struct {
	Convo
	more    bool
	joined  []time.Time
	admins  []bool
	counted Counted
	known   int64 // the entry behind which the count went on
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
	err := row.Scan(&s.ID, &s.GroupID, &s.Creator, &suite, &s.Epoch, &s.CreatedAt, &s.CommitLevel, &s.LastMessageAt,
		&s.Name,
		&s.Description, &s.LastSeq, &s.ClosedAt, &s.Successor, &s.SuccessorID, &s.PredecessorID,
		&s.Request, &s.InvitedBy, &dids, &s.joined, &s.admins, &s.Admin, &s.more,
		&s.counted.from, &s.known, &s.counted.to, &s.counted.n)
	if err != nil {
		return err
	}
	s.counted.convo, s.Unread = s.ID, s.counted.n
	if s.Unread < unreadMost { // the count ended with the log, or with unreadEntries
		s.counted.to = min(s.LastSeq, s.known+unreadEntries)
	}
	s.CipherSuite = mls.CipherSuite(suite)
	s.Members = slices.Grow(s.Members[:0], len(s.joined))
	for i, at := range s.joined {
		did, behind, _ := strings.Cut(dids, " ") // a DID has no spaces
		s.Members, dids = append(s.Members, Member{DID: syntax.DID(did), JoinedAt: at, Admin: s.admins[i]}), behind
	}
	return nil
}
