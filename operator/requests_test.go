package operator_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/operator"
)

// Whatever is asked for among many requests, an index finds it, however often it is asked for.
func TestRequestsAreFoundByIndex(t *testing.T) {
	t.Parallel()
	db, convo := pgtest.Database(t), uuid.New()
	const rows = 50_000
	_, err := db.Exec(t.Context(), `
		INSERT INTO requests (at, request_id, node, nsid, status, error, message, caller_did, key, convo_id, replayed,
			expired, seconds)
		SELECT now(), 'r' || n, 'a:1', 'x', 409, 'EpochMismatch', 'm', 'did:plc:' || n, 'k' || n, CASE n WHEN 1 THEN $1 ELSE
			gen_random_uuid() END,
			false, false, 0
		FROM generate_series(1, $2::int) AS of (n)`, convo, rows)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `ANALYZE requests`); err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for range 8 { // PostgreSQL can choose a plan for all parameters after five times
			for name, of := range map[string]operator.RequestsOf{
				"id": {Request: "r1"}, "key": {Key: "k1"}, "caller": {Caller: "did:plc:1"},
				"convo": {Convo: &convo, Error: "EpochMismatch"},
			} {
				of.Rows = 10
				found, err := operator.Requests(t.Context(), tx, of)
				if err != nil {
					return err
				}
				if len(found) != 1 || found[0].Request != "r1" {
					t.Errorf("by %s: %+v", name, found)
				}
			}
		}
		// Statistics of this transaction: rows that scans of the table have returned.
		var read, fetched int64
		err := tx.QueryRow(t.Context(), `
			SELECT pg_stat_get_xact_tuples_returned('requests'::regclass),
				pg_stat_get_xact_tuples_fetched('requests'::regclass)`).Scan(&read, &fetched)
		if err == nil && (read > 0 || fetched > 100) {
			t.Errorf("32 look-ups have scanned %d rows, and fetched %d by indexes", read, fetched)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
