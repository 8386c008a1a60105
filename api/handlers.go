package api

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/serviceauth"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/push"
	"mlsd/welcome"
)

// handlers implements mlsapi.Handler: one method per file of this package.
type handlers struct {
	db       *pgxpool.Pool
	log      *slog.Logger
	writes   *idem.Store
	messages *messages.Log
	cursors  *convos.Cursors
	welcomes welcome.Policy
	desk     *welcome.Desk
	push     push.Policy
	waiting  sync.Map // of waiter

	committed func()
	streams   *streams
	tickets   *events.Tickets
	socketURL string // of the subscription
	// A subscription says itself who its caller is.
	auth  *serviceauth.Validator
	byIP  *limiter
	byDID *limiter
}

var _ mlsapi.Handler[*call] = (*handlers)(nil)

// convoID parses the id of a convo. What cannot be one is answered like one that never existed.
func convoID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text { // uuid.Parse also takes other spellings
		return uuid.Nil, convos.ErrNotFound
	}
	return id, nil
}

// cipherSuite parses the name of a suite whose objects can be verified.
func cipherSuite(name string) (mls.CipherSuite, error) {
	suite, ok := mls.ParseCipherSuite(name)
	if !ok || !suite.Supported() {
		return 0, named(mlsapi.ErrInvalidCipherSuite, "cipherSuite is not one that this server verifies")
	}
	return suite, nil
}

// content is the part of an input that makes two requests the same.
func content(fields []mlsapi.Field) idem.Content {
	c := make(idem.Content, len(fields))
	for i, f := range fields {
		c[i] = idem.Field(f)
	}
	return c
}

// write runs effect once for the call's key, which may be "", and answers with what it returned the first time. scope is the
// convo that the request names, or "".
func (h *handlers) write(c *call, scope, key string, input idem.Content, effect func(context.Context, pgx.Tx) (mlsapi.Appender, error)) error {
	req := idem.Request{Caller: c.caller, NSID: c.nsid, Scope: scope, Key: key, Input: input}
	answer, err := h.writes.Do(c.ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		out, err := effect(ctx, tx)
		if err != nil {
			return nil, err
		}
		return out.AppendJSON(nil), nil
	})
	c.expired = answer.Expired
	if err != nil {
		return err
	}
	h.committed()
	c.answer, c.replayed = answer.Body, answer.Replayed
	return nil
}

// commit is write for a commit. It waits while the next one is reserved for another member, one request of a caller's at a time, and
// keeps count of lost races.
func (h *handlers) commit(c *call, convo uuid.UUID, key string, input idem.Content, effect func(context.Context, pgx.Tx) (mlsapi.Appender, error)) error {
	for {
		err := h.write(c, convo.String(), key, input, effect)
		var (
			reserved *convos.ReservedError
			mismatch *messages.EpochMismatchError
		)
		switch {
		case errors.As(err, &reserved):
			if err := h.turnOver(c, convo, reserved); err != nil {
				return err
			}
		case errors.As(err, &mismatch):
			if failed := convos.Lost(c.ctx, h.db, convo, c.caller, mismatch.Epoch); failed != nil { // fairness suffers, no more
				h.log.WarnContext(c.ctx, "a lost race was not noted", "error", failed)
			}
			return err
		default:
			return err
		}
	}
}

// How often a commit that waits for another's looks whether that has come: soon at first, then less and less often.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 100 * time.Millisecond
)

// waiter is a caller whose commit waits for another member's.
type waiter struct {
	convo  uuid.UUID
	caller syntax.DID
}

// turnOver waits until the other member has made its commit, or its time is over.
func (h *handlers) turnOver(c *call, convo uuid.UUID, r *convos.ReservedError) error {
	w := waiter{convo, c.caller}
	if _, waits := h.waiting.LoadOrStore(w, true); waits {
		return busy{r.Left}
	}
	defer h.waiting.Delete(w)
	for look, left := firstLook, r.Left; left > 0; look = min(2*look, lastLook) {
		err := pause(c.ctx, min(left, look))
		if err == nil {
			left, err = convos.Reserved(c.ctx, h.db, convo, c.caller, r.Epoch)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// device selects Welcomes by what the client says of its device.
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

// view encodes a convo.
func view(c convos.Convo) *mlsapi.ConvoView {
	v := new(mlsapi.ConvoView)
	showConvo(v, &c)
	return v
}

// showConvo sets v to a convo, in the memory that v has already for the members.
func showConvo(v *mlsapi.ConvoView, c *convos.Convo) {
	level := string(c.CommitLevel)
	*v = mlsapi.ConvoView{
		ID:          c.ID.String(),
		GroupID:     hex.EncodeToString(c.GroupID),
		Creator:     c.Creator,
		Members:     slices.Grow(v.Members[:0], len(c.Members))[:len(c.Members)],
		Epoch:       c.Epoch,
		CipherSuite: c.CipherSuite.String(),
		CreatedAt:   mlsapi.NewDatetime(c.CreatedAt),
		CommitLevel: &level,
		LastSeq:     &c.LastSeq,
		Unread:      &c.Unread,
	}
	for i, m := range c.Members {
		v.Members[i] = mlsapi.MemberView{DID: m.DID, JoinedAt: mlsapi.NewDatetime(m.JoinedAt)}
	}
	if c.LastMessageAt != nil {
		at := mlsapi.NewDatetime(*c.LastMessageAt)
		v.LastMessageAt = &at
	}
	if c.Name != nil || c.Description != nil {
		v.Metadata = &mlsapi.ConvoMetadata{Name: c.Name, Description: c.Description}
	}
}

// maxPageBytes bounds the ciphertext of one answer: with base64 around it, it stays below the 8 MB that a PDS passes on.
const maxPageBytes = 5_700_000
