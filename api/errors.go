package api

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/errorlist"
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/convos/disputes"
	"mlsd/events"
	"mlsd/features/archive"
	"mlsd/features/attachments"
	"mlsd/features/erasure"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/features/reports"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/batch"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/people/accounts"
	"mlsd/people/consent"
	"mlsd/people/quota"
	"mlsd/people/sessions"
	"mlsd/welcome"
)

// retryTooMany is the Retry-After of a refused subscription: by then one of the caller's
// subscriptions may have ended. retryOften is the Retry-After of a refused session: by then the
// caller can get another session.
const (
	retryTooMany = 10 * time.Second
	retryOften   = time.Minute
	// retryRunning is the longest Retry-After of work that is running: the work mostly ends long
	// before its lease.
	retryRunning = 2 * time.Second
)

// failure is an answer with an error. The client gets its message.
type failure struct {
	status        int
	name          string
	message       string
	retryAfter    time.Duration // 0 means that the answer has no Retry-After
	header, value string        // one more header; none if header is ""
	more          more
}

// more holds further fields of the answer. Only direct clients get them, because a PDS passes on
// only the name and the message.
type more struct {
	CurrentEpoch        *int64  `json:"currentEpoch,omitempty"`
	Seq                 *int64  `json:"seq,omitempty"`                 // seq of the accepted commit
	SuccessorConvoID    *string `json:"successorConvoId,omitempty"`    // successor of the convo that was reset
	ProcessingStartedAt *string `json:"processingStartedAt,omitempty"` // start of the running request
	// The next fields describe a conflict of idempotency keys: the paths of the fields that differ,
	// when the key was first used, and the hashes, in hexadecimal, of the first request and of this
	// one.
	Fields           []string `json:"fields,omitempty"`
	FirstUsedAt      *string  `json:"firstUsedAt,omitempty"`
	KeyExpiresAt     *string  `json:"keyExpiresAt,omitempty"` // when the key can be used again, if that is known
	FirstRequestHash string   `json:"firstRequestHash,omitempty"`
	RequestHash      string   `json:"requestHash,omitempty"`
}

func (f failure) Error() string { return f.name + ": " + f.message }

// limited says that a rate limit is exceeded.
type limited struct{ after time.Duration }

func (l limited) Error() string {
	return fmt.Sprintf("too many requests of this account or address; send the same bytes again after %d s",
		max(1, seconds(l.after.Seconds())))
}

// busy says that the server cannot take the request now.
type busy struct{ after time.Duration }

func (busy) Error() string {
	return "the server cannot take the request now; wait, then send the same bytes again"
}

// errorRow says how errors are answered.
type errorRow struct {
	name string // a name of package errorlist, which has its status
	// match returns the error that the row is about, or nil.
	match func(error) error
	// message is the text for the client. "" means the text of the matched error.
	message string
	// log is the line that the server logs. "" means that it logs nothing.
	log           string
	retryAfter    time.Duration // Retry-After, if longer than the name's in package errorlist
	header, value string        // one more header; none if header is ""
	// more adds what only the matched error knows, such as a seq.
	more func(f *failure, matched error)
}

// errorTable says how errors of other packages are answered. The first row that matches decides. An
// error without a row is a defect, and is answered with InternalServerError. Handlers answer with
// further names through [named].
var errorTable = []errorRow{
	{name: errorlist.InvalidRequest, match: as[*lexcodec.Violation]()},
	{name: mlsapi.ErrEpochMismatch, match: as[*messages.EpochMismatchError](), more: epochMismatch},
	{name: mlsapi.ErrConvoDisputed, match: as[*disputes.OpenError]()},
	{name: mlsapi.ErrIdempotencyConflict, match: as[*idem.ConflictError](),
		header: headerConflict, value: "body-mismatch", more: keyUsed},
	{name: mlsapi.ErrIdempotencyConflict, match: is(idem.ErrKeyTaken), message: idem.ErrKeyTaken.Error(),
		log: "a row has a key that has no record"},
	{name: mlsapi.ErrRequestInProgress, match: as[*idem.RunningError](), more: running},
	{name: mlsapi.ErrRequestInProgress, match: is(idem.ErrInProgress)},
	{name: mlsapi.ErrRequestInProgress, match: is(attachments.ErrChecking)},
	{name: mlsapi.ErrAttachmentNotFound, match: is(attachments.ErrNotFound)},
	{name: mlsapi.ErrAttachmentTooLarge, match: is(attachments.ErrTooLarge)},
	{name: mlsapi.ErrAttachmentIncomplete, match: as[*attachments.IncompleteError]()},
	{name: mlsapi.ErrInvalidAsset, match: as[*attachments.FailedError]()},
	{name: mlsapi.ErrInvalidAsset, match: is(messages.ErrInvalidAsset)},
	{name: mlsapi.ErrNotPermitted, match: is(attachments.ErrNotPermitted)},
	{name: errorlist.InvalidRequest, match: is(attachments.ErrNoPart, attachments.ErrOtherSize, attachments.ErrEarlier)},
	{name: errorlist.InvalidRequest, match: as[*attachments.PartLengthError]()},
	{name: mlsapi.ErrAlreadyMember, match: as[*convos.AlreadyMemberError]()},
	{name: mlsapi.ErrInvalidWelcome, match: as[*keypackages.UnusableError]()},
	{name: mlsapi.ErrInvalidKeyPackage, match: as[*keypackages.InvalidError]()},
	{name: mlsapi.ErrInvalidReceipt, match: as[*network.ReceiptError]()},
	{name: mlsapi.ErrInvalidInvitation, match: as[*network.InvitationError]()},
	{name: mlsapi.ErrInvitationNotFound, match: is(network.ErrNoInvitation)},
	{name: mlsapi.ErrNotPermitted, match: as[*network.DistrustError]()},
	{name: mlsapi.ErrInvalidPushTarget, match: as[*push.InvalidError]()},
	{name: mlsapi.ErrInvalidCommit, match: invalidObject(convos.Commit)},
	{name: mlsapi.ErrInvalidWelcome, match: invalidObject(convos.Welcome)},
	{name: mlsapi.ErrInvalidGroupInfo, match: invalidObject(convos.GroupInfo)},
	{name: mlsapi.ErrConvoNotFound, match: is(messages.ErrConvoNotFound)},
	{name: mlsapi.ErrNotMember, match: is(messages.ErrNotMember)},
	{name: mlsapi.ErrConvoClosed, match: as[*messages.ClosedError](), more: goesOn},
	{name: mlsapi.ErrConvoClosed, match: is(messages.ErrConvoClosed)},
	{name: mlsapi.ErrInvalidCursor, match: is(messages.ErrInvalidCursor)},
	{name: mlsapi.ErrInvalidMessage, match: is(messages.ErrWrongGroup, convos.ErrNotExternalSender)},
	{name: mlsapi.ErrInvalidMessage, match: invalidObject(convos.Proposal)},
	{name: mlsapi.ErrGroupAlreadyExists, match: is(convos.ErrGroupAlreadyExists)},
	{name: mlsapi.ErrTooManyMembers, match: is(convos.ErrTooManyMembers)},
	{name: mlsapi.ErrLastMember, match: is(convos.ErrLastMember)},
	{name: mlsapi.ErrCommitRequired, match: is(convos.ErrCommitRequired)},
	{name: mlsapi.ErrNotPermitted, match: is(convos.ErrNotPermitted)},
	{name: mlsapi.ErrNotPermitted, match: is(convos.ErrForked)},
	{name: errorlist.InvalidRequest, match: is(convos.ErrTargetNotMember, convos.ErrSeqAhead, consent.ErrOwnBlock, consent.ErrUnknownPolicy, consent.ErrUnknownSharing, disputes.ErrHash)},
	{name: mlsapi.ErrGroupInfoNotFound, match: is(convos.ErrNoGroupInfo)},
	{name: mlsapi.ErrKeyPackageNotFound, match: is(keypackages.ErrNotFound)},
	{name: errorlist.Blocked, match: as[*consent.BlockedError]()}, // the caller's own block
	{name: mlsapi.ErrTooManyBlocks, match: is(consent.ErrTooManyBlocks)},
	{name: mlsapi.ErrTooManyKeyPackages, match: is(keypackages.ErrTooMany)},
	{name: mlsapi.ErrExpirationTooFar, match: is(keypackages.ErrExpirationTooFar)},
	{name: mlsapi.ErrWelcomeNotFound, match: is(welcome.ErrNotFound)},
	{name: mlsapi.ErrWelcomeConsumed, match: is(welcome.ErrConsumed)},
	{name: mlsapi.ErrReportsDisabled, match: is(reports.ErrDisabled)},
	{name: mlsapi.ErrPushDisabled, match: is(push.ErrNoWebPush)},
	{name: mlsapi.ErrUnknownReportKey, match: is(reports.ErrUnknownKey)},
	{name: errorlist.InvalidRequest, match: is(reports.ErrReason, reports.ErrNotSealed)},
	{name: mlsapi.ErrInvalidCursor, match: is(archive.ErrPosition)},
	{name: mlsapi.ErrInvalidConfirmation, match: is(erasure.ErrConfirmation)},
	{name: mlsapi.ErrInvalidRefreshToken, match: as[*sessions.RefreshError]()},
	{name: errorlist.InvalidRequest, match: is(sessions.ErrDevice, sessions.ErrDID)},
	{name: errorlist.InvalidRequest, match: is(transparency.ErrRange), message: "seq, from and size must be within the log, and size the largest; getLogHead names the log's size"},
	{name: mlsapi.ErrTooManyPushTargets, match: is(push.ErrTooManyTargets)},
	{name: mlsapi.ErrFutureCursor, match: is(events.ErrFutureCursor)},
	{name: mlsapi.ErrConsumerTooSlow, match: is(events.ErrConsumerTooSlow)},
	{name: mlsapi.ErrInvalidTicket, match: is(events.ErrInvalidTicket)},

	// Authentication.
	{name: errorlist.AuthMissing, match: is(serviceauth.ErrMissing),
		message: "there is no Authorization header; send a service-auth token or a session as Authorization: Bearer", header: echo.HeaderWWWAuthenticate, value: `Bearer`},
	{name: errorlist.InvalidToken, match: as[*serviceauth.InvalidError](),
		header: echo.HeaderWWWAuthenticate, value: `Bearer error="invalid_token"`, more: tokenReason},

	// The account may not use this node.
	{name: errorlist.Blocked, match: is(accounts.ErrBlocked)},
	{name: errorlist.AccountInactive, match: as[*accounts.InactiveError]()},
	{name: mlsapi.ErrNotPermitted, match: is(accounts.ErrNotAdmitted)},
	{name: errorlist.ServiceUnavailable, match: is(accounts.ErrUnavailable)},

	// The client sends too much.
	{name: errorlist.RateLimitExceeded, match: as[limited](), more: after(func(e limited) time.Duration { return e.after })},
	{name: errorlist.RateLimitExceeded, match: is(events.ErrTooMany), retryAfter: retryTooMany},
	{name: errorlist.QuotaExceeded, match: as[*quota.ExceededError](),
		more: after(func(e *quota.ExceededError) time.Duration { return e.After })},
	{name: errorlist.RateLimitExceeded, match: as[*network.BudgetError](),
		more: after(func(e *network.BudgetError) time.Duration { return e.After })},
	{name: errorlist.RateLimitExceeded, match: is(serviceauth.ErrSpent),
		message: "too many tokens of unknown accounts, or requests for sessions, came from this address"},
	{name: errorlist.RateLimitExceeded, match: is(serviceauth.ErrOften), retryAfter: retryOften,
		message: "too many sessions of this account were bought or refreshed; service-auth tokens work meanwhile"},

	// The server cannot serve the request now.
	{name: errorlist.ServiceUnavailable, match: as[busy](), more: after(func(e busy) time.Duration { return e.after })},
	{name: errorlist.ServiceUnavailable, match: is(transparency.ErrNotReady), message: "the log's head is not ready yet"},
	{name: errorlist.ServiceUnavailable,
		match: is(messages.ErrOverloaded, messages.ErrBusy, messages.ErrClosed, events.ErrClosing, batch.ErrOverloaded, batch.ErrClosed)},
	{name: errorlist.ServiceUnavailable, match: is(network.ErrNoKey), // its reader says so in the log
		message: "this node does not have the key with which the service signs for other services; send the same bytes again"},
	{name: errorlist.ServiceUnavailable, match: is(network.ErrLookup), // the host is chosen by callers, so not in the log
		message: "the delivery service of a person, or the person's own host, cannot be asked now; send the same bytes again"},
	{name: errorlist.ServiceUnavailable,
		match:   is(serviceauth.ErrHost), // the caller's fault, so not in the log
		message: "the token cannot be checked now"},
	{name: errorlist.ServiceUnavailable, match: is(serviceauth.ErrClock), // the check of the clocks logs it
		message: "the clocks of this server and of its database differ, so it cannot judge the token's times; the operator must set them"},
	{name: errorlist.ServiceUnavailable, match: is(serviceauth.ErrLate),
		message: "the token has expired by the database's clock before it was used; send the request again with a new token"},
	{name: errorlist.ServiceUnavailable,
		match:   is(serviceauth.ErrUnavailable, serviceauth.ErrBusy),
		message: "the token cannot be checked now", log: "a token cannot be checked"},
	{name: errorlist.ServiceUnavailable, match: is(attachments.ErrStore),
		message: "the store of attachments does not answer now; retry", log: "the store of attachments failed"},
	{name: errorlist.ServiceUnavailable,
		match:   databaseDown,
		message: "the write or read cannot be completed now; retry", log: databaseLog},
	{name: errorlist.ServiceUnavailable,
		match: is(context.Canceled, context.DeadlineExceeded), message: "the request ran out of time"},
}

// databaseLog is the log line of a request that fails because of the database.
const databaseLog = "the database is unavailable"

// is matches errors that wrap one of the targets.
func is(targets ...error) func(error) error {
	return func(err error) error {
		for _, target := range targets {
			if errors.Is(err, target) {
				return err
			}
		}
		return nil
	}
}

// as matches errors of type T.
func as[T error]() func(error) error {
	return func(err error) error {
		if t, ok := find[T](err); ok {
			return t
		}
		return nil
	}
}

func find[T error](err error) (t T, ok bool) {
	ok = errors.As(err, &t)
	return t, ok
}

func invalidObject(object convos.Object) func(error) error {
	return func(err error) error {
		if invalid, ok := find[*convos.InvalidObjectError](err); ok && invalid.Object == object {
			return invalid
		}
		return nil
	}
}

func databaseDown(err error) error {
	if errors.Is(err, idem.ErrUnknownOutcome) || pgpool.Unavailable(err) {
		return err
	}
	return nil
}

func epochMismatch(f *failure, err error) {
	mismatch, _ := find[*messages.EpochMismatchError](err)
	f.more.CurrentEpoch = &mismatch.Current
	if mismatch.WonBy != 0 {
		f.more.Seq = &mismatch.WonBy
	}
}

func goesOn(f *failure, err error) {
	closed, _ := find[*messages.ClosedError](err)
	f.more.SuccessorConvoID = lexcodec.Pointer(closed.Successor.String())
}

func keyUsed(f *failure, err error) {
	conflict, _ := find[*idem.ConflictError](err)
	f.more.Fields = conflict.Fields
	f.more.FirstUsedAt = lexcodec.Pointer(lexcodec.NewDatetime(conflict.At).String())
	if !conflict.Expires.IsZero() {
		f.more.KeyExpiresAt = lexcodec.Pointer(lexcodec.NewDatetime(conflict.Expires).String())
	}
	f.more.FirstRequestHash, f.more.RequestHash = hex.EncodeToString(conflict.First), hex.EncodeToString(conflict.Hash)
}

func running(f *failure, err error) {
	running, _ := find[*idem.RunningError](err)
	f.retryAfter = max(f.retryAfter, min(running.Left, retryRunning))
	f.more.ProcessingStartedAt = lexcodec.Pointer(lexcodec.NewDatetime(running.Since).String())
}

func tokenReason(f *failure, err error) {
	invalid, _ := find[*serviceauth.InvalidError](err)
	f.message = invalid.Message()
}

// after returns a function that sets the Retry-After that an error asks for, if it is longer than
// the Retry-After of the name.
func after[T error](of func(T) time.Duration) func(*failure, error) {
	return func(f *failure, err error) {
		e, _ := find[T](err)
		f.retryAfter = max(f.retryAfter, of(e))
	}
}

// answerTo finds the answer to an error, and the row that it comes from. row is nil if the error is
// already a failure. ok is false if no row matches.
func answerTo(err error) (f failure, row *errorRow, ok bool) {
	if errors.As(err, &f) {
		return f, nil, true
	}
	for i := range errorTable {
		row := &errorTable[i]
		if row.match == nil {
			continue
		}
		matched := row.match(err)
		if matched == nil {
			continue
		}
		f = named(row.name, row.message)
		f.retryAfter, f.header, f.value = max(f.retryAfter, row.retryAfter), row.header, row.value
		if f.message == "" {
			f.message = matched.Error()
		}
		if row.more != nil {
			row.more(&f, matched)
		}
		return f, row, true
	}
	return failure{}, nil, false
}

// refusal is answerTo for errors that are the client's fault.
func refusal(err error) (failure, bool) {
	f, _, ok := answerTo(err)
	return f, ok && f.status < http.StatusInternalServerError
}

// named returns a failure with a name of package errorlist, which has the status.
func named(name, message string) failure {
	e, ok := errorlist.Find(name)
	if !ok {
		panic("api: no error is named " + name)
	}
	return failure{status: e.Status, name: name, message: message, retryAfter: e.RetryAfter}
}

// errCursor refuses the cursor of a list.
var errCursor error = named(mlsapi.ErrInvalidCursor, "cursor is not one that this method gave: begin again without one")

func badRequest(message string) error { return named(errorlist.InvalidRequest, message) }

// everyMethod reports whether every method may answer with name.
func everyMethod(name string) bool {
	e, ok := errorlist.Find(name)
	return ok && e.Every
}

// declared returns an error that the method's lexicon declares. A broken rule gets the method's own
// name for it. A name that the lexicon does not declare becomes InvalidRequest.
func (s *Server) declared(route *route, err error) error {
	if v, ok := find[*lexcodec.Violation](err); ok {
		if name := route.nameOf(v); name != "" {
			return named(name, v.Message)
		}
		return err
	}
	if f, ok := refusal(err); ok && !everyMethod(f.name) && !slices.Contains(route.Method.Errors, f.name) {
		s.cfg.Log.Error("an undeclared error was turned into InvalidRequest", "nsid", route.Method.NSID, "error", f.name)
		return badRequest(f.message)
	}
	return err
}

// failureOf finds the answer to any error. It logs the errors that are not the client's fault. It
// counts the refusals by quotas and by the limits of look-ups.
func (s *Server) failureOf(c echo.Context, err error) failure {
	if exceeded, ok := find[*quota.ExceededError](err); ok {
		s.cfg.Metrics.quotaRefusals.WithLabelValues(exceeded.Quota).Inc()
	}
	s.cfg.Metrics.lookupRefused(err)
	f, row, ok := answerTo(err)
	if ok {
		if row != nil && row.log == databaseLog {
			s.cfg.Metrics.storageFailed(err)
		}
		if row != nil && row.log != "" {
			s.bounded.Warn(row.log, "error", err)
		}
		return f
	}
	// An error of echo, such as an unknown path.
	if wrong, ok := find[*echo.HTTPError](err); ok && wrong.Code < http.StatusInternalServerError {
		return failure{status: wrong.Code, name: errorlist.InvalidRequest, message: http.StatusText(wrong.Code)}
	}
	s.cfg.Metrics.storageFailed(err)
	if t, ok := pgpool.Transition(err); ok {
		s.cfg.Metrics.transitions.WithLabelValues(t.Entity).Inc()
	}
	s.cfg.Log.Error("request failed", "error", err, "path", c.Path(), "request", c.Response().Header().Get(echo.HeaderXRequestID))
	return named(errorlist.InternalServerError, "internal error")
}

// setHeaders sets the headers of the answer.
func (f failure) setHeaders(h http.Header) {
	if f.header != "" {
		h.Set(f.header, f.value)
	}
	if f.retryAfter != 0 {
		setRetryAfter(h, f.retryAfter)
	}
}
