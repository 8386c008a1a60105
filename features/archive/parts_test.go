package archive

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/internal/redact"
)

var update = flag.Bool("update", false, "write testdata/columns.txt")

// Somebody has decided of each column of the exported tables to whom an export gives it. A new column
// is a line of testdata/columns.txt that changes, and if it is a secret, one of package redact.
func TestColumnsAreDecided(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	var all strings.Builder
	seen := map[string]bool{}
	for _, p := range parts {
		table, _, _ := strings.Cut(p.name, " ")
		if seen[table] {
			continue
		}
		seen[table] = true
		rows, err := db.Query(t.Context(), `
			SELECT column_name::text FROM information_schema.columns
			WHERE table_schema = current_schema() AND table_name = $1 ORDER BY ordinal_position`, table)
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(names) == 0 {
			t.Fatalf("%s has %v, %v", table, names, err)
		}
		toMembers, toOthers := redact.Hidden(table)
		for _, hidden := range toOthers {
			if !slices.Contains(names, hidden) {
				t.Errorf("%s has no column %s", table, hidden)
			}
		}
		for _, name := range names {
			to := "the account"
			switch {
			case slices.Contains(toMembers, name):
				to = "nobody"
			case slices.Contains(toOthers, name):
				to = "the account, as a member"
			}
			fmt.Fprintf(&all, "%s.%s: %s\n", table, name, to)
		}
	}
	const golden = "testdata/columns.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), all.String()); diff != "" {
		t.Errorf("who gets which column (-decided +now):\n%s", diff)
	}
}

// The sealed bytes of reports are not part of an archive, and are not read from the disk for it.
func TestSealedBytesAreNotRead(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	_, err := db.Exec(t.Context(), `
		INSERT INTO abuse_reports (id, convo_id, reporter, reason, key_id, binding, digest, sealed, reported_at)
		SELECT gen_random_uuid(), gen_random_uuid(), 'did:plc:bob', 'spam', 'key', sha256(n::text::bytea), sha256(''),
			convert_to(repeat('x', 250000), 'UTF8'), now()
		FROM generate_series(1, 10) n`)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(parts, func(p part) bool { return p.name == "abuse_reports" })
	args := pgx.NamedArgs{"did": "did:plc:bob", "id": [16]byte{}, "limit": 500}
	rows := 0
	found, err := db.Query(t.Context(), parts[i].sql, args)
	if err != nil {
		t.Fatal(err)
	}
	var id [16]byte
	var text string
	_, err = pgx.ForEachRow(found, []any{&id, &text}, func() error {
		rows++
		var row map[string]any
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			return err
		}
		if row["bytes"] != 250000.0 || row["reporter"] != "did:plc:bob" || row["state"] != "open" || row["sealed"] != nil ||
			row["note"] != nil {
			t.Errorf("a row is %s", text)
		}
		return nil
	})
	if err != nil || rows != 10 {
		t.Fatalf("%d rows, %v", rows, err)
	}
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := db.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+parts[i].sql,
		args).Scan(&plan); err != nil {
		t.Fatal(err)
	}
	// All sealed bytes stand on 310 pages.
	if pages := plan[0].Plan.Hit + plan[0].Plan.Read; pages == 0 || pages > 30 {
		t.Errorf("the statement reads %d pages", pages)
	}
}
