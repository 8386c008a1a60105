package events

import (
	"context"
	"encoding/json"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// revocation names the device whose subscriptions must end.
type revocation struct {
	DID      syntax.DID `json:"did"`
	DeviceID string     `json:"deviceId"`
}

// EndDevice ends the subscriptions of a person that name a device, on every node that listens, once
// tx has committed. The client can open another subscription, as long as it can prove its identity.
func EndDevice(ctx context.Context, tx pgx.Tx, did syntax.DID, device string) error {
	payload, err := json.Marshal(revocation{did, device})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT pg_notify($1, $2)`, devicesChannel, string(payload))
	return errs.Wrap(err, "end the device's streams")
}

// endDevice ends the subscriptions of this node that a revocation names.
func (h *Hub) endDevice(payload string) {
	var r revocation
	if err := json.Unmarshal([]byte(payload), &r); err != nil {
		h.cfg.Log.Error("a revocation cannot be read", "error", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byDID[r.DID] {
		if s.named != r.DeviceID {
			continue
		}
		s.mu.Lock()
		s.fail(ErrClosing)
		s.mu.Unlock()
	}
}
