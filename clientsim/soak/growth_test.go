package soak

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"mlsd/clientsim/load"
)

// series makes points every ten seconds.
func seriesOver(length time.Duration, of func(at time.Duration, random *rand.Rand) float64) (points []point) {
	random := rand.New(rand.NewPCG(3, 4))
	for at := 10 * time.Second; at <= length; at += 10 * time.Second {
		points = append(points, point{at.Seconds(), of(at, random)})
	}
	return points
}

// Each limit finds a leak, and finds none in what only looks like one.
func TestGrowth(t *testing.T) {
	t.Parallel()
	noisy := func(level, share float64) func(time.Duration, *rand.Rand) float64 {
		return func(_ time.Duration, random *rand.Rand) float64 { return level * (1 + share*random.NormFloat64()) }
	}
	for name, test := range map[string]struct {
		limit  limit
		length time.Duration
		of     func(at time.Duration, random *rand.Rand) float64
		grew   bool
	}{
		"memory swings": {memoryLimit, 2 * time.Hour, noisy(100*mib, 0.2), false},
		"memory leaks 40 MiB an hour": {memoryLimit, 2 * time.Hour, func(at time.Duration, random *rand.Rand) float64 {
			return noisy(60*mib, 0.1)(at, random) + 40*mib*at.Hours()
		}, true},
		"memory leaks 8 MiB an hour, for a night": {memoryLimit, 8 * time.Hour,
			func(at time.Duration, random *rand.Rand) float64 {
				return noisy(60*mib, 0.1)(at, random) + 8*mib*at.Hours()
			}, true},
		"caches fill in the warm-up": {memoryLimit, 2 * time.Hour, func(at time.Duration, random *rand.Rand) float64 {
			return noisy(100*mib, 0.05)(at, random) * (1 - math.Exp(-at.Minutes()/10))
		}, false},
		"a goroutine leaks every five minutes": {handleLimit, 8 * time.Hour,
			func(at time.Duration, random *rand.Rand) float64 {
				return 60 + math.Floor(at.Minutes()/5) + float64(random.IntN(10))
			}, true},
		"a burst at the end": {handleLimit, 8 * time.Hour, func(at time.Duration, random *rand.Rand) float64 {
			if at > 7*time.Hour+40*time.Minute {
				return 400
			}
			return 60 + float64(random.IntN(10))
		}, false},
		"a table between two runs of the sweep of messages": {tableLimit, 2 * time.Hour,
			func(at time.Duration, _ *rand.Rand) float64 {
				return 20*mib + 10*mib*math.Mod(at.Minutes(), 10)/10
			}, false},
		"a table that nobody cleans": {tableLimit, 2 * time.Hour,
			func(at time.Duration, _ *rand.Rand) float64 { return 12 * mib * at.Hours() }, true},
		"a table that is cleaned once an hour": {tableLimit, 2 * time.Hour, func(at time.Duration, _ *rand.Rand) float64 {
			return 10*mib + 6*mib*math.Mod(at.Hours(), 1)
		}, false},
		"latencies of a busy machine": {tailLimit, 2 * time.Hour, func(_ time.Duration, random *rand.Rand) float64 {
			return 0.060 * math.Exp(0.8*random.NormFloat64())
		}, false},
		"latencies that double twice": {latencyLimit, 2 * time.Hour, func(at time.Duration, random *rand.Rand) float64 {
			return 0.005 * math.Exp2(2*at.Hours()) * math.Exp(0.3*random.NormFloat64())
		}, true},
		"nothing, and then something": {handleLimit, 2 * time.Hour, func(at time.Duration, _ *rand.Rand) float64 {
			return map[bool]float64{true: 25}[at > 80*time.Minute]
		}, true},
	} {
		r := rule{name: name, limit: test.limit, text: load.Figure}
		g := r.judge(seriesOver(test.length, test.of), test.length)
		if g.Grew != test.grew || g.Short {
			t.Errorf("%s: %+v, want grew %v", name, g, test.grew)
		}
	}
}

// A run that is too short for a limit is not judged, also if it grows.
func TestGrowthOfShortRuns(t *testing.T) {
	t.Parallel()
	// from zero, more than any limit
	rises := func(at time.Duration, _ *rand.Rand) float64 { return at.Hours() * 1000 * mib }
	for _, test := range []struct {
		limit  limit
		length time.Duration
		short  bool
	}{
		{tableLimit, 79 * time.Minute, true}, {tableLimit, 80 * time.Minute, false},
		{memoryLimit, 119 * time.Minute, true}, {memoryLimit, 2 * time.Hour, false},
		{tailLimit, 3 * time.Minute, true}, {tailLimit, 4 * time.Minute, false},
		{limit{}, 2 * time.Minute, true}, // three samples in a quarter
	} {
		g := rule{limit: test.limit, text: load.Figure}.judge(seriesOver(test.length, rises), test.length)
		if g.Short != test.short || g.Grew == test.short {
			t.Errorf("%+v for %s: %+v, want short %v", test.limit, test.length, g, test.short)
		}
	}
}

func TestGrowthSaysWhatItCompares(t *testing.T) {
	t.Parallel()
	// A quarter is an hour. The second one has the value 2, the last one the value 4.
	points := seriesOver(4*time.Hour, func(at time.Duration, _ *rand.Rand) float64 { return math.Ceil(at.Hours()) })
	g := rule{name: "steps", limit: limit{share: 0.25, plus: 1}, text: load.Figure}.judge(points, 4*time.Hour)
	if want := (Growth{Name: "steps", Before: "2", After: "4", Allowed: "3.50", Limit: "25 % + 1",
		Grew: true}); g != want {
		t.Errorf("%+v, want %+v", g, want)
	}
}

// leaky makes a run in which one thing may leak: a value of each sample as a function of time.
func leaky(leaks map[string]func(at time.Duration) float64) *Record {
	s := plausible(2 * time.Hour)
	for i := range s.Samples {
		for name, of := range leaks {
			s.Samples[i].Values[name] = of(time.Duration(s.Samples[i].At * float64(time.Second)))
		}
	}
	return s
}

// Every rule of a run sees its own leak, and only that.
func TestRulesSeeTheirLeaks(t *testing.T) {
	t.Parallel()
	steps := func(from, perHour float64) func(time.Duration) float64 {
		return func(at time.Duration) float64 { return from + perHour*at.Hours() }
	}
	if s := leaky(nil); !s.Kept() || len(s.Growths()) < 15 {
		t.Errorf("a run without a leak: %s", s.verdict())
	}
	for want, leaks := range map[string]map[string]func(time.Duration) float64{
		"resident memory, node2":                     {"resident/node2": steps(80*mib, 50*mib)},
		"heap after a collection, node1":             {"next-gc/node1": steps(100*mib, 150*mib)},
		"goroutines, node1":                          {"goroutines/node1": steps(60, 40)},
		"open files, node2":                          {"files/node2": steps(40, 30)},
		"private memory of all database connections": {"backends": steps(400*mib, 200*mib)},
		"database connections":                       {"connections": steps(30, 20)},
		"send, p99":                                  {"send/p99": steps(0.05, 1)},
		"event, p50":                                 {"event/p50": steps(0.005, 0.02)},
		"wait of the oldest event for its number":    {"outbox-oldest": steps(0, 3)},
		"WAL a message": {"wal": func(at time.Duration) float64 {
			return 2e8 * at.Hours() * (1 +
				at.Hours())
		}},
		"dead rows, all tables":      {"dead/messages": steps(2000, 20_000)},
		"messages, with its indexes": {"index/messages": steps(10*mib, 20*mib)},
		"events, bytes a row": {"table/events": func(at time.Duration) float64 {
			return 300 * 72_000 * at.Hours() *
				(1 + at.Hours())
		}},
	} {
		var grew []string
		for _, g := range leaky(leaks).Growths() {
			if g.Grew {
				grew = append(grew, g.Name)
			}
		}
		if !slices.Equal(grew, []string{want}) {
			t.Errorf("%q grew, want %q", grew, want)
		}
	}
}
