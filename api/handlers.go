package api

import (
	"context"
	"encoding/hex"
	"log/slog"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/serviceauth"
	"mlsd/mls"
	"mlsd/push"
	"mlsd/welcome"
)

// handlers implements mlsapi.Handler. Each method has a file of its own.
type handlers struct {
	db       *pgxpool.Pool
	log      *slog.Logger
	writes   *idem.Store
	messages Sender
	cursors  *convos.Cursors
	welcomes *welcome.Service
	push     push.Policy
	waiting  sync.Map // of waitingCommitter

	committed func()
	streams   *streams
	tickets   *events.Tickets
	socketURL string // of the subscription
	// The handler of a subscription authenticates its caller itself.
	auth  *serviceauth.Validator
	byIP  *limiter
	byDID *limiter
}

var _ mlsapi.Handler[*call] = (*handlers)(nil)

// convoID parses the id of a convo. A malformed id is answered like that of a convo that never
// existed.
func convoID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text { // uuid.Parse also takes other spellings
		return uuid.Nil, convos.ErrNotFound
	}
	return id, nil
}

// cipherSuite parses the name of a cipher suite of RFC 9420. The server verifies objects of all.
func cipherSuite(name string) (mls.CipherSuite, error) {
	suite, ok := mls.ParseCipherSuite(name)
	if !ok {
		return 0, named(mlsapi.ErrInvalidCipherSuite, "cipherSuite: not a cipher suite of RFC 9420 (§17.1)")
	}
	return suite, nil
}

// content converts the fields of an input. Two requests with the same content are the same request.
func content(fields []lexcodec.Field) idem.Content {
	c := make(idem.Content, len(fields))
	for i, f := range fields {
		c[i] = idem.Field(f)
	}
	return c
}

// write runs effect once for the call's key and answers with what effect returned the first time.
// Without a key it runs effect each time. scope is the convo that the request names, or "".
func (h *handlers) write(c *call, scope, key string, input idem.Content, effect func(context.Context, pgx.Tx) (lexcodec.Appender, error)) error {
	req := idem.Request{
		Caller: c.caller, NSID: c.route.Method.NSID, Scope: scope, Key: key, Input: input, Life: c.route.recordLife,
	}
	answer, err := h.writes.Do(c.ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		out, err := effect(ctx, tx)
		if err != nil {
			return nil, err
		}
		return out.AppendJSON(nil), nil
	})
	c.usedKey, c.expired = key, answer.Expired
	if err != nil {
		return err
	}
	h.committed()
	c.answer, c.replayed = answer.Body, answer.Replayed
	return nil
}

// device selects the Welcomes of a device of the caller's: all, or those for a device id or a
// KeyPackage.
func (c *call) device(id, ref *string) (welcome.Device, error) {
	d := welcome.Device{DID: c.caller}
	if id != nil {
		d.DeviceID = *id
	}
	if ref != nil {
		raw, err := hex.DecodeString(*ref)
		if err != nil || len(raw) == 0 {
			return d, badRequest("keyPackageRef must be hexadecimal")
		}
		d.KeyPackageRef = raw
	}
	return d, nil
}

// maxPageBytes bounds the ciphertext of one answer. In base64 it stays below the 8 MB that a PDS
// passes on.
const maxPageBytes = 5_700_000
