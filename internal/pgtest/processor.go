package pgtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ProcessorTime returns how long the open sessions of a database have run on a processor, in
// nanoseconds. Unlike the time on a clock, it does not contain what else runs on the machine. It
// skips the test on systems that do not tell.
func ProcessorTime(t testing.TB, db *pgxpool.Pool) (total int64) {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		var ns int64
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err != nil {
			t.Skip("only Linux tells the processor time of a session:", err)
		}
		if _, err := fmt.Sscan(string(stat), &ns); err != nil {
			t.Fatal(err)
		}
		total += ns
	}
	return total
}
