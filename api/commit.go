package api

import (
	"context"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/convos"
	"mlsd/idem"
	"mlsd/internal/worker"
	"mlsd/messages"
	"mlsd/people/quota"
)

// commit is [handlers.write] for a commit. If the epoch is reserved for another member, the request
// waits. A commit with many signatures is verified between two transactions. A lost race is
// counted.
func (h *handlers) commit(c *call, convo uuid.UUID, key string, input idem.Content,
	effect func(context.Context, pgx.Tx) (lexcodec.Appender, error)) error {
	var stored int64
	for _, cost := range c.cost {
		if cost.Of == quota.Bytes {
			stored += cost.N
		}
	}
	for {
		err := h.write(c, convo.String(), key, input, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			out, err := effect(ctx, tx)
			if err == nil {
				c.quota.CountCommit(convo, stored)
			}
			return out, err
		})
		if reserved, ok := find[*convos.ReservedError](err); ok {
			if err := c.outside(func() error { return h.awaitReservation(c, convo, reserved) }); err != nil {
				return err
			}
			continue
		}
		if unverified, ok := find[*convos.UnverifiedError](err); ok {
			if err := h.verify(c, c.proposedBytes, unverified.Verify); err != nil {
				return err
			}
			continue
		}
		if mismatch, ok := find[*messages.EpochMismatchError](err); ok {
			// If the count fails, the caller loses only fairness, so the request goes on.
			if failed := convos.RecordLoss(c.ctx, h.DB, convo, c.caller, mismatch.Epoch); failed != nil {
				h.log.WarnContext(c.ctx, "a lost race was not counted", "error", failed)
			}
		}
		return err
	}
}

// A waiting commit checks repeatedly whether the reservation has ended: first after firstLook, then
// after intervals that double up to lastLook.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 100 * time.Millisecond
)

// waitingCommitter is a caller whose commit waits for the end of another member's reservation.
type waitingCommitter struct {
	convo  uuid.UUID
	caller syntax.DID
}

// awaitReservation waits until the other member has committed or its reservation has expired. One
// request of a caller may wait. A second one gets busy.
func (h *handlers) awaitReservation(c *call, convo uuid.UUID, r *convos.ReservedError) error {
	w := waitingCommitter{convo, c.caller}
	if _, waits := h.waiting.LoadOrStore(w, true); waits {
		return busy{r.Left}
	}
	defer h.waiting.Delete(w)
	for look, left := firstLook, r.Left; left > 0; look = min(2*look, lastLook) {
		worker.Pause(c.ctx, min(left, look))
		var err error
		if left, err = convos.Reserved(c.ctx, h.DB, convo, c.caller, r.Epoch); err != nil {
			return err
		}
	}
	return nil
}

// proposed returns the commit of a request, with its Welcome and its GroupInfo.
func (c *call) proposed(key string, input idem.Content, commit, welcome, groupInfo []byte) convos.Proposed {
	if commit != nil {
		c.uses(quota.Messages, 1)
		c.uses(quota.Bytes, len(commit)+len(welcome)+len(groupInfo))
	}
	c.proposedBytes = len(commit) + len(groupInfo)
	return convos.Proposed{
		Commit: commit, Welcome: welcome, GroupInfo: groupInfo, Verified: &convos.Verifications{},
		Key: messages.CommitKey(c.route.Method.NSID, key), Hash: input.Hash(),
	}
}
