package testbed

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The standby of a pair reads what the primary has written, and each has the settings.
func TestStartPair(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts two PostgreSQL")
	}
	if _, err := StandbyPrograms(); err != nil {
		t.Skip(err)
	}
	p, err := StartPair(t.Context(), map[string]string{"max_connections": "321"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	ask := func(url, sql string, into ...any) {
		t.Helper()
		db, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close(context.WithoutCancel(t.Context())) }()
		if err := db.QueryRow(t.Context(), sql).Scan(into...); err != nil {
			t.Fatal(err)
		}
	}
	var rows int64
	ask(p.PrimaryURL(), `WITH made AS (SELECT pg_logical_emit_message(true, 'test', 'x')) SELECT count(*) FROM made`,
		&rows)
	if err := p.AwaitStandby(t.Context()); err != nil {
		t.Fatal(err)
	}
	for url, standby := range map[string]bool{p.PrimaryURL(): false, p.StandbyURL(): true} {
		var recovers bool
		var connections string
		ask(url, `SELECT pg_is_in_recovery(), current_setting('max_connections')`, &recovers, &connections)
		if recovers != standby || connections != "321" {
			t.Errorf("standby: %t, want %t; %s connections", recovers, standby, connections)
		}
	}
}
