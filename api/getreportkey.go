package api

import (
	"mlsd/api/mlsapi"
	"mlsd/features/reports"
)

// GetReportKey: blue.catbird.mls.getReportKey.
func (h *handlers) GetReportKey(c *call) error {
	if h.ReportKey == nil {
		return reports.ErrDisabled
	}
	return c.reply(&mlsapi.GetReportKeyOutput{KeyID: h.ReportKey.ID(), PublicKey: h.ReportKey.Bytes(),
		Algorithm: reports.Algorithm})
}
