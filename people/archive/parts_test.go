package archive

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
)

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
