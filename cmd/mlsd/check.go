package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/invariants"
)

// checkAnswerTimeout is how long the client has to read the result of a check.
const checkAnswerTimeout = time.Minute

// checker answers with the violated promises of one convo (?convo=ID) or of the whole database, as
// a JSON array of texts.
//
// A check of the whole database can take minutes, and needs a connection. One runs at a time. A
// check of one convo does not wait for it.
type checker struct {
	db      *pgxpool.Pool
	log     *slog.Logger
	running chan struct{} // full while the whole database is checked
}

func newChecker(db *pgxpool.Pool, log *slog.Logger) *checker {
	return &checker{db: db, log: log, running: make(chan struct{}, 1)}
}

// ServeHTTP implements http.Handler. The listener's timeouts are too short for a check, so it sets
// its own.
func (c *checker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// net/http reads during the check to notice that the client hangs up. The request's deadline
	// must not end that.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		c.log.Warn("a check may be cut off", "error", err)
	}
	violations, err := c.violations(r)
	if err := control.SetWriteDeadline(time.Now().Add(checkAnswerTimeout)); err != nil {
		c.log.Warn("the answer of a check may be cut off", "error", err)
	}
	switch {
	case errors.Is(err, errNotUUID):
		writeText(w, c.log, http.StatusBadRequest, err.Error())
		return
	case err != nil:
		c.log.Error("the check failed", "error", err)
		writeText(w, c.log, http.StatusInternalServerError, "the check could not be made")
		return
	}
	if violations == nil {
		violations = []string{}
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(violations); err != nil {
		c.log.Debug("the answer could not be written", "error", err)
	}
}

var errNotUUID = errors.New("convo must be a UUID")

// violations makes the check that a request asks for.
func (c *checker) violations(r *http.Request) ([]string, error) {
	if text := r.URL.Query().Get("convo"); text != "" {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, errNotUUID
		}
		return invariants.CheckConvo(r.Context(), c.db, id)
	}
	select {
	case c.running <- struct{}{}:
		defer func() { <-c.running }()
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	return invariants.Check(r.Context(), c.db)
}
