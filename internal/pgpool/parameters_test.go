package pgpool_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// Each query of SendTx gets its own parameters: empty ones, NULLs, texts for any type, and others
// than the transaction before had.
func TestParameters(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t, pgtest.MaxConns(1))
	none, second := (*string)(nil), "2 seconds"
	for _, size := range []int{0, 2 << 20, 10, 0, 5000} { // grows beyond what is kept, and shrinks
		body := pgpool.Array[pgpool.Bytes]{[]byte(strings.Repeat("a", size)), nil, {}}
		batch := &pgx.Batch{}
		batch.Queue(`SELECT $1::text = '' AND $2::text IS NULL AND $3::interval = '2s' AND $4::interval = '2s' AND $5::bigint
				= 7`,
			"", none, &second, "2s", 7).QueryRow(isTrue(t))
		batch.Queue(`SELECT $1::bytea[] = ARRAY[convert_to(repeat('a', $2), 'UTF8'), NULL, ''] AND $3::text = 'last'`, body,
			size, "last").QueryRow(isTrue(t))
		if err := pgpool.SendTx(t.Context(), db, batch, nil); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
}

func isTrue(t *testing.T) func(pgx.Row) error {
	return func(row pgx.Row) error {
		var ok bool
		err := row.Scan(&ok)
		if err == nil && !ok {
			t.Error("other parameters arrived")
		}
		return err
	}
}
