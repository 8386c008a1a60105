package operator

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
)

// An operator whose browser hangs up has acted nevertheless, and the table says so.
func TestHangUpEndsNoAction(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	s := New(Config{DB: db, Log: slog.New(slog.DiscardHandler)})
	act := Method{Noun: "test", Verb: "act", Write: true,
		run: func(ctx context.Context, _ *Service, _ pgx.Tx, _ Call) (any, error) { return nil, ctx.Err() }}
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	r := httptest.NewRequestWithContext(gone, http.MethodPost, act.Path(), nil)
	s.Answer(httptest.NewRecorder(), r, act, Call{Operator: "alice", Reason: "a test"}, func(_ any, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	var outcome string
	if err := db.QueryRow(t.Context(), `SELECT outcome FROM admin_actions`).Scan(&outcome); err != nil || outcome != done {
		t.Errorf("the action is %q, %v", outcome, err)
	}
}
