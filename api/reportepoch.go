package api

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/convos/disputes"
	"mlsd/people/quota"
)

// ReportEpoch: blue.catbird.mls.reportEpoch. It takes no key, because only the newest report of an
// account counts.
func (h *handlers) ReportEpoch(c *call, in *mlsapi.ReportEpochInput) error {
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	r := convos.Report{
		EpochReport: disputes.EpochReport{ConvoID: convo, Caller: c.caller, Epoch: in.Epoch, Hash: in.AuthenticatorHash,
			Counts: true},
		GroupInfo: in.GroupInfo, Verified: &convos.Verifications{},
	}
	if in.GroupInfo != nil {
		c.uses(quota.Bytes, len(in.GroupInfo))
	}
	return h.reportEpoch(c, r, func(out disputes.EpochOutcome, stored bool) lexcodec.Appender {
		answer := &mlsapi.ReportEpochOutput{
			Recorded: out.Recorded, Agreeing: present(int64(out.Agreeing)), Differing: present(int64(out.Differing)),
			Forked: out.Forked, Disputed: out.Open != nil, GroupInfoStored: present(stored),
		}
		if out.Open != nil {
			answer.Committer = &out.Open.Committer
		}
		return answer
	})
}

// reportEpoch records what the caller reports of an epoch. If a GroupInfo has many signatures, they
// are verified between two transactions. encode makes the answer.
func (h *handlers) reportEpoch(c *call, r convos.Report,
	encode func(disputes.EpochOutcome, bool) lexcodec.Appender) error {
	var out disputes.EpochOutcome
	err := h.verified(c, len(r.GroupInfo), func() error {
		return h.write(c, r.ConvoID.String(), "", nil, func(ctx context.Context, tx pgx.Tx) (_ lexcodec.Appender, err error) {
			var stored bool
			if out, stored, err = convos.ReportEpoch(ctx, tx, r); err != nil {
				return nil, err
			}
			return encode(out, stored), nil
		})
	})
	if err == nil && out.Found {
		h.forked(c, r.ConvoID, r.Epoch)
	}
	return err
}

// forked counts and logs a newly found fork.
func (h *handlers) forked(c *call, convo uuid.UUID, epoch int64) {
	h.Metrics.forks.Inc()
	h.log.WarnContext(c.ctx, "an epoch is forked", "convo", convo, "epoch", epoch)
}

// disputed counts and logs a new dispute.
func (h *handlers) disputed(c *call, convo uuid.UUID, epoch int64) {
	h.Metrics.disputes.Inc()
	h.log.WarnContext(c.ctx, "a commit is disputed", "convo", convo, "epoch", epoch)
}
