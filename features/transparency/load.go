package transparency

import (
	"context"
	_ "embed"
	"fmt"
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

// bounds say how much one read takes.
type bounds struct {
	entries int   // entries of one convo
	bytes   int64 // hashed bytes of one convo; its first entry is read even if it is larger
	sum     int64 // hashed bytes of all convos; the first convo is read even if it has more
}

// part is a part of a log.
type part struct {
	last    int64 // seq of the log's last entry
	floor   int64 // entries up to this seq can be missing
	stored  int64 // number of leaves in log_tiles
	cut     bool  // nothing was read, because the other convos have used up the sum
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

// sender is an account that has entries in a log.
type sender struct {
	convo uuid.UUID
	did   string
}

// load reads parts of logs, by convo. A part begins with the last entry of the convo's tree. A
// convo that does not exist has no part. A part ends before the first entry whose sender has no tag
// yet.
func load(ctx context.Context, q pgpool.DB, trees []*tree, most bounds) (map[uuid.UUID]*part, error) {
	parts, senders, err := loadEntries(ctx, q, trees, most)
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	if len(senders) == 0 {
		return parts, nil
	}
	// The tags are read after the entries. An account that was erased meanwhile has no tag, so its
	// entries are read again. Its tombstone has the same tag.
	tags, err := loadTags(ctx, q, senders)
	if err != nil {
		return nil, fmt.Errorf("read tags of senders: %w", err)
	}
	for convo, p := range parts {
		known := len(p.entries)
		for i := range p.entries {
			e := &p.entries[i]
			tag, ok := tags[sender{convo, e.sender}]
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
	}
	return parts, nil
}

func loadEntries(ctx context.Context, q pgpool.DB, trees []*tree, most bounds) (map[uuid.UUID]*part,
	map[sender]struct{}, error) {
	convos, sizes, versions := make([]uuid.UUID, len(trees)), make([]int64, len(trees)), make([]string, len(trees))
	for i, t := range trees {
		convos[i], sizes[i], versions[i] = t.convo, t.edge.Size, t.version
	}
	rows := pgpool.Rows(ctx, q, loadSQL, convos, sizes, versions, most.entries, most.bytes, most.sum)
	parts, senders := map[uuid.UUID]*part{}, map[sender]struct{}{}
	var (
		convo               uuid.UUID
		last, floor, stored int64
		cut                 bool
		seq, epoch, length  *int64
		kind                *int16
		at                  *time.Time
		did, version        *string
		body                []byte
	)
	to := []any{&convo, &last, &floor, &stored, &cut, &seq, &kind, &epoch, &at, &did, &version, &length, &body}
	_, err := pgx.ForEachRow(rows, to, func() error {
		p := parts[convo]
		if p == nil {
			p = &part{last: last, floor: floor, stored: stored, cut: cut}
			parts[convo] = p
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
		p.entries, senders[sender{convo, e.sender}] = append(p.entries, e), struct{}{}
		return nil
	})
	return parts, senders, err
}

func loadTags(ctx context.Context, q pgpool.DB, senders map[sender]struct{}) (map[sender]verifier.Hash, error) {
	convos, dids := make([]uuid.UUID, 0, len(senders)), make([]string, 0, len(senders))
	for s := range senders {
		convos, dids = append(convos, s.convo), append(dids, s.did)
	}
	rows := pgpool.Rows(ctx, q, `
		SELECT s.convo_id, s.did, s.tag
		FROM unnest($1::uuid[], $2::text[]) AS w (convo_id, did)
		CROSS JOIN LATERAL (SELECT * FROM log_senders WHERE convo_id = w.convo_id AND did = w.did LIMIT 1) s`, convos, dids)
	tags := map[sender]verifier.Hash{}
	var one sender
	var tag []byte
	_, err := pgx.ForEachRow(rows, []any{&one.convo, &one.did, &tag}, func() error {
		tags[one] = verifier.Hash(tag)
		return nil
	})
	return tags, err
}
