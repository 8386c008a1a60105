package api

import (
	"context"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/idem"
	"mlsd/internal/pgpool"
	"mlsd/mls"
	"mlsd/people/quota"
	"mlsd/welcome"
)

// handlers implements mlsapi.Handler. Each method has a file of its own.
type handlers struct {
	Config
	log     *slog.Logger // bounded: see Config.Log
	waiting sync.Map     // waitingCommitters

	streams   *streams
	socketURL string // URL of the subscription
	rates     *limiter
	// admission lets expensive requests run a few at a time.
	admission *admission
	openings  *openings
	// places are taken by requests that verify signatures outside a transaction, by large pages,
	// and by exports.
	places  places
	finders finders // look-ups of services and homes
}

var _ mlsapi.Handler[*call] = (*handlers)(nil)

// convoID parses the id of a convo that the request names, and notes the convo for the log.
func (c *call) convoID(text string) (id uuid.UUID, err error) {
	c.identity.convo, err = convoID(text)
	return c.identity.convo, err
}

// convoID parses the id of a convo. A malformed id is refused as malformed, because that tells the
// caller nothing about convos.
func convoID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	// uuid.Parse accepts other spellings too.
	if err != nil || len(text) != len("00000000-0000-0000-0000-000000000000") || strings.ContainsAny(text, "ABCDEF") {
		return uuid.Nil, lexcodec.Malformed("convoId", "must be a UUID in lower case, such as "+
			"0192f3a4-5b6c-7d8e-9f01-23456789abcd", text)
	}
	return id, nil
}

// cipherSuite parses the name of a cipher suite. The server can verify the objects of every suite
// that it knows.
func cipherSuite(name string) (mls.CipherSuite, error) {
	suite, ok := mls.ParseCipherSuite(name)
	if !ok {
		return 0, named(mlsapi.ErrInvalidCipherSuite, lexcodec.Malformed("cipherSuite",
			"must be a cipher suite of RFC 9420 (§17.1), such as "+mls.CipherSuite(1).String()+
				", or a post-quantum one, such as "+mls.SuiteXWing.String(), name).Message)
	}
	return suite, nil
}

// content converts the fields of an input. Two requests with equal content are the same request.
func content(fields []lexcodec.Field) idem.Content {
	c := make(idem.Content, len(fields))
	for i, f := range fields {
		c[i] = idem.Field(f)
	}
	return c
}

// write runs effect once for the call's key, and answers with what effect returned the first time.
// Without a key, write runs effect each time. scope is the convo that the request names, or "".
//
// The quotas are checked after the key: a repeated request gets its first answer, even if the
// quotas have been used up since.
func (h *handlers) write(c *call, scope, key string, input idem.Content,
	effect func(context.Context, pgx.Tx) (lexcodec.Appender, error)) error {
	req := idem.Request{
		Caller: c.caller, NSID: c.route.Method.NSID, Scope: scope, Key: key, Input: input, Life: c.route.recordLife,
	}
	if err := h.openQuota(c); err != nil {
		return err
	}
	answer, err := h.Writes.Do(c.ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if err := c.quota.Take(c.costs(key)...); err != nil {
			return nil, err
		}
		out, err := effect(ctx, tx)
		if err != nil {
			return nil, err
		}
		body := out.AppendJSON(nil)
		if key != "" {
			c.quota.Count(quota.Cost{Of: quota.Bytes, N: int64(len(body))})
		}
		return body, nil
	})
	c.usedKey, c.expired = key, answer.Expired
	if err != nil {
		c.quota.Return()
		return err
	}
	h.Committed()
	c.answer, c.replayed, c.found = answer.Body, answer.Replayed, answer.Found
	return nil
}

// rosterBytes is what one change of the roster counts in the quota of bytes: about the size of a
// member's row and its event.
const rosterBytes = 256

// openQuota prepares to count what the request uses.
func (h *handlers) openQuota(c *call) (err error) {
	c.quota, err = h.Quotas.Open(c.ctx, c.caller, c.address)
	return err
}

// costs returns what a write with the key uses.
func (c *call) costs(key string) []quota.Cost {
	if key == "" {
		return c.cost
	}
	return append(slices.Clip(c.cost), quota.Cost{Of: quota.Records, N: 1})
}

// uses adds n of a resource to what the write uses.
func (c *call) uses(of quota.Resource, n int) {
	c.cost = append(c.cost, quota.Cost{Of: of, N: int64(n)})
}

// device selects Welcomes of the caller's: those for a device id, those for a KeyPackageRef, or
// all. Under a session it selects the Welcomes for the session's device.
func (c *call) device(id, ref *string) (welcome.Device, error) {
	d := welcome.Device{DID: c.caller}
	if err := c.actsFor(id); err != nil {
		return d, err
	}
	switch {
	case c.session != nil:
		d.DeviceID = c.session.Device
	case id != nil:
		d.DeviceID = *id
	}
	if ref != nil {
		raw, err := hex.DecodeString(*ref)
		if err != nil || len(raw) == 0 {
			return d, lexcodec.Malformed("keyPackageRef", "must be hexadecimal", *ref)
		}
		d.KeyPackageRef = raw
	}
	return d, nil
}

// maxPageBytes bounds the ciphertext of one answer. Encoded in base64, the answer stays below the 8
// MB that a PDS passes on.
const maxPageBytes = 5_700_000

// or returns the value that the client has sent, or other if the client has sent none.
func or[T any](sent *T, other T) T {
	if sent == nil {
		return other
	}
	return *sent
}

// member parses the id of a convo, and checks that the caller is a member. Errors: a
// *lexcodec.Violation, and the errors of convos.Authorise.
func (c *call) member(q pgpool.Queryer, text string) (convo uuid.UUID, m convos.Membership, err error) {
	if convo, err = c.convoID(text); err == nil {
		m, err = convos.Authorise(c.ctx, q, convo, c.caller)
	}
	return convo, m, err
}

// placeOf returns the id that the cursor of a list names, or beginning if cursor is nil. Error:
// errCursor.
func placeOf(cursor *string, beginning uuid.UUID) (uuid.UUID, error) {
	if cursor == nil {
		return beginning, nil
	}
	id, err := uuid.Parse(*cursor)
	if err != nil || id == uuid.Nil {
		return id, errCursor
	}
	return id, nil
}
