package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos/disputes"
)

// ReportCommit: blue.catbird.mls.reportCommit. It takes no key, because an account can report a
// commit only once.
func (h *handlers) ReportCommit(c *call, in *mlsapi.ReportCommitInput) error {
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	r := disputes.CommitReport{ConvoID: convo, Caller: c.caller, Epoch: in.Epoch, Reason: in.Reason}
	began := false
	err = h.write(c, convo.String(), "", nil, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		out, err := disputes.ReportCommit(ctx, tx, r)
		if err != nil {
			return nil, err
		}
		began = out.Began
		answer := &mlsapi.ReportCommitOutput{Recorded: out.Recorded, Disputed: out.Open != nil}
		if d := out.Open; d != nil {
			answer.DisputedEpoch, answer.Committer, answer.Until = &d.Epoch, &d.Committer,
				lexcodec.Pointer(lexcodec.NewDatetime(d.Until))
		}
		return answer, nil
	})
	if err == nil && began {
		h.disputed(c, convo, in.Epoch)
	}
	return err
}
