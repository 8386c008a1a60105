package node

import (
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

// checker answers with the violated promises as a JSON array of texts: of everything, of one convo
// (?convo=ID), of some convos chosen by chance (?sample=N), or of the convos with events since a time
// (?since=2026-01-02T15:04:05Z, or ?since=2h). A check of everything ends after ten minutes with the
// text where it goes on (?after=ID). A check of one convo does not wait for another check.
type checker struct {
	log *slog.Logger
	all *invariants.Checker
	now func() time.Time
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
	violations, err := c.violations(r)
	if err := control.SetWriteDeadline(time.Now().Add(checkAnswerTimeout)); err != nil {
		c.log.Warn("the answer of a check may be cut off", "error", err)
	}
	writeFindings(w, c.log, violations, err)
}

// writeFindings answers with the findings of a check as a JSON array, or with its error.
func writeFindings(w http.ResponseWriter, log *slog.Logger, findings []string, err error) {
	switch {
	case errors.Is(err, errBadQuery), errors.Is(err, invariants.ErrSince):
		writeText(w, log, http.StatusBadRequest, err.Error())
		return
	case err != nil:
		log.Error("the check failed", "error", err)
		writeText(w, log, http.StatusInternalServerError, "the check could not be made")
		return
	}
	if findings == nil {
		findings = []string{}
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
		convo, err := convoOf(r)
		var faults []string
		if err == nil {
			faults, err = invariants.ClientFaults(r.Context(), db, convo)
		}
		writeFindings(w, log, faults, err)
	}
}

var (
	errBadQuery = errors.New("the query is wrong")
	errNotUUID  = errors.New("it must be a UUID")
)

func badQuery(name, text string, why error) error {
	return fmt.Errorf("%w: %s=%q: %w", errBadQuery, name, text, why)
}

// convoOf returns the convo that a request names, or nil.
func convoOf(r *http.Request) (*uuid.UUID, error) {
	text := r.URL.Query().Get("convo")
	if text == "" {
		return nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return nil, badQuery("convo", text, errNotUUID)
	}
	return &id, nil
}

// maxSample is how many convos a check may choose by chance.
const maxSample = 1_000_000

// scope reads the query of a check. It may name one of convo, sample, since and after.
func (c *checker) scope(q url.Values) (s invariants.Scope, err error) {
	if len(q) > 1 {
		return s, fmt.Errorf("%w: give one of convo, sample, since and after", errBadQuery)
	}
	for name := range q {
		text := q.Get(name)
		switch name {
		case "convo":
			id, not := uuid.Parse(text)
			if s.Convos = []uuid.UUID{id}; not != nil {
				err = errNotUUID
			}
		case "after":
			if s.After, err = uuid.Parse(text); err != nil {
				err = errNotUUID
			}
		case "sample":
			if s.Sample, err = strconv.Atoi(text); err != nil || s.Sample < 1 || s.Sample > maxSample {
				err = fmt.Errorf("it must be a number from 1 to %d", maxSample)
			}
		case "since":
			var ago time.Duration
			if s.Since, err = time.Parse(time.RFC3339, text); err != nil {
				if ago, err = duration.Parse(text); err != nil {
					err = errors.New("it must be a time such as 2026-01-02T15:04:05Z, or an age such as 2h")
				}
				s.Since = c.now().Add(-ago)
			}
		default:
			err = errors.New("there is no such parameter")
		}
		if err != nil {
			return s, badQuery(name, text, err)
		}
	}
	return s, nil
}

// violations makes the check that a request asks for.
func (c *checker) violations(r *http.Request) ([]string, error) {
	s, err := c.scope(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return c.all.Check(r.Context(), s)
}
