package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// useSessions makes the senders send sessions in the place of tokens, or no longer. Each buys one the
// first time.
func (b *bench) useSessions(ctx context.Context, use bool) error {
	if use && b.sessions == nil {
		bought := make([]string, len(b.senders))
		err := eachOf(setupLanes, len(bought), func(i int) (err error) {
			bought[i], err = b.buySession(ctx, i)
			return err
		})
		if err != nil {
			return err
		}
		b.sessions = bought
	}
	for i, t := range b.sendTokens {
		t.session = ""
		if use {
			t.session = b.sessions[i]
		}
	}
	return nil
}

// buySession buys a session of a sender. Its device is made up: no request of the load names one.
func (b *bench) buySession(ctx context.Context, sender int) (string, error) {
	device := sha256.Sum256([]byte(b.senders[sender].DID))
	body, err := b.env.call(ctx, b.senders[sender], mlsapi.NSIDCreateSession, &mlsapi.CreateSessionInput{DeviceID: hex.EncodeToString(device[:])})
	if err != nil {
		return "", fmt.Errorf("buy a session: %w", err)
	}
	out, err := xrpc.Decode[mlsapi.CreateSessionOutput](body)
	if err != nil {
		return "", fmt.Errorf("buy a session: %w", err)
	}
	return out.Session, nil
}
