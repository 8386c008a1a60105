package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// audit returns the lines of the audit log about an entity, oldest first. It replaces DIDs by
// names.
func (w *world) audit(entity string, names map[string]*user) []string {
	w.t.Helper()
	rows, err := w.db.Query(context.Background(), `
		SELECT format('%s: %s to %s, version %s, by %s', reason, from_state, to_state, version, actor) FROM audit_log WHERE
			entity = $1 ORDER BY at, id`, entity)
	if err != nil {
		w.t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range lines {
		for name, u := range names {
			lines[i] = strings.ReplaceAll(lines[i], u.did().String(), name)
		}
	}
	return lines
}

// Every transition is in the audit log, with the actor, both states, the reason and the version of
// the row that it made.
func TestAuditRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	names := map[string]*user{"alice": alice, "bob": bob}
	c := alice.create()
	alice.add(c, bob)
	bob.get(mlsapi.NSIDGetWelcome, "convoId", c.id).ok()
	bob.post(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: true}).ok()
	for entity, want := range map[string][]string{
		"convo": {"addMembers: 0 to 1, version 1, by alice"},
		"key_package": {
			"getKeyPackages: available to claimed, version 1, by alice", "addMembers: claimed to consumed, version 2, by alice",
		},
		"welcome": {
			"getWelcome: available to in_flight, version 1, by bob", "confirmWelcome: in_flight to consumed, version 2, by bob",
		},
	} {
		if diff := cmp.Diff(want, w.audit(entity, names)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", entity, diff)
		}
	}
	// A refused request is no transition.
	before := w.count(`SELECT count(*) FROM audit_log`)
	stale := *c
	stale.epoch = 0
	if a := alice.post(mlsapi.NSIDSubmitCommit, alice.rotation(&stale)); a.status < 400 ||
		w.count(`SELECT count(*) FROM audit_log`) != before {
		t.Errorf("the refused commit: %d %s", a.status, a.body)
	}
}

// The database refuses a transition that no state machine allows, for every role.
func TestInvalidTransition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	bob.get(mlsapi.NSIDGetWelcome, "convoId", c.id).ok()
	bob.post(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: true}).ok()
	for sql, want := range map[string]pgpool.TransitionError{
		`UPDATE welcomes SET state = 'available', confirmed_at = NULL`: {Entity: "welcome", From: "consumed",
			To: "available"},
		`UPDATE key_packages SET state = 'available'`: {Entity: "key_package", From: "consumed",
			To: "available"},
		`UPDATE convos SET epoch = epoch + 2`: {Entity: "convo", From: "1", To: "3"},
		`UPDATE convos SET epoch = epoch - 1`: {Entity: "convo", From: "1", To: "0"},
	} {
		_, err := w.db.Exec(t.Context(), sql)
		if got, ok := pgpool.Transition(err); !ok || *got != want {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// The audit log has states, versions, names of methods and actors, and no content.
func TestAuditHoldsNoContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "a secret")
	pgtest.Age(t, w.db, "welcomes", time.Hour)
	var all string
	if err := w.db.QueryRow(t.Context(),
		`SELECT coalesce(string_agg(a::text, ' '), '') FROM audit_log a`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(all, "secret") || strings.Contains(all, fmt.Sprintf("%x", "a secret")) {
		t.Fatal(all)
	}
}
