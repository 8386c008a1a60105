package node

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/operator/invariants"
)

// checkAnswerTimeout is how long the client has to read the result of a check.
const checkAnswerTimeout = time.Minute

// checker answers with the violated promises of one convo (?convo=ID) or of the whole database, as
// a JSON array of texts. A check of one convo does not wait for one of the whole database.
type checker struct {
	db  *pgxpool.Pool
	log *slog.Logger
	all *invariants.Checker
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
	case errors.Is(err, errNotUUID):
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

var errNotUUID = errors.New("convo must be a UUID")

// convoOf returns the convo that a request names, or nil.
func convoOf(r *http.Request) (*uuid.UUID, error) {
	text := r.URL.Query().Get("convo")
	if text == "" {
		return nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return nil, errNotUUID
	}
	return &id, nil
}

// violations makes the check that a request asks for.
func (c *checker) violations(r *http.Request) ([]string, error) {
	convo, err := convoOf(r)
	if err != nil {
		return nil, err
	}
	if convo != nil {
		return invariants.CheckConvo(r.Context(), c.db, *convo)
	}
	return c.all.Check(r.Context())
}
