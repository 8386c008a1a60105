package events

import (
	"context"
	"encoding/json"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// Channels of NOTIFY.
const (
	outboxChannel = "mlsd_outbox" // the outbox has new rows
	eventsChannel = "mlsd_events" // the stream has new events
	// devicesChannel says that the subscriptions of a device must end. Its payload is a revocation.
	devicesChannel = "mlsd_devices"
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
