package node

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
	"mlsd/migrations"
)

// A node of a known service writes nothing at its start, so it need not wait for a standby that is
// away. A claim that is given up waits on: it is not seen before a standby has it.
func TestClaimWithoutAStandby(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPair(t)
	if err := migrations.Up(t.Context(), p.Primary); err != nil {
		t.Fatal(err)
	}
	const own = syntax.DID("did:web:a.example")
	cfg := Config{ServiceDID: own}
	if err := cfg.claimDatabase(t.Context(), p.Primary, true); err != nil {
		t.Fatal(err)
	}
	operator := p.Pool()
	exec := func(sql string) {
		t.Helper()
		if _, err := operator.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`ALTER SYSTEM SET synchronous_standby_names = 'away'`)
	exec(`SELECT pg_reload_conf()`)
	if err := cfg.claimDatabase(t.Context(), p.Primary, true); err != nil {
		t.Errorf("the same service: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Config{ServiceDID: "did:web:b.example"}.claimDatabase(ctx, p.Primary, true) }()
	await.Until(t, "the claim waits for a standby", func() bool {
		var waits bool
		err := operator.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`).
			Scan(&waits)
		return err == nil && waits
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("a claim was acknowledged that no standby has")
	}
	var owner syntax.DID
	if err := operator.QueryRow(t.Context(), `SELECT service FROM installation`).Scan(&owner); err != nil || owner != own {
		t.Errorf("the database belongs to %s, %v", owner, err)
	}
	exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	exec(`SELECT pg_reload_conf()`)
}

// Two services start at once on a database that belongs to none, and the second one takes it. The
// first one stops serving, and says whose it is.
func TestTwoServicesAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	if err := migrations.SetService(t.Context(), db, "did:web:b.example"); err != nil {
		t.Fatal(err)
	}
	for own, want := range map[syntax.DID]string{
		"did:web:a.example": "the database belongs to did:web:b.example", "did:web:b.example": "",
	} {
		w := newSchemaWatch(db, migrations.Newest(), own, slog.New(slog.DiscardHandler), time.Now)
		if err := w.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if fault := w.fault(); !strings.Contains(fault, want) || want == "" && fault != "" {
			t.Errorf("%s: %q", own, fault)
		}
	}
}
