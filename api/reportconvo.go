package api

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/reports"
	"mlsd/people/quota"
)

// ReportConvo: blue.catbird.mls.reportConvo. A request without a key is safe to repeat, because its
// sealed bytes are stored only once, and no two seals are equal.
func (h *handlers) ReportConvo(c *call, in *mlsapi.ReportConvoInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	report := reports.Report{
		Convo: convo, Reporter: c.caller, Reason: reports.Reason(in.Reason), KeyID: in.KeyID, Sealed: in.SealedReport,
	}
	c.uses(quota.Reports, 1)
	c.uses(quota.Bytes, len(in.SealedReport))
	err = h.write(c, convo.String(), key, content(in.Fields()),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			receipt, err := reports.Add(ctx, tx, h.ReportKey, report, c.quota.ReportBytes())
			if err != nil {
				return nil, err
			}
			if receipt.Repeated {
				// A repeated report stores no bytes. It still counts as a report of the day, so
				// that a caller cannot repeat it without end.
				c.quota.Give(quota.Cost{Of: quota.Bytes, N: int64(len(in.SealedReport))})
			}
			return &mlsapi.ReportConvoOutput{ReportID: receipt.ID.String(), ReportedAt: lexcodec.NewDatetime(receipt.At)}, nil
		})
	if full, ok := errors.AsType[*quota.ExceededError](err); ok && full.Quota == quota.ReportBytes {
		c.quota.Count(quota.Cost{Of: quota.Reports, N: 1}) // so that a caller cannot try without end
	}
	return err
}
