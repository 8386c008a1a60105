package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/gather"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/push"
	"mlsd/welcome"
)

// Names of the errors that every method can answer with. Those of single methods come from the lexicons.
const (
	invalidRequest       = "InvalidRequest"
	authMissing          = "AuthMissing"
	invalidToken         = "InvalidToken"
	payloadTooLarge      = "PayloadTooLarge"
	rateLimitExceeded    = "RateLimitExceeded"
	internalServerError  = "InternalServerError"
	methodNotImplemented = "MethodNotImplemented"
	serviceUnavailable   = "ServiceUnavailable"
)

// failure is an answer that says no. Its text goes to the client.
type failure struct {
	status  int
	name    string
	message string
	more    more
}

// more is what an error says besides, to clients that talk to us directly: a PDS passes on the name and the message alone.
type more struct {
	CurrentEpoch        *int64  `json:"currentEpoch,omitempty"`
	Seq                 *int64  `json:"seq,omitempty"`                 // of the commit that won the race
	ProcessingStartedAt *string `json:"processingStartedAt,omitempty"` // of the request that holds the key
	FirstUsedAt         *string `json:"firstUsedAt,omitempty"`         // of the key
}

func (f failure) Error() string { return f.name + ": " + f.message }

func badRequest(message string) error {
	return failure{status: http.StatusBadRequest, name: invalidRequest, message: message}
}

// tooManyWait is when to try again after there were too many subscriptions: one may have ended by then.
const tooManyWait = 10 * time.Second

// limited says that a rate limit is exhausted.
type limited struct{ after time.Duration }

func (limited) Error() string { return "rate limit exceeded" }

// busy says that the server has no room for the request now.
type busy struct{ after time.Duration }

func (busy) Error() string { return "no room for the request now" }

// named is the failure with a name from the lexicons; the name says the status.
func named(name, message string) failure {
	status, ok := statusOf[name]
	if !ok {
		status = http.StatusBadRequest
	}
	return failure{status: status, name: name, message: message}
}

// statusOf is the status of every named error that is not 400.
var statusOf = map[string]int{
	mlsapi.ErrNotMember:           http.StatusForbidden,
	mlsapi.ErrNotPermitted:        http.StatusForbidden,
	mlsapi.ErrSenderMismatch:      http.StatusForbidden,
	mlsapi.ErrConvoNotFound:       http.StatusNotFound,
	mlsapi.ErrWelcomeNotFound:     http.StatusNotFound,
	mlsapi.ErrKeyPackageNotFound:  http.StatusNotFound,
	mlsapi.ErrGroupInfoNotFound:   http.StatusNotFound,
	mlsapi.ErrEpochMismatch:       http.StatusConflict,
	mlsapi.ErrGroupAlreadyExists:  http.StatusConflict,
	mlsapi.ErrAlreadyMember:       http.StatusConflict,
	mlsapi.ErrLastMember:          http.StatusConflict,
	mlsapi.ErrIdempotencyConflict: http.StatusConflict,
	mlsapi.ErrRequestInProgress:   http.StatusConflict,
	mlsapi.ErrWelcomeConsumed:     http.StatusGone,
	mlsapi.ErrMessageTooLarge:     http.StatusRequestEntityTooLarge,
}

// sentinels are the domain's errors that carry nothing but their text.
var sentinels = []struct {
	err  error
	name string
}{
	{messages.ErrConvoNotFound, mlsapi.ErrConvoNotFound},
	{messages.ErrNotMember, mlsapi.ErrNotMember},
	{messages.ErrInvalidCursor, mlsapi.ErrInvalidCursor},
	{messages.ErrWrongGroup, mlsapi.ErrInvalidMessage},
	{convos.ErrGroupAlreadyExists, mlsapi.ErrGroupAlreadyExists},
	{convos.ErrTooManyMembers, mlsapi.ErrTooManyMembers},
	{convos.ErrLastMember, mlsapi.ErrLastMember},
	{convos.ErrCommitRequired, mlsapi.ErrCommitRequired},
	{convos.ErrNotPermitted, mlsapi.ErrNotPermitted},
	{convos.ErrTargetNotMember, invalidRequest},
	{convos.ErrSeqAhead, invalidRequest},
	{convos.ErrNoGroupInfo, mlsapi.ErrGroupInfoNotFound},
	{keypackages.ErrNotFound, mlsapi.ErrKeyPackageNotFound},
	{keypackages.ErrTooMany, mlsapi.ErrTooManyKeyPackages},
	{keypackages.ErrExpirationTooFar, mlsapi.ErrExpirationTooFar},
	{welcome.ErrNotFound, mlsapi.ErrWelcomeNotFound},
	{welcome.ErrConsumed, mlsapi.ErrWelcomeConsumed},
	{push.ErrTooManyTargets, mlsapi.ErrTooManyPushTargets},
	{events.ErrFutureCursor, mlsapi.ErrFutureCursor},
	{events.ErrConsumerTooSlow, mlsapi.ErrConsumerTooSlow},
	{events.ErrInvalidTicket, mlsapi.ErrInvalidTicket},
	{idem.ErrInProgress, mlsapi.ErrRequestInProgress},
}

// refusal finds the failure that a domain error stands for: the one table from errors to names.
func refusal(err error) (failure, bool) {
	var (
		f        failure
		mismatch *messages.EpochMismatchError
		conflict *idem.ConflictError
		running  *idem.RunningError
		member   *convos.AlreadyMemberError
		object   *convos.InvalidObjectError
		spent    *keypackages.SpentError
		pkg      *keypackages.InvalidError
		target   *push.InvalidError
		input    *mlsapi.Violation
	)
	switch {
	case errors.As(err, &f):
		return f, true
	case errors.As(err, &input):
		return named(invalidRequest, input.Message), true
	case errors.As(err, &mismatch):
		f = named(mlsapi.ErrEpochMismatch, mismatch.Error())
		f.more.CurrentEpoch = &mismatch.Current
		if mismatch.WonBy != 0 {
			f.more.Seq = &mismatch.WonBy
		}
		return f, true
	case errors.As(err, &conflict):
		f = named(mlsapi.ErrIdempotencyConflict, conflict.Error())
		at := mlsapi.NewDatetime(conflict.At).String()
		f.more.FirstUsedAt = &at
		return f, true
	case errors.As(err, &running):
		f = named(mlsapi.ErrRequestInProgress, running.Error())
		since := mlsapi.NewDatetime(running.Since).String()
		f.more.ProcessingStartedAt = &since
		return f, true
	case errors.As(err, &member):
		return named(mlsapi.ErrAlreadyMember, member.Error()), true
	case errors.As(err, &spent):
		return named(mlsapi.ErrInvalidWelcome, spent.Error()), true
	case errors.As(err, &pkg):
		return named(mlsapi.ErrInvalidKeyPackage, pkg.Error()), true
	case errors.As(err, &target):
		return named(mlsapi.ErrInvalidPushTarget, target.Error()), true
	case errors.As(err, &object):
		names := map[convos.Object]string{
			convos.Commit: mlsapi.ErrInvalidCommit, convos.Welcome: mlsapi.ErrInvalidWelcome,
			convos.GroupInfo: mlsapi.ErrInvalidGroupInfo,
		}
		return named(names[object.Object], object.Error()), true
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return named(s.name, err.Error()), true
		}
	}
	return failure{}, false
}

// violations are the limits of the lexicons whose breach has a name of its own. Field is the path without its index.
var violations = []struct {
	nsid, field string
	rule        mlsapi.Rule
	name        string
}{
	{mlsapi.NSIDSendMessage, "ciphertext", mlsapi.RuleMaxLength, mlsapi.ErrMessageTooLarge},
	{mlsapi.NSIDSendMessage, "embedUri", mlsapi.RuleFormat, mlsapi.ErrInvalidAsset},
	{mlsapi.NSIDSendMessage, "embedType", mlsapi.RuleMaxLength, mlsapi.ErrInvalidAsset},
	{mlsapi.NSIDCreateConvo, "initialMembers", mlsapi.RuleMaxLength, mlsapi.ErrTooManyMembers},
	{mlsapi.NSIDAddMembers, "didList", mlsapi.RuleMaxLength, mlsapi.ErrTooManyMembers},
	{mlsapi.NSIDGetKeyPackages, "dids", mlsapi.RuleMaxLength, mlsapi.ErrTooManyDids},
	{mlsapi.NSIDGetKeyPackages, "dids", mlsapi.RuleFormat, mlsapi.ErrInvalidDid},
	{mlsapi.NSIDRegisterPushTarget, "url", mlsapi.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
	{mlsapi.NSIDRegisterPushTarget, "token", mlsapi.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
	{mlsapi.NSIDRegisterPushTarget, "topic", mlsapi.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
	{mlsapi.NSIDPublishKeyPackages, "keyPackages", mlsapi.RuleMaxLength, mlsapi.ErrTooManyKeyPackages},
	{mlsapi.NSIDPublishKeyPackage, "keyPackage", mlsapi.RuleMaxLength, mlsapi.ErrInvalidKeyPackage},
	{mlsapi.NSIDPublishKeyPackage, "keyPackage", mlsapi.RuleFormat, mlsapi.ErrInvalidKeyPackage},
}

// renamed gives a broken rule the name that the method has for it, and keeps every other error as it is.
func (s *Server) renamed(method mlsapi.Method, err error) error {
	var v *mlsapi.Violation
	if errors.As(err, &v) {
		field, _, _ := strings.Cut(v.Field, "[")
		for _, known := range violations {
			if known.nsid == method.NSID && known.field == field && known.rule == v.Rule {
				return named(known.name, v.Message)
			}
		}
		return err
	}
	if f, ok := refusal(err); ok && !generic(f.name) && !slices.Contains(method.Errors, f.name) {
		s.cfg.Log.Error("an undeclared error was turned into InvalidRequest", "nsid", method.NSID, "error", f.name)
		return badRequest(f.message)
	}
	return err
}

// generic reports whether every method may answer with name.
func generic(name string) bool {
	switch name {
	case invalidRequest, authMissing, invalidToken, mlsapi.ErrNotPermitted, payloadTooLarge, rateLimitExceeded,
		internalServerError, methodNotImplemented, serviceUnavailable:
		return true
	}
	return false
}

// failureOf turns any error into what the client is told, and sets the headers that go with it. What a client cannot help
// stays in the log.
func (s *Server) failureOf(c echo.Context, err error) failure {
	h := c.Response().Header()
	var (
		token    *serviceauth.InvalidError
		rate     limited
		full     busy
		conflict *idem.ConflictError
		running  *idem.RunningError
		http_    *echo.HTTPError
	)
	if errors.As(err, &conflict) {
		h.Set(headerConflict, "body-mismatch")
	}
	if errors.Is(err, idem.ErrInProgress) {
		after := time.Second
		if errors.As(err, &running) {
			after = max(after, running.Left)
		}
		setRetryAfter(h, after)
	}
	if f, ok := refusal(err); ok {
		return f
	}
	switch {
	case errors.Is(err, serviceauth.ErrMissing):
		h.Set(echo.HeaderWWWAuthenticate, `Bearer`)
		return failure{status: http.StatusUnauthorized, name: authMissing, message: "a service-auth token is needed"}
	case errors.As(err, &token):
		h.Set(echo.HeaderWWWAuthenticate, `Bearer error="invalid_token"`)
		return failure{status: http.StatusUnauthorized, name: invalidToken, message: token.Reason}
	case errors.As(err, &rate):
		setRetryAfter(h, rate.after)
		return failure{status: http.StatusTooManyRequests, name: rateLimitExceeded, message: "too many requests"}
	case errors.As(err, &full):
		setRetryAfter(h, full.after)
		return failure{status: http.StatusServiceUnavailable, name: serviceUnavailable, message: "no room for the request now"}
	case errors.Is(err, events.ErrTooMany):
		setRetryAfter(h, tooManyWait)
		return failure{status: http.StatusTooManyRequests, name: rateLimitExceeded, message: err.Error()}
	case errors.Is(err, messages.ErrOverloaded), errors.Is(err, messages.ErrBusy), errors.Is(err, messages.ErrClosed), errors.Is(err, events.ErrClosing),
		errors.Is(err, gather.ErrOverloaded), errors.Is(err, gather.ErrClosed):
		setRetryAfter(h, time.Second)
		return failure{status: http.StatusServiceUnavailable, name: serviceUnavailable, message: err.Error()}
	case errors.Is(err, serviceauth.ErrUnavailable), errors.Is(err, serviceauth.ErrBusy):
		s.cfg.Log.Warn("a token could not be judged", "error", err)
		setRetryAfter(h, time.Second)
		return failure{status: http.StatusServiceUnavailable, name: serviceUnavailable, message: "the token cannot be checked now"}
	case errors.Is(err, idem.ErrUnknownOutcome), pgpool.Unavailable(err):
		s.cfg.Log.Warn("the database is unavailable", "error", err)
		setRetryAfter(h, time.Second)
		return failure{status: http.StatusServiceUnavailable, name: serviceUnavailable, message: "the write or read cannot be completed now; retry"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		setRetryAfter(h, time.Second)
		return failure{status: http.StatusServiceUnavailable, name: serviceUnavailable, message: "the request ran out of time"}
	case errors.As(err, &http_) && http_.Code < http.StatusInternalServerError:
		return failure{status: http_.Code, name: invalidRequest, message: http.StatusText(http_.Code)}
	}
	if t, ok := pgpool.Transition(err); ok {
		s.cfg.Metrics.transitions.WithLabelValues(t.Entity).Inc()
	}
	s.cfg.Log.Error("request failed", "error", err, "path", c.Path(), "request", h.Get(echo.HeaderXRequestID))
	return failure{status: http.StatusInternalServerError, name: internalServerError, message: "internal error"}
}
