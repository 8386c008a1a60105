package api

import (
	"time"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/keypackages"
)

// GetKeyPackageStats: blue.catbird.mls.getKeyPackageStats. It counts the caller's KeyPackages only.
func (h *handlers) GetKeyPackageStats(c *call, p *mlsapi.GetKeyPackageStatsParams) error {
	if err := c.actsFor(p.DeviceID); err != nil {
		return err
	}
	f := keypackages.Filter{DeviceID: or(p.DeviceID, "")}
	if p.CipherSuite != nil {
		var err error
		if f.CipherSuite, err = cipherSuite(*p.CipherSuite); err != nil {
			return err
		}
	}
	stats, err := keypackages.Count(c.ctx, c.db, c.caller, f)
	if err != nil {
		return err
	}
	out := &mlsapi.GetKeyPackageStatsOutput{
		Available: stats.Available, LastResort: stats.LastResort, Claimed: stats.Claimed, Consumed: stats.Consumed,
		Orphaned: &stats.Orphaned, Expired: &stats.Expired,
		Threshold: keypackages.Threshold, NeedsReplenish: stats.NeedsReplenish, DepletesAt: datetime(stats.DepletesAt),
		ByCipherSuite: make([]mlsapi.SuiteStats, len(stats.Suites)),
		ByDevice:      make([]mlsapi.DeviceStats, len(stats.Devices)),
	}
	for i, s := range stats.Suites {
		out.ByCipherSuite[i] = mlsapi.SuiteStats{
			CipherSuite: s.CipherSuite.String(), Available: s.Available, LastResort: s.LastResort, Claimed: s.Claimed,
			Consumed: s.Consumed, Orphaned: &s.Orphaned, Expired: &s.Expired,
		}
	}
	for i, d := range stats.Devices {
		out.ByDevice[i] = mlsapi.DeviceStats{
			DeviceID: d.DeviceID, Available: d.Available, LastResort: d.LastResort, Claimed: d.Claimed, Consumed: d.Consumed,
			Orphaned: &d.Orphaned, Expired: &d.Expired, NeedsReplenish: d.NeedsReplenish, DepletesAt: datetime(d.DepletesAt),
		}
	}
	return c.reply(out)
}

// datetime encodes a moment that may be absent.
func datetime(at *time.Time) *lexcodec.Datetime {
	if at == nil {
		return nil
	}
	d := lexcodec.NewDatetime(*at)
	return &d
}
