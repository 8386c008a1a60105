package keypackages

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Counts are numbers of KeyPackages by state. Deleted KeyPackages do not count. A KeyPackage whose
// lifetime is over counts as expired, and a KeyPackage whose claim has lapsed counts as orphaned,
// even if the sweeper has not stored this state yet.
type Counts struct {
	Available  int64 // one-time KeyPackages that can be claimed
	LastResort int64 // last-resort KeyPackages that can be served
	Claimed    int64
	Consumed   int64
	Orphaned   int64
	Expired    int64
}

func (c *Counts) add(d Counts) {
	c.Available += d.Available
	c.LastResort += d.LastResort
	c.Claimed += d.Claimed
	c.Consumed += d.Consumed
	c.Orphaned += d.Orphaned
	c.Expired += d.Expired
}

// Stats describe the KeyPackages of an owner.
type Stats struct {
	Counts
	NeedsReplenish bool       // a device needs more KeyPackages, or the owner has none left
	DepletesAt     *time.Time // the earliest DepletesAt of the devices
	Suites         []SuiteStats
	// Devices has up to maxDeviceStats devices. The device that published last comes first. The
	// other fields count all devices.
	Devices []DeviceStats
}

// SuiteStats are the KeyPackages of one suite.
type SuiteStats struct {
	Counts
	CipherSuite mls.CipherSuite
}

// DeviceStats are the KeyPackages of one device.
type DeviceStats struct {
	Counts
	DeviceID       string
	NeedsReplenish bool       // fewer than Threshold in a suite with one-time KeyPackages
	DepletesAt     *time.Time // forecast; nil if none was claimed within forecastPeriod
}

// maxDeviceStats bounds the devices of an answer.
const maxDeviceStats = 100

// The forecast assumes that claims continue at the rate of the last forecastPeriod. If the device
// first published less than forecastPeriod ago, the rate is measured since then, but at least over
// forecastFloor.
const (
	forecastPeriod = 7 * 24 * time.Hour
	forecastFloor  = time.Hour
)

// Filter selects KeyPackages.
type Filter struct {
	CipherSuite mls.CipherSuite // 0 means all
	DeviceID    string          // "" means all
}

// Count counts the owner's KeyPackages that f selects.
func Count(ctx context.Context, q pgpool.Queryer, owner syntax.DID, f Filter) (Stats, error) {
	stocks, err := pgpool.Collect(ctx, q, scanStock, `
		WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now) -- one moment for all rows
		SELECT device_id, cipher_suite,
			count(*) FILTER (WHERE live AND NOT last_resort),
			count(*) FILTER (WHERE live AND last_resort),
			count(*) FILTER (WHERE state = 'claimed' AND claim_expires_at > now),
			count(*) FILTER (WHERE state = 'consumed'),
			count(*) FILTER (WHERE state = 'orphaned' OR state = 'claimed' AND claim_expires_at <= now),
			count(*) FILTER (WHERE state = 'expired' OR state = 'available' AND NOT live),
			count(*) FILTER (WHERE claimed_at > now - $4::interval),
			NOT bool_and(last_resort), min(created_at), max(created_at), now
		FROM (
			SELECT *, state = 'available' AND not_after > now AS live
			FROM key_packages, clock
			WHERE did = $1 AND ($2 = 0 OR cipher_suite = $2) AND ($3 = '' OR device_id = $3)
		) own
		GROUP BY device_id, cipher_suite, now`,
		owner, int32(f.CipherSuite), f.DeviceID, forecastPeriod)
	if err != nil {
		return Stats{}, fmt.Errorf("count KeyPackages: %w", err)
	}
	return sum(stocks), nil
}

// stock describes the KeyPackages of one device in one suite, or of one device in all suites.
type stock struct {
	Counts
	deviceID    string
	suite       mls.CipherSuite
	claims      int64 // within forecastPeriod
	low         bool
	first, last time.Time // first and last publication
	now         time.Time
}

func scanStock(row pgx.CollectableRow) (s stock, err error) {
	var oneTime bool
	err = row.Scan(&s.deviceID, &s.suite, &s.Available, &s.LastResort, &s.Claimed, &s.Consumed, &s.Orphaned, &s.Expired,
		&s.claims,
		&oneTime, &s.first, &s.last, &s.now)
	s.low = oneTime && s.Available < Threshold
	return s, err
}

// sum adds up the stocks of an owner.
func sum(stocks []stock) (all Stats) {
	suites, devices := map[mls.CipherSuite]*SuiteStats{}, map[string]*stock{}
	for _, s := range stocks {
		all.add(s.Counts)
		suite, ok := suites[s.suite]
		if !ok {
			suite = &SuiteStats{CipherSuite: s.suite}
			suites[s.suite] = suite
		}
		suite.add(s.Counts)
		if d, ok := devices[s.deviceID]; ok {
			d.merge(s)
		} else {
			devices[s.deviceID] = &s
		}
	}
	for _, id := range slices.Sorted(maps.Keys(suites)) {
		all.Suites = append(all.Suites, *suites[id])
	}
	newest := slices.SortedFunc(maps.Values(devices), func(a, b *stock) int {
		return cmp.Or(b.last.Compare(a.last), cmp.Compare(a.deviceID, b.deviceID))
	})
	all.NeedsReplenish = all.Available+all.LastResort == 0
	for _, d := range newest {
		at := d.depletesAt()
		all.NeedsReplenish = all.NeedsReplenish || d.low
		if at != nil && (all.DepletesAt == nil || at.Before(*all.DepletesAt)) {
			all.DepletesAt = at
		}
		if len(all.Devices) < maxDeviceStats {
			all.Devices = append(all.Devices,
				DeviceStats{Counts: d.Counts, DeviceID: d.deviceID, NeedsReplenish: d.low, DepletesAt: at})
		}
	}
	return all
}

// merge adds the stock of another suite of the same device.
func (s *stock) merge(other stock) {
	s.add(other.Counts)
	s.claims += other.claims
	s.low = s.low || other.low
	if other.first.Before(s.first) {
		s.first = other.first
	}
	if other.last.After(s.last) {
		s.last = other.last
	}
}

// depletesAt forecasts when the last one-time KeyPackage will be claimed. It returns nil if none
// was claimed within forecastPeriod.
func (s *stock) depletesAt() *time.Time {
	if s.claims == 0 {
		return nil
	}
	period := min(forecastPeriod, max(forecastFloor, s.now.Sub(s.first)))
	at := s.now.Add(time.Duration(s.Available) * (period / time.Duration(s.claims)))
	return &at
}
