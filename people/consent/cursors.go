package consent

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// ErrUnknownSharing says that a request names an unknown policy for cursors.
var ErrUnknownSharing = errors.New("shareCursors must be nobody or members")

// Sharing says who sees how far a person has read. It is mutual: a person who shares with nobody
// sees no cursors.
type Sharing string

// The policies for cursors.
const (
	WithNobody  Sharing = "nobody" // the default
	WithMembers Sharing = "members"
)

// ShareCursors sets who sees the cursors of did. Error besides the database's: ErrUnknownSharing.
func ShareCursors(ctx context.Context, tx pgx.Tx, did syntax.DID, s Sharing) error {
	if s != WithNobody && s != WithMembers {
		return ErrUnknownSharing
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO policies (did, share_cursors) VALUES ($1, $2)
		ON CONFLICT (did) DO UPDATE SET share_cursors = excluded.share_cursors`, did, s == WithMembers)
	return errs.Wrap(err, "set who sees the cursors")
}

// SharingOf returns who sees the cursors of did.
func SharingOf(ctx context.Context, q pgpool.Queryer, did syntax.DID) (Sharing, error) {
	var shares bool
	if err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM policies WHERE did = $1 AND share_cursors)`,
		did).Scan(&shares); err != nil {
		return "", fmt.Errorf("read who sees the cursors: %w", err)
	}
	if shares {
		return WithMembers, nil
	}
	return WithNobody, nil
}

// CursorView is how far a member has read, as other members see it.
type CursorView struct {
	DID       syntax.DID
	Read      int64
	Delivered int64 // at least Read
}

// listCursors returns the cursors of a convo that a member may see.
//
//go:embed cursors.sql
var listCursors string

// Cursors returns the cursors of a convo that a member may see, including its own, in the order of
// the DIDs. It returns none if the member does not share its own cursor, or has not accepted the
// convo.
func Cursors(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, viewer syntax.DID) ([]CursorView, error) {
	cursors, err := pgpool.Collect(ctx, q, pgx.RowToStructByPos[CursorView], listCursors, convo, viewer)
	return cursors, errs.Wrap(err, "list the cursors")
}

// Viewers says which members may see the cursors of which other members.
type Viewers struct {
	sharing map[syntax.DID]bool    // members who share their cursors and have accepted the convo
	blocks  map[[2]syntax.DID]bool // pairs of a member and somebody whom it has blocked
}

// See reports whether viewer may see the cursor of mover.
func (v Viewers) See(viewer, mover syntax.DID) bool {
	return v.sharing[viewer] && v.sharing[mover] && !v.blocks[[2]syntax.DID{viewer, mover}] &&
		!v.blocks[[2]syntax.DID{mover, viewer}]
}

// ViewersOf reads which of viewers may see the cursors of which movers in a convo. It reads the
// present state: since a mover's cursor moved, the mover may have left, or have stopped sharing its
// cursors.
func ViewersOf(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, movers, viewers []syntax.DID) (Viewers, error) {
	v := Viewers{sharing: map[syntax.DID]bool{}, blocks: map[[2]syntax.DID]bool{}}
	rows := pgpool.Rows(ctx, q, `
		SELECT DISTINCT m.did FROM unnest($2::text[] || $3::text[]) AS d (did)
		JOIN members m ON m.convo_id = $1 AND m.did = d.did AND m.left_at IS NULL AND m.requested_at IS NULL
		JOIN policies p ON p.did = d.did AND p.share_cursors`, convo, viewers, movers)
	var did, blocked syntax.DID
	if _, err := pgx.ForEachRow(rows, []any{&did}, func() error { v.sharing[did] = true; return nil }); err != nil {
		return Viewers{}, fmt.Errorf("read who sees cursors: %w", err)
	}
	rows = pgpool.Rows(ctx, q, `
		SELECT did, blocked_did FROM blocks WHERE did = ANY ($1::text[]) AND blocked_did = ANY ($2::text[])
		UNION
		SELECT did, blocked_did FROM blocks WHERE did = ANY ($2::text[]) AND blocked_did = ANY ($1::text[])`, movers, viewers)
	_, err := pgx.ForEachRow(rows, []any{&did, &blocked},
		func() error { v.blocks[[2]syntax.DID{did, blocked}] = true; return nil })
	return v, errs.Wrap(err, "read who has blocked whom")
}
