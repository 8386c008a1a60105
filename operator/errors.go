package operator

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"mlsd/convos"
	"mlsd/convos/disputes"
	"mlsd/features/erasure"
	"mlsd/features/push"
	"mlsd/features/relay"
	"mlsd/features/reports"
	"mlsd/features/transparency"
	"mlsd/messages"
	"mlsd/people/accounts"
)

// Error is an answer that is not 2xx. Its JSON has the form of XRPC errors.
type Error struct {
	Status  int    `json:"-"`
	Name    string `json:"error"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// BadRequest is the error for a request that cannot be read.
func BadRequest(message string) *Error {
	return &Error{http.StatusBadRequest, "InvalidRequest", message}
}

// refusals are the errors of other packages that are sent as answers.
var refusals = []struct {
	err error
	Error
}{
	{convos.ErrNotFound, Error{http.StatusNotFound, "ConvoNotFound", "there is no convo with this id"}},
	{convos.ErrTargetNotMember,
		Error{http.StatusNotFound, "MemberNotFound", "the account is no member of the convo; convo show lists the members"}},
	{messages.ErrConvoNotFound, Error{http.StatusNotFound, "ConvoNotFound", "there is no convo with this id"}},
	{disputes.ErrNotFound, Error{http.StatusNotFound, "DisputeNotFound", "the commit of this epoch was never in dispute"}},
	{erasure.ErrNotFound, Error{http.StatusNotFound, "ErasureNotFound", "there is no erasure with this id"}},
	{reports.ErrNotFound, Error{http.StatusNotFound, "ReportNotFound", "there is no report with this id"}},
	{reports.ErrCleared, Error{http.StatusGone, "ReportCleared", reports.ErrCleared.Error()}},
	{push.ErrNoJob, Error{http.StatusNotFound, "PushJobNotFound", "there is no push job with this id for the account"}},
	{push.ErrEnded, Error{http.StatusConflict, "PushJobEnded", "the push job has ended"}},
	{transparency.ErrNoKey, Error{http.StatusNotFound, "LogKeyNotFound", "there is no key with this id"}},
	{relay.ErrNotFollowed, Error{http.StatusNotFound, "RelayNotFollowed", relay.ErrNotFollowed.Error()}},
	{accounts.ErrErasing,
		Error{http.StatusConflict, "ErasureRunning", accounts.ErrErasing.Error() + ": there is no way back"}},
	{accounts.ErrTooManyLimited,
		Error{http.StatusConflict, "TooManyLimits", accounts.ErrTooManyLimited.Error() + ": take some back"}},
}

// AsError returns the answer to an error. ok is false if the error's text is not for clients.
func AsError(err error) (*Error, bool) {
	var e *Error
	if errors.As(err, &e) {
		return e, true
	}
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return &r.Error, true
		}
	}
	var refused *transparency.KeyError
	if errors.As(err, &refused) {
		return &Error{http.StatusConflict, "LogKeyRefused", refused.Why}, true
	}
	return nil, false
}

// writeError writes the answer to an error. The text of an error that is not ours goes only to the
// log.
func (s *Service) writeError(w http.ResponseWriter, err error) {
	e, known := AsError(err)
	if !known {
		s.c.Log.Error("an admin method failed", "error", err)
		e = &Error{http.StatusInternalServerError, "InternalServerError", "the method failed: the server's log says why"}
	}
	writeJSON(w, s.c.Log, e.Status, e)
}

func writeJSON(w http.ResponseWriter, log *slog.Logger, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}
