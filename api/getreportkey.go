package api

import (
	"mlsd/api/mlsapi"
	"mlsd/people/reports"
)

// GetReportKey: blue.catbird.mls.getReportKey.
func (h *handlers) GetReportKey(c *call) error {
	if h.reportKey == nil {
		return reports.ErrDisabled
	}
	return c.reply(&mlsapi.GetReportKeyOutput{KeyID: h.reportKey.ID(), PublicKey: h.reportKey.Bytes(),
		Algorithm: reports.Algorithm})
}
