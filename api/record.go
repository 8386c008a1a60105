package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
	"mlsd/features/requests"
	"mlsd/people/accounts"
)

// identity says who has sent a request and what the request names, for the log and for the table
// requests. It is known even if the request is refused.
type identity struct {
	caller syntax.DID // the DID whose token or session is valid
	known  bool       // see requests.Request
	key    string     // the request's key, whether or not it was used
	convo  uuid.UUID  // the convo that the request names
}

// set records who the caller is. err is the reason why the node refuses the caller, standing why
// other methods would. No row may name an account that is being erased. Nor may a row name an
// account that the node does not serve, because anybody can have any number of them.
func (i *identity) set(caller syntax.DID, err error, standing *accounts.InactiveError) {
	if inactive, ok := find[*accounts.InactiveError](err); ok {
		standing = inactive
	}
	erasing := standing != nil && standing.Status == accounts.Erasing
	i.caller, i.known = caller, !erasing && !errors.Is(err, accounts.ErrNotAdmitted)
}

// outcome returns the result of a request, for everything that looks at finished requests. Its
// method comes from the table, never from the caller's text. trace is the id of the request's
// trace, or "".
func (s *Server) outcome(c *httpRequest, begun time.Time, f failure, trace string) requests.Request {
	took := c.processingTime(begun)
	q := requests.Request{
		At: begun.Add(took), Took: took, ID: c.Response().Header().Get(echo.HeaderXRequestID), Trace: trace,
		NSID: otherMethod, Status: c.Response().Status, Bytes: c.Response().Size,
		Error: f.name, Message: f.message, Detail: f.detail(), Conflict: conflicts(f.name),
	}
	if route := s.routes[c.Param("nsid")]; route != nil {
		q.NSID = route.Method.NSID
	}
	if cl := c.call; cl != nil {
		q.Caller, q.Known, q.Admitted = cl.identity.caller.String(), cl.identity.known, cl.caller != ""
		q.Key, q.KeyUsed = cmp.Or(cl.usedKey, cl.identity.key), cl.usedKey != ""
		q.Convo, q.Replayed, q.Expired = cl.identity.convo, cl.replayed, cl.expired
	}
	return q
}

// conflicts reports whether the error's name says that another request is the reason for the
// refusal.
func conflicts(name string) bool {
	return name == mlsapi.ErrEpochMismatch || name == mlsapi.ErrIdempotencyConflict || name == mlsapi.ErrRequestInProgress
}

// detail encodes the further fields of the answer. It returns nil if there are none.
func (f failure) detail() []byte {
	if f.name == "" {
		return nil
	}
	text, err := json.Marshal(f.more)
	if err != nil || string(text) == "{}" {
		return nil
	}
	return text
}
