package operator_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/operator"
)

// A page of a long log finds its epochs by indexes: the size of the log does not count.
func TestLongLog(t *testing.T) {
	t.Parallel()
	db, id := pgtest.Database(t), uuid.New()
	const epochs = 20_000
	for _, sql := range []string{
		`INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
		SELECT $1::uuid, '\x01', 'did:plc:alice', 1, $2, 2 * $2::bigint, now()`,
		`INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1::uuid, seq, CASE seq % 2 WHEN 1 THEN 3 ELSE 1 END, 'did:plc:alice', (seq + 1) / 2, 'body', seq, '', now()
		FROM generate_series(1, 2 * $2::bigint) AS of (seq)`,
	} {
		if _, err := db.Exec(t.Context(), sql, id, epochs); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(t.Context(), `ANALYZE messages, members, convos, welcome_bodies`); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(t.Context(), `EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) `+operator.ReadEpochs, id,
		int64(math.MaxInt64), 20, 2*epochs, 20)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan on messages") ||
		strings.Contains(plan, "Rows Removed by Filter: 1") {
		t.Errorf("the plan reads the log:\n%s", plan)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		c, err := operator.ReadConvo(t.Context(), tx, id)
		if err != nil {
			return err
		}
		for _, before := range []int64{math.MaxInt64, epochs / 2, 2} {
			found, err := operator.Epochs(t.Context(), tx, c, before, 20)
			if err != nil {
				return err
			}
			want := min(before-1, epochs)
			if len(found) != int(min(20, want)) || found[0].Epoch != want || found[0].Messages != 1 {
				return fmt.Errorf("before %d: %d epochs, %+v", before, len(found), found[0])
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
