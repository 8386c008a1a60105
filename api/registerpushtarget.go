package api

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/push"
)

// RegisterPushTarget: blue.catbird.mls.registerPushTarget. A request without a key is safe to
// repeat: a second registration of the same target changes nothing in the device's row, and gives
// the same answer.
func (h *handlers) RegisterPushTarget(c *call, in *mlsapi.RegisterPushTargetInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	if err := c.actsFor(&in.DeviceID); err != nil {
		return err
	}
	target, err := pushTarget(c, in)
	if err != nil {
		return err
	}
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		target, err := push.Register(ctx, tx, h.Push, target)
		if err != nil {
			return nil, err
		}
		state := string(target.State)
		out := &mlsapi.RegisterPushTargetOutput{State: &state}
		if target.Secret != "" {
			out.Secret = &target.Secret
		}
		return out, nil
	})
}

// pushTarget reads the fields of the target's kind. It refuses fields of another kind.
func pushTarget(c *call, in *mlsapi.RegisterPushTargetInput) (push.Target, error) {
	t := push.Target{DID: c.caller, DeviceID: in.DeviceID, Kind: push.Kind(in.Kind), P256dh: in.P256dh, Auth: in.Auth}
	for i, text := range in.Muted {
		convo, err := uuid.Parse(text)
		if err != nil {
			return t, named(mlsapi.ErrInvalidPushTarget, fmt.Sprintf("muted[%d] is not the id of a convo", i))
		}
		t.Muted = append(t.Muted, convo)
	}
	apns := in.Token != nil || in.Topic != nil || in.Environment != nil
	keys := in.P256dh != nil || in.Auth != nil
	switch {
	case t.Kind == push.KindAPNs && in.URL == nil && !keys:
		t.Environment = push.Production
		for field, value := range map[*string]*string{&t.Address: in.Token, &t.Topic: in.Topic,
			&t.Environment: in.Environment} {
			if value != nil {
				*field = *value
			}
		}
	case in.URL != nil && !apns && (t.Kind == push.KindWebhook && !keys || t.Kind == push.KindWebPush):
		t.Address = *in.URL
	case t.Kind == push.KindAPNs, t.Kind == push.KindWebhook, t.Kind == push.KindWebPush:
		return t, named(mlsapi.ErrInvalidPushTarget, "a webhook has a url, webpush a url, p256dh and auth, and APNs a "+
			"token, a topic and an environment")
	}
	return t, nil
}
