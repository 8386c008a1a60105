package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/network"
)

// LeaveConvo: blue.catbird.mls.leaveConvo.
func (h *handlers) LeaveConvo(c *call, in *mlsapi.LeaveConvoInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	input := content(in.Fields())
	if in.Commit != nil {
		// A request without a commit gets no derived key: after the caller has come back, the same
		// request means a second departure. The member's left_at then prevents a double effect.
		key = input.KeyOr(key)
	}
	leave := convos.Departure{
		ConvoID: convo, Caller: c.caller, Target: or(in.TargetDID, c.caller), Block: or(in.Block, false),
		Proposed: c.proposed(key, input, in.Commit, nil, in.GroupInfo),
	}
	if leave.Block && leave.Target != c.caller {
		return named(mlsapi.ErrNotPermitted, "block: only when the caller itself leaves")
	}
	return h.commit(c, convo, key, input, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		advanced, err := convos.Leave(ctx, tx, leave)
		if err == nil && advanced.Blocked != "" {
			err = network.Refuse(ctx, tx, c.caller, advanced.Blocked)
		}
		if err != nil {
			return nil, err
		}
		out := &mlsapi.LeaveConvoOutput{Success: true, NewEpoch: advanced.Epoch, Blocked: present(advanced.Blocked)}
		if advanced.Seq != 0 {
			out.Seq = &advanced.Seq
		}
		return out, nil
	})
}
