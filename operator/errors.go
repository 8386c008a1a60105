package operator

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Error is an answer that is not 2xx. Its JSON has the form of XRPC errors.
type Error struct {
	Status  int    `json:"-"`
	Name    string `json:"error"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// badRequest is the error for a request that cannot be read.
func badRequest(message string) *Error {
	return &Error{http.StatusBadRequest, "InvalidRequest", message}
}

// asError returns err as an answer. The text of an error that is not ours stays in the log.
func asError(err error, log *slog.Logger) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	log.Error("an admin method failed", "error", err)
	return &Error{http.StatusInternalServerError, "InternalServerError", "the method failed: the server's log says why"}
}

func writeJSON(w http.ResponseWriter, log *slog.Logger, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}

// parseDID reads a DID that the operator has given.
func parseDID(text string) (syntax.DID, error) {
	did, err := syntax.ParseDID(text)
	if err != nil {
		return "", badRequest("did: " + err.Error())
	}
	return did, nil
}
