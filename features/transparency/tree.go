package transparency

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/pgpool"
)

// tileHashes is how many hashes a complete row of log_tiles has.
const tileHashes = 1 << tileHeight

// tileHeight is the height of a tile, in levels of the tree.
const tileHeight = 8

// tree is what a node remembers of the end of a convo's tree. Only the holder of lock may use the
// other fields.
type tree struct {
	convo uuid.UUID
	lock  chan struct{} // holds one value while a goroutine works on the tree

	known      bool // the fields below were read from the database
	generation int64
	edge       verifier.Edge
	tail       []verifier.Hash // the leaves after the last complete tile
	last       verifier.Hash   // the last leaf
	version    string          // version of the row that the last leaf was made from (load.sql); "" if it is not known
	stored     int64           // number of leaves in log_tiles

	promised *verifier.Head // the last signed head; kept by forget
	checked  bool           // the tree was checked to begin with promised
}

func newTree(convo uuid.UUID) *tree { return &tree{convo: convo, lock: make(chan struct{}, 1)} }

// acquire waits for the tree.
func (t *tree) acquire(ctx context.Context) error {
	select {
	case t.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *tree) release() { <-t.lock }

// forget makes the next use of the tree read it again from the database.
func (t *tree) forget() {
	t.known, t.edge, t.tail, t.version, t.stored, t.checked = false, verifier.Edge{}, nil, "", 0, false
}

// maxRestarts is how often one request begins a tree again because another node stores leaves
// meanwhile.
const maxRestarts = 3

// errChanged says that the tree was made from another log, because the database has gone back.
var errChanged = errors.New("the log has changed under the tree")

// add appends a leaf. If this completes a tile, it returns the tile. version is the version of the
// entry's row; "" means not known.
func (t *tree) add(leaf verifier.Hash, version string) (tile []verifier.Hash) {
	t.edge.Append(leaf)
	t.tail, t.last, t.version = append(t.tail, leaf), leaf, version
	if len(t.tail) < tileHashes {
		return nil
	}
	tile, t.tail = t.tail, nil
	return tile
}

// gone returns the leaf of an entry that the retention deleted before the server kept leaves.
func gone(seq int64) verifier.Hash {
	return tlog.RecordHash(fmt.Appendf(nil, "mlsd log entry\n%d\ngone\n", seq))
}

// take appends the entries of p after the tree, and returns the tiles that these complete. No entry
// is left out: entries that are missing up to the floor have expired. p also has the last entry of
// the tree, to check that it still exists, because a database can go back without a new generation.
// Error: errChanged.
func (t *tree) take(p *part) (tiles [][]verifier.Hash, err error) {
	if p.last < t.edge.Size {
		return nil, errChanged
	}
	add := func(leaf verifier.Hash, version string) {
		if tile := t.add(leaf, version); tile != nil {
			tiles = append(tiles, tile)
		}
	}
	expired := func(before int64) error {
		for most := stepEntries; t.edge.Size+1 < before && most > 0; most-- {
			// A stored leaf says what the entry was, so the tree must begin with this leaf.
			if t.edge.Size+1 > p.floor || t.edge.Size+1 <= p.stored {
				return fmt.Errorf("convo %s has no entry %d: %w", t.convo, t.edge.Size+1, errChanged)
			}
			add(gone(t.edge.Size+1), "")
		}
		return nil
	}
	for _, e := range p.entries {
		if e.Seq == t.edge.Size {
			if !e.known && e.leaf != t.last {
				return nil, errChanged
			}
			t.version = e.version
			continue
		}
		if err := expired(e.Seq); err != nil {
			return nil, err
		}
		if t.edge.Size+1 < e.Seq { // the next step reads the rest
			return tiles, nil
		}
		add(e.leaf, e.version)
	}
	if len(p.entries) == 0 && len(p.unknown) == 0 {
		return tiles, expired(min(p.floor, p.last) + 1)
	}
	return tiles, nil
}

// catchUp reads the log after the tree, in at most so many steps, up to its end. It stores the tiles
// that are complete, and adds to hashed the number of bytes that it hashed, even if it fails. conn
// leads to one server, and the generation is of this server. Errors: ErrNotReady, errors of the
// database.
func (s *Service) catchUp(ctx context.Context, conn *pgxpool.Conn, t *tree, steps int, hashed *int64) error {
	generation, err := s.begun(ctx, conn)
	if err != nil {
		return err
	}
	if t.known && t.generation != generation {
		t.forget()
	}
	restarts := 0
	for range steps {
		if !t.known {
			if err := begin(ctx, conn, t); err != nil {
				return err
			}
			t.generation = generation
		}
		p, err := load(ctx, conn, t)
		if err != nil {
			return err
		}
		if p == nil {
			t.forget()
			return ErrNotReady // the convo is being deleted
		}
		*hashed += p.hashed
		// Senders without a tag get one. The next read then has their leaves.
		if err := makeTags(ctx, conn, t.convo, p.unknown); err != nil {
			return err
		}
		err = accept(ctx, conn, t, p)
		switch {
		case errors.Is(err, errChanged) && restarts < maxRestarts:
			t.forget()
			restarts++
			continue
		case err != nil:
			t.forget()
			return err
		case t.edge.Size >= p.last:
			return nil
		}
	}
	return ErrNotReady
}

// accept appends the entries of a part to the tree, and stores complete tiles.
func accept(ctx context.Context, conn *pgxpool.Conn, t *tree, p *part) error {
	first := t.edge.Size / tileHashes
	tiles, err := t.take(p)
	if err != nil {
		return err
	}
	for i, tile := range tiles {
		if err := storeTile(ctx, conn, t.convo, first+int64(i), tile); err != nil {
			return err
		}
		t.stored = max(t.stored, (first+int64(i)+1)*tileHashes)
	}
	return nil
}

// begin reads the end of the tree from log_tiles.
func begin(ctx context.Context, conn pgpool.DB, t *tree) error {
	t.forget()
	n, tail, err := lastTile(ctx, conn, t.convo)
	if err != nil {
		return err
	}
	complete := n * tileHashes
	if len(tail) == tileHashes {
		complete, t.last, tail = complete+tileHashes, tail[tileHashes-1], nil
	}
	if t.edge, err = edgeAt(ctx, conn, t.convo, complete); err != nil {
		return err
	}
	for _, leaf := range tail {
		t.add(leaf, "")
	}
	t.known, t.stored = true, t.edge.Size
	return nil
}

// edgeAt reads the edge of the tree at a size at which all tiles are complete.
func edgeAt(ctx context.Context, q pgpool.DB, convo uuid.UUID, size int64) (verifier.Edge, error) {
	e := verifier.Edge{Size: size}
	var indexes []int64
	for lo, level := int64(0), 62; level >= 0; level-- {
		if size&(1<<level) != 0 {
			indexes = append(indexes, tlog.StoredHashIndex(level, lo>>level))
			lo += 1 << level
		}
	}
	var err error
	e.Hashes, err = storedHashes{ctx: ctx, q: q, convo: convo}.ReadHashes(indexes)
	return e, err
}
