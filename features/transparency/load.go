package transparency

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/pgpool"
)

// loadSQL reads leaves.
//
//go:embed load.sql
var loadSQL string

// part is a part of a log.
type part struct {
	last    int64 // seq of the log's last entry
	floor   int64 // entries up to this seq can be missing
	stored  int64 // number of leaves in log_tiles
	hashed  int64 // hashed bytes of bodies
	entries []loaded
	unknown []string // senders without a tag
}

type loaded struct {
	verifier.Entry
	sender  string
	version string // version of the row (load.sql)
	known   bool   // the tree was made from this version of the row, which was not hashed
	leaf    verifier.Hash
}

// load reads the part of the log after the tree, which begins with the last entry of the tree. It
// ends before the first entry whose sender has no tag yet. If the convo does not exist, load returns
// nil.
func load(ctx context.Context, q pgpool.DB, t *tree) (*part, error) {
	p, err := loadEntries(ctx, q, t)
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	if p == nil || len(p.entries) == 0 {
		return p, nil
	}
	// The tags are read after the entries. An account that was erased meanwhile has no tag, so its
	// entries are read again. Its tombstone has the same tag.
	tags, err := loadTags(ctx, q, t.convo, p.entries)
	if err != nil {
		return nil, fmt.Errorf("read tags of senders: %w", err)
	}
	known := len(p.entries)
	for i := range p.entries {
		e := &p.entries[i]
		tag, ok := tags[e.sender]
		if !ok {
			known = min(known, i)
			if !slices.Contains(p.unknown, e.sender) {
				p.unknown = append(p.unknown, e.sender)
			}
			continue
		}
		e.Tag = tag
		e.leaf = e.Leaf()
	}
	p.entries = p.entries[:known]
	return p, nil
}

func loadEntries(ctx context.Context, q pgpool.DB, t *tree) (p *part, err error) {
	rows := pgpool.Rows(ctx, q, loadSQL, t.convo, t.edge.Size, t.version, stepEntries, stepBytes)
	var (
		last, floor, stored int64
		seq, epoch, length  *int64
		kind                *int16
		at                  *time.Time
		did, version        *string
		body                []byte
	)
	to := []any{&last, &floor, &stored, &seq, &kind, &epoch, &at, &did, &version, &length, &body}
	_, err = pgx.ForEachRow(rows, to, func() error {
		if p == nil {
			p = &part{last: last, floor: floor, stored: stored}
		}
		if seq == nil { // there is nothing left to read
			return nil
		}
		e := loaded{Entry: verifier.Entry{Seq: *seq, Kind: int(*kind), Epoch: *epoch, At: *at}, sender: *did,
			version: *version, known: body == nil}
		if !e.known {
			e.Body = verifier.Hash(body)
			p.hashed += *length
		}
		if e.Kind == verifier.Commit {
			e.Epoch-- // the log has the epoch that the commit creates
		}
		p.entries = append(p.entries, e)
		return nil
	})
	return p, err
}

// loadTags returns the tags of the entries' senders, by DID.
func loadTags(ctx context.Context, q pgpool.DB, convo uuid.UUID, entries []loaded) (map[string]verifier.Hash, error) {
	senders := map[string]struct{}{}
	for _, e := range entries {
		senders[e.sender] = struct{}{}
	}
	rows := pgpool.Rows(ctx, q, `SELECT did, tag FROM log_senders WHERE convo_id = $1 AND did = ANY ($2)`, convo,
		slices.Collect(maps.Keys(senders)))
	tags := map[string]verifier.Hash{}
	var did string
	var tag []byte
	_, err := pgx.ForEachRow(rows, []any{&did, &tag}, func() error {
		tags[did] = verifier.Hash(tag)
		return nil
	})
	return tags, err
}
