package transparency

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// A complete tile at level 0 has 256 leaves. A hash of level 1 is the root of such a tile, and so
// on. Every node would write the same hashes, so any node may write them.

// storeTile writes the leaves of the tile n, and the roots that this tile completes.
func storeTile(ctx context.Context, conn *pgxpool.Conn, convo uuid.UUID, n int64, leaves []verifier.Hash) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return putTile(ctx, tx, convo, n, leaves)
	})
	return errs.Wrap(err, "store leaves")
}

func putTile(ctx context.Context, tx pgx.Tx, convo uuid.UUID, n int64, leaves []verifier.Hash) error {
	// The lock prevents the deletion of the convo meanwhile, and delays no message.
	var there bool
	err := tx.QueryRow(ctx, `SELECT true FROM convos WHERE id = $1 FOR KEY SHARE`, convo).Scan(&there)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	written, err := tx.Exec(ctx, `
		INSERT INTO log_tiles (convo_id, level, n, hashes) VALUES ($1, 0, $2, $3)
		ON CONFLICT (convo_id, level, n) DO UPDATE SET hashes = excluded.hashes
		WHERE octet_length(log_tiles.hashes) < octet_length(excluded.hashes) AND starts_with(encode(excluded.hashes, 'hex'),
			encode(log_tiles.hashes, 'hex'))`,
		convo, n, join(leaves))
	if err == nil && written.RowsAffected() == 0 { // these leaves are stored already, and perhaps more
		err = compareTile(ctx, tx, convo, n, leaves)
	}
	for level := 1; err == nil && len(leaves) == tileHashes; level++ {
		n, leaves, err = putRoot(ctx, tx, convo, level, n, subtree(leaves))
	}
	return err
}

// compareTile checks that a stored tile begins with the leaves.
func compareTile(ctx context.Context, tx pgx.Tx, convo uuid.UUID, n int64, leaves []verifier.Hash) error {
	var same bool
	err := tx.QueryRow(ctx, `
		SELECT substring(hashes, 1, octet_length($3::bytea)) = $3 FROM log_tiles
		WHERE convo_id = $1 AND level = 0 AND n = $2`,
		convo, n, join(leaves)).Scan(&same)
	if err == nil && !same {
		return fmt.Errorf("convo %s: the leaves behind entry %d are not those that were stored before", convo, n*tileHashes)
	}
	return err
}

// putRoot appends the root of the tile n of the level below, unless it is stored already. It
// returns the number of its row. If the row is complete, it also returns the row's hashes.
func putRoot(ctx context.Context, tx pgx.Tx, convo uuid.UUID, level int, n int64, root verifier.Hash) (row int64,
	hashes []verifier.Hash, err error) {
	row, place := n/tileHashes, n%tileHashes
	var data []byte
	err = tx.QueryRow(ctx, `
		INSERT INTO log_tiles AS t (convo_id, level, n, hashes) SELECT $1, $2, $3, $4
		WHERE $5 = 0 OR EXISTS (SELECT FROM log_tiles WHERE convo_id = $1 AND level = $2 AND n = $3 AND octet_length(hashes)
			>= $5 * 32)
		ON CONFLICT (convo_id, level, n) DO UPDATE SET hashes = substring(t.hashes, 1, $5 * 32) || excluded.hashes
			|| substring(t.hashes, $5 * 32 + 33)
		RETURNING hashes`, convo, level, row, root[:], int(place)).Scan(&data)
	if err != nil {
		return 0, nil, fmt.Errorf("append to level %d: %w", level, err)
	}
	hashes, err = split(data)
	return row, hashes, err
}

// lastTile returns the number and the hashes of the last row of leaves. If there is no row, it
// returns no hashes.
func lastTile(ctx context.Context, q pgpool.DB, convo uuid.UUID) (n int64, leaves []verifier.Hash, err error) {
	rows, err := q.Query(ctx, `SELECT n, hashes FROM log_tiles WHERE convo_id = $1 AND level = 0 ORDER BY n DESC LIMIT 1`,
		convo)
	var data []byte
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&n, &data}, func() error { return nil })
	}
	if err == nil {
		leaves, err = split(data)
	}
	return n, leaves, errs.Wrap(err, "read the last leaves")
}

// storedHashes reads hashes of a convo's tree. Leaves after the complete tiles come from tail. All
// other hashes come from log_tiles, in one statement.
type storedHashes struct {
	ctx   context.Context
	q     pgpool.DB
	convo uuid.UUID
	tail  []verifier.Hash
	base  int64 // number of leaves before tail
}

// ReadHashes implements tlog.HashReader.
func (s storedHashes) ReadHashes(indexes []int64) ([]verifier.Hash, error) {
	type place struct {
		level int
		n     int64
	}
	hashes, data := make([]verifier.Hash, len(indexes)), map[place][]byte{}
	var levels, ns []int64
	for i, index := range indexes {
		if level, n := tlog.SplitStoredHashIndex(index); len(s.tail) > 0 && n<<level >= s.base {
			from := n<<level - s.base
			if from+1<<level > int64(len(s.tail)) {
				return nil, ErrRange
			}
			hashes[i] = subtree(s.tail[from : from+1<<level])
			continue
		}
		tile := tlog.TileForIndex(tileHeight, index)
		if at := (place{tile.L, tile.N}); data[at] == nil {
			data[at] = []byte{}
			levels, ns = append(levels, int64(tile.L)), append(ns, tile.N)
		}
	}
	if len(levels) == 0 {
		return hashes, nil
	}
	rows := pgpool.Rows(s.ctx, s.q, `
		SELECT level, n, hashes FROM log_tiles
		WHERE convo_id = $1 AND (level, n) IN (SELECT * FROM unnest($2::bigint[], $3::bigint[]))`, s.convo, levels, ns)
	var at place
	var row []byte
	_, err := pgx.ForEachRow(rows, []any{&at.level, &at.n, &row}, func() error {
		data[at], row = row, nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read hashes: %w", err)
	}
	for i, index := range indexes {
		if hashes[i] != (verifier.Hash{}) {
			continue
		}
		tile := tlog.TileForIndex(tileHeight, index)
		if hashes[i], err = tlog.HashFromTile(tile, data[place{tile.L, tile.N}], index); err != nil {
			return nil, fmt.Errorf("read hashes: %w", err)
		}
	}
	return hashes, nil
}

// subtree returns the root of a complete tree of hashes, whose number is a power of 2.
func subtree(hashes []verifier.Hash) verifier.Hash {
	if len(hashes) == 1 {
		return hashes[0]
	}
	half := len(hashes) / 2
	return tlog.NodeHash(subtree(hashes[:half]), subtree(hashes[half:]))
}

func join(hashes []verifier.Hash) []byte {
	data := make([]byte, 0, len(hashes)*tlog.HashSize)
	for _, h := range hashes {
		data = append(data, h[:]...)
	}
	return data
}

func split(data []byte) ([]verifier.Hash, error) {
	if len(data)%tlog.HashSize != 0 {
		return nil, fmt.Errorf("%d bytes of hashes", len(data))
	}
	hashes := make([]verifier.Hash, len(data)/tlog.HashSize)
	for i := range hashes {
		hashes[i] = verifier.Hash(data[i*tlog.HashSize:])
	}
	return hashes, nil
}
