package reports_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/features/reports"
	"mlsd/internal/pgtest"
)

// The sum of the open reports can be read from an index alone, because every new report waits for it.
func TestSumReadsNoReports(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	// The table is empty, so PostgreSQL would read it.
	if _, err := tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off`); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), `EXPLAIN `+reports.SumOpen, 16<<10)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if plan := strings.Join(lines, "\n"); !strings.Contains(plan, "Index Only Scan using abuse_reports_open") {
		t.Errorf("the sum is read so:\n%s", plan)
	}
}
