package convos_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/internal/mlstest"
)

// outboxed returns the convo's events in the outbox, in order.
func (f *fixture) outboxed(t *testing.T) (events []string) {
	t.Helper()
	rows, err := f.db.Query(t.Context(), `
		SELECT CASE
			WHEN kind = 3 THEN format('commit at %s', seq)
			WHEN kind = 4 THEN format('%s %s at %s by %s, epoch %s, commit needed: %s', substr(did, 9), detail->>'change', seq,
				substr(detail->>'by', 9), detail->>'epoch', coalesce(detail->>'commitNeeded', 'false'))
			WHEN kind = 5 THEN format('Welcome for %s into epoch %s', substr(did, 9), detail->>'epoch')
			ELSE format('kind %s', kind)
		END
		FROM outbox WHERE convo_id = $1 ORDER BY id`, f.id)
	if err == nil {
		events, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// TestCommitWithoutEvent (commit-without-event): a transaction that changes a convo writes its
// events, and writes none if it is rolled back. With every change of its log or roster the convo's
// row is updated: messages.Log relies on that.
func TestCommitWithoutEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	refused := errors.New("refused after all")
	step := func(effect func(tx pgx.Tx) error, want ...string) {
		t.Helper()
		before := f.outboxed(t)
		err := pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
			if err := effect(tx); err != nil {
				t.Error(err)
			}
			return refused
		})
		if !errors.Is(err, refused) {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, f.outboxed(t)); diff != "" {
			t.Fatalf("a rolled back change left events:\n%s", diff)
		}
		place := f.place(t)
		f.do(t, effect)
		if diff := cmp.Diff(want, f.outboxed(t)[len(before):]); diff != "" {
			t.Fatalf("events (-want +got):\n%s", diff)
		}
		if moved := f.place(t) != place; moved != (len(want) > 0) {
			t.Fatalf("the convo's row was updated: %v", moved)
		}
	}
	if diff := cmp.Diff([]string{
		"alice joined at 0 by alice, epoch 1, commit needed: false",
		"bob joined at 0 by alice, epoch 1, commit needed: false",
		"Welcome for bob into epoch 1",
	}, f.outboxed(t)); diff != "" {
		t.Fatalf("of the creation (-want +got):\n%s", diff)
	}
	addition := f.addition(t, alice, 1, carol)
	step(func(tx pgx.Tx) error {
		_, err := convos.Add(t.Context(), tx, addition)
		return err
	}, "commit at 1", "Welcome for carol into epoch 2", "carol joined at 1 by alice, epoch 2, commit needed: false")
	step(func(tx pgx.Tx) error {
		_, err := convos.Submit(t.Context(), tx, convos.Submission{ConvoID: f.id, Caller: bob, Proposed: convos.Proposed{
			Commit: mlstest.Commit(f.group, 2, "rotate"), Key: "submitCommit:rotate"}})
		return err
	}, "commit at 2")
	step(func(tx pgx.Tx) error {
		_, err := convos.Leave(t.Context(), tx, f.removal(3, carol))
		return err
	}, "commit at 3", "carol removed at 3 by alice, epoch 4, commit needed: false")
	step(func(tx pgx.Tx) error {
		_, err := convos.Leave(t.Context(), tx, convos.Departure{ConvoID: f.id, Caller: bob, Target: bob})
		return err
	}, "bob left at 3 by bob, epoch 4, commit needed: true")
	step(func(tx pgx.Tx) error { // leaving again changes nothing
		_, err := convos.Leave(t.Context(), tx, convos.Departure{ConvoID: f.id, Caller: bob, Target: bob})
		return err
	}, []string{}...)
	step(func(tx pgx.Tx) error { // nor does the commit that removes a member who has left
		_, err := convos.Leave(t.Context(), tx, f.removal(4, bob))
		return err
	}, "commit at 4")
}

// place returns where the newest version of the convo's row is stored. An update moves it.
func (f *fixture) place(t *testing.T) (ctid string) {
	t.Helper()
	if err := f.db.QueryRow(t.Context(), `SELECT ctid::text FROM convos WHERE id = $1`, f.id).Scan(&ctid); err != nil {
		t.Fatal(err)
	}
	return ctid
}
