// Package errorlist says how each error name is answered. The server and the generator of
// docs/clients/api read it. The package imports nothing of ours, so that the generator compiles
// while the generated code is outdated.
package errorlist

import (
	"net/http"
	"slices"
	"time"
)

// Error is an error name and how it is answered.
type Error struct {
	Name   string
	Status int // HTTP status
	// Every says that every method may answer with the name, even if its lexicon does not declare
	// the name.
	Every bool
	// RetryAfter is the shortest Retry-After of the answers. 0 means that they have no Retry-After.
	RetryAfter time.Duration
}

// Names of the errors that every method can answer with. The names that only some methods use come
// from the lexicons.
const (
	InvalidRequest       = "InvalidRequest"
	AuthMissing          = "AuthMissing"
	InvalidToken         = "InvalidToken"
	NotPermitted         = "NotPermitted"
	Blocked              = "Blocked"
	AccountInactive      = "AccountInactive"
	PayloadTooLarge      = "PayloadTooLarge"
	RateLimitExceeded    = "RateLimitExceeded"
	QuotaExceeded        = "QuotaExceeded"
	InternalServerError  = "InternalServerError"
	MethodNotImplemented = "MethodNotImplemented"
	ServiceUnavailable   = "ServiceUnavailable"
)

// soon is the shortest Retry-After.
const soon = time.Second

// All lists all errors: first the errors of every method, then the errors of single methods, by
// status.
var All = []Error{
	{Name: InvalidRequest, Status: http.StatusBadRequest, Every: true},
	{Name: AuthMissing, Status: http.StatusUnauthorized, Every: true},
	{Name: InvalidToken, Status: http.StatusUnauthorized, Every: true},
	{Name: NotPermitted, Status: http.StatusForbidden, Every: true},
	{Name: Blocked, Status: http.StatusForbidden, Every: true},
	{Name: AccountInactive, Status: http.StatusForbidden, Every: true},
	{Name: PayloadTooLarge, Status: http.StatusRequestEntityTooLarge, Every: true},
	{Name: RateLimitExceeded, Status: http.StatusTooManyRequests, Every: true, RetryAfter: soon},
	{Name: QuotaExceeded, Status: http.StatusTooManyRequests, Every: true, RetryAfter: soon},
	{Name: InternalServerError, Status: http.StatusInternalServerError, Every: true},
	{Name: MethodNotImplemented, Status: http.StatusNotImplemented, Every: true},
	{Name: ServiceUnavailable, Status: http.StatusServiceUnavailable, Every: true, RetryAfter: soon},

	{Name: "CommitRequired", Status: http.StatusBadRequest},
	{Name: "ConsumerTooSlow", Status: http.StatusBadRequest},
	{Name: "ExpirationTooFar", Status: http.StatusBadRequest},
	{Name: "FutureCursor", Status: http.StatusBadRequest},
	{Name: "InvalidAsset", Status: http.StatusBadRequest},
	{Name: "InvalidCipherSuite", Status: http.StatusBadRequest},
	{Name: "InvalidCommit", Status: http.StatusBadRequest},
	{Name: "InvalidConfirmation", Status: http.StatusBadRequest},
	{Name: "InvalidCursor", Status: http.StatusBadRequest},
	{Name: "InvalidDid", Status: http.StatusBadRequest},
	{Name: "InvalidEpochRange", Status: http.StatusBadRequest},
	{Name: "InvalidGroupInfo", Status: http.StatusBadRequest},
	{Name: "InvalidInvitation", Status: http.StatusBadRequest},
	{Name: "InvalidKeyPackage", Status: http.StatusBadRequest},
	{Name: "InvalidMessage", Status: http.StatusBadRequest},
	{Name: "InvalidPushTarget", Status: http.StatusBadRequest},
	{Name: "InvalidReceipt", Status: http.StatusBadRequest},
	{Name: "InvalidRefreshToken", Status: http.StatusBadRequest},
	{Name: "InvalidTicket", Status: http.StatusBadRequest},
	{Name: "InvalidWelcome", Status: http.StatusBadRequest},
	{Name: "PushDisabled", Status: http.StatusBadRequest},
	{Name: "ReportsDisabled", Status: http.StatusBadRequest},
	{Name: "TooManyBlocks", Status: http.StatusBadRequest},
	{Name: "TooManyDids", Status: http.StatusBadRequest},
	{Name: "TooManyKeyPackages", Status: http.StatusBadRequest},
	{Name: "TooManyMembers", Status: http.StatusBadRequest},
	{Name: "TooManyPushTargets", Status: http.StatusBadRequest},
	{Name: "UnknownReportKey", Status: http.StatusBadRequest},
	{Name: "NotMember", Status: http.StatusForbidden},
	{Name: "SenderMismatch", Status: http.StatusForbidden},
	{Name: "AttachmentNotFound", Status: http.StatusNotFound},
	{Name: "ConvoNotFound", Status: http.StatusNotFound},
	{Name: "GroupInfoNotFound", Status: http.StatusNotFound},
	{Name: "InvitationNotFound", Status: http.StatusNotFound},
	{Name: "KeyPackageNotFound", Status: http.StatusNotFound},
	{Name: "WelcomeNotFound", Status: http.StatusNotFound},
	{Name: "AlreadyMember", Status: http.StatusConflict},
	{Name: "AttachmentIncomplete", Status: http.StatusConflict},
	{Name: "ConvoClosed", Status: http.StatusConflict},
	{Name: "ConvoDisputed", Status: http.StatusConflict},
	{Name: "EpochMismatch", Status: http.StatusConflict},
	{Name: "GroupAlreadyExists", Status: http.StatusConflict},
	{Name: "IdempotencyConflict", Status: http.StatusConflict},
	{Name: "LastMember", Status: http.StatusConflict},
	{Name: "RequestInProgress", Status: http.StatusConflict, RetryAfter: soon},
	{Name: "WelcomeConsumed", Status: http.StatusGone},
	{Name: "AttachmentTooLarge", Status: http.StatusRequestEntityTooLarge},
	{Name: "MessageTooLarge", Status: http.StatusRequestEntityTooLarge},
}

// Find returns the error with a name.
func Find(name string) (e Error, ok bool) {
	i := slices.IndexFunc(All, func(e Error) bool { return e.Name == name })
	if i < 0 {
		return Error{}, false
	}
	return All[i], true
}
