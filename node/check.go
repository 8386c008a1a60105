package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/duration"
	"mlsd/operator/invariants"
)

// checkAnswerTimeout is how long the client has to read the result of a check.
const checkAnswerTimeout = time.Minute

// checker answers with the violated promises, as a JSON array of texts: of everything, of one convo
// (?convo=ID), of a sample of convos (?sample=N), or of what has changed since a time (?since=TIME, or
// ?since=2h). A check of one convo does not wait for the others.
//
// With ?cursor= it makes a part of a check, of some seconds, and answers with a checkPart.
type checker struct {
	db  *pgxpool.Pool
	log *slog.Logger
	all *invariants.Checker
	now func() time.Time
}

// checkPart is the answer to a part of a check.
type checkPart struct {
	Violations []string `json:"violations"`
	Checked    string   `json:"checked"` // how much was checked, since the check began
	Cursor     string   `json:"cursor"`  // where to go on; "": the check has ended
}

// ServeHTTP implements http.Handler. The listener's timeouts are too short for a check, so it sets
// its own.
func (c *checker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// net/http reads during the check to notice that the client hangs up. The request's read deadline
	// must not end this reading.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		c.log.Warn("a check may be cut off", "error", err)
	}
	findings, err := c.check(r.Context(), r.URL.Query())
	if err := control.SetWriteDeadline(time.Now().Add(checkAnswerTimeout)); err != nil {
		c.log.Warn("the answer of a check may be cut off", "error", err)
	}
	writeFindings(w, c.log, findings, err)
}

// writeFindings answers with the findings of a check as JSON, or with its error.
func writeFindings(w http.ResponseWriter, log *slog.Logger, findings any, err error) {
	var bad badQuery
	switch {
	case errors.As(err, &bad):
		writeText(w, log, http.StatusBadRequest, err.Error())
		return
	case err != nil:
		log.Error("the check failed", "error", err)
		writeText(w, log, http.StatusInternalServerError, "the check could not be made")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(findings); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}

// clientFaults answers with what clients have done wrong in one convo (?convo=ID) or anywhere, as a
// JSON array of texts. It does not check the whole database, so it waits for no such check.
func clientFaults(db *pgxpool.Pool, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		convo, err := convoOf(r.URL.Query())
		var faults []string
		if err == nil {
			faults, err = invariants.ClientFaults(r.Context(), db, convo)
		}
		writeFindings(w, log, list(faults), err)
	}
}

// list returns findings that are a JSON array also if there are none.
func list(findings []string) []string { return append([]string{}, findings...) }

// badQuery is the error of a query that no check can be made for.
type badQuery string

func (b badQuery) Error() string { return string(b) }

// convoOf returns the convo that a query names, or nil.
func convoOf(query url.Values) (*uuid.UUID, error) {
	text := query.Get("convo")
	if text == "" {
		return nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return nil, badQuery("convo must be a UUID")
	}
	return &id, nil
}

// check makes the check that a query asks for.
func (c *checker) check(ctx context.Context, query url.Values) (any, error) {
	ways := 0
	for name := range query {
		switch name {
		case "convo", "sample", "since":
			ways++
		case "cursor":
		default:
			return nil, badQuery("unknown parameter " + name)
		}
	}
	switch {
	case ways > 1:
		return nil, badQuery("only one of convo, sample and since can be given")
	case query.Has("convo"):
		convo, err := convoOf(query)
		if err != nil || convo == nil {
			return nil, badQuery("convo must be a UUID")
		}
		violations, err := invariants.CheckConvo(ctx, c.db, *convo)
		return list(violations), err
	case query.Has("sample"):
		n, err := strconv.Atoi(query.Get("sample"))
		if err != nil || n < 1 || n > invariants.MaxSample {
			return nil, badQuery(fmt.Sprintf("sample must be a number from 1 to %d", invariants.MaxSample))
		}
		violations, err := c.all.Sample(ctx, n)
		return list(violations), err
	}
	at, err := c.cursor(query)
	if err != nil {
		return nil, err
	}
	if !query.Has("cursor") {
		violations, err := c.all.Check(ctx, at)
		return list(violations), err
	}
	violations, next, err := c.all.Part(ctx, at)
	answer := checkPart{Violations: list(violations), Checked: next.Checked()}
	if !next.Done() {
		answer.Cursor = next.String()
	}
	return answer, err
}

// cursor returns where the check that a query asks for begins or continues.
func (c *checker) cursor(query url.Values) (at invariants.Cursor, err error) {
	if query.Has("since") {
		since, err := time.Parse(time.RFC3339, query.Get("since"))
		if err != nil {
			age, err := duration.Parse(query.Get("since"))
			if err != nil {
				return at, badQuery("since must be a time such as 2026-11-22T10:15:00Z, or an age such as 2h")
			}
			since = c.now().Add(-age)
		}
		at = invariants.From(since)
	}
	if query.Get("cursor") == "" {
		return at, nil
	}
	next, err := invariants.ParseCursor(query.Get("cursor"))
	if err != nil {
		return at, badQuery(err.Error())
	}
	if query.Has("since") && !next.Since.Equal(at.Since) {
		return at, badQuery("cursor is of a check with another since")
	}
	return next, nil
}
