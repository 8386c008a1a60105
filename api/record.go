package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"mlsd/internal/requests"
	"mlsd/people/accounts"
)

// identity is who has sent a request, and what it names, for the log and the table requests. It is
// known also if the request is refused.
type identity struct {
	caller syntax.DID // whose token or session is valid
	known  bool       // see requests.Request
	key    string     // that the request has, whether or not it came to be used
	convo  uuid.UUID  // that the request names
}

// set records who the caller is. err is why the node refuses it, standing why other methods would.
// No row may name an account that is being erased, or one that the node does not serve: anybody can
// have any number of those.
func (i *identity) set(caller syntax.DID, err error, standing *accounts.InactiveError) {
	if inactive, ok := find[*accounts.InactiveError](err); ok {
		standing = inactive
	}
	erasing := standing != nil && standing.Status == accounts.Erasing
	i.caller, i.known = caller, !erasing && !errors.Is(err, accounts.ErrNotAdmitted)
}

// record reports a request of a method, after its answer. trace is the id of its trace, or "".
func (s *Server) record(c *httpRequest, f failure, took time.Duration, trace string) {
	cl := c.call
	if cl == nil { // not of a method: _health, did.json, pages that do not exist
		return
	}
	nsid := otherMethod
	if cl.route != nil {
		nsid = cl.route.Method.NSID
	}
	s.cfg.Answered(requests.Request{
		At: cl.begun.Add(took), ID: c.Response().Header().Get(echo.HeaderXRequestID), NSID: nsid, Status: c.Response().Status,
		Error: f.name, Message: f.message, Detail: f.detail(), Caller: cl.identity.caller.String(), Known: cl.identity.known,
		Key: cmp.Or(cl.usedKey, cl.identity.key), Convo: cl.identity.convo, Replayed: cl.replayed, Expired: cl.expired,
		Bytes: c.Response().Size, Took: took, Trace: trace,
	})
}

// detail encodes the further fields of the answer, nil if there are none.
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
