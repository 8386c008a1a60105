package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// LeaveConvo: blue.catbird.mls.leaveConvo.
func (h *handlers) LeaveConvo(c *call, in *mlsapi.LeaveConvoInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	convo, err := convoID(in.ConvoID)
	if err != nil {
		return err
	}
	input := content(in.Fields())
	if key == "" && in.Commit != nil {
		// Without a commit the same request may mean a second departure, after a return: its guard is left_at, not its content.
		key = input.DerivedKey()
	}
	leave := convos.Departure{
		ConvoID: convo, Caller: c.caller, Target: c.caller,
		Proposed: proposed("leaveConvo", key, input, in.Commit, nil, in.GroupInfo),
	}
	if in.TargetDID != nil {
		leave.Target = *in.TargetDID
	}
	return h.commit(c, convo, key, input, func(ctx context.Context, tx pgx.Tx) (mlsapi.Appender, error) {
		advanced, err := convos.Leave(ctx, tx, leave)
		if err != nil {
			return nil, err
		}
		out := &mlsapi.LeaveConvoOutput{Success: true, NewEpoch: advanced.Epoch}
		if advanced.Seq != 0 {
			out.Seq = &advanced.Seq
		}
		return out, nil
	})
}
