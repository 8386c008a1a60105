package report

import (
	"math"
	"math/rand/v2"
	"time"
)

// kind is a variant of a made-up benchmark.
type kind struct {
	name    string
	load    Load
	rate    float64 // requests/s
	median  float64 // of the latency, in µs
	spread  float64 // sigma of its logarithm
	server  float64 // µs of processor per request
	failing string
}

var (
	plainLoad = Load{InFlight: 128, Servers: 1, Convos: 1000, Members: 2, BodyBytes: 1024}
	threeWays = []kind{
		{name: "batched", load: plainLoad, rate: 18400, median: 6100, spread: .38, server: 46},
		{name: "alone", load: plainLoad, rate: 4100, median: 27500, spread: .52, server: 71, failing: "Overloaded"},
		{name: "ceiling", load: Load{InFlight: 128, Convos: 1000, BodyBytes: 1024}, rate: 24800, median: 4600, spread: .30, server: 0},
	}
)

// plausible makes a report of some variants, the same one every time.
func plausible(turns, seconds int, kinds ...kind) *Report {
	random := rand.New(rand.NewPCG(1, 2))
	r := &Report{
		Scenario: "send", Began: time.Date(2026, 9, 14, 9, 30, 0, 123456789, time.UTC), Seed: 1 << 63,
		Command: "go run ./cmd/clientsim bench send --in-flight 128 --convos 1000 --turns 5 --for 30s --seed 9223372036854775808",
		Machine: Machine{CPU: "AMD EPYC 7B13", Cores: 2, Memory: 24 << 30, OS: "linux 6.1 amd64", Go: "go1.26.0", Server: "v0.9.1"},
		Database: Database{Version: "PostgreSQL 15.14", Settings: map[string]string{
			"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "128MB", "max_connections": "100",
			"wal_sync_method": "fdatasync",
		}},
		Verdict: &Verdict{Sent: 1234567, Stored: 1234570, Unknown: 3, Retried: 41, Dropped: 12, Duplicate: 29, Kills: 2},
	}
	for turn := range turns {
		machine := 1 + 0.06*random.NormFloat64() // that all variants of a turn meet
		for _, k := range kinds {
			r.Runs = append(r.Runs, k.run(random, turn, seconds, k.rate*machine))
		}
	}
	return r
}

func (k kind) run(random *rand.Rand, turn, seconds int, rate float64) Run {
	op := &Operation{Latency: NewLatency()}
	run := Run{Variant: k.name, Turn: turn, Load: k.load, Operations: map[string]*Operation{"sendMessage": op}}
	for i := range seconds {
		done := int64(rate * (1 + 0.05*random.NormFloat64()))
		second := NewLatency()
		slow := math.Exp(0.15 * random.NormFloat64())
		for range done / 10 { // ten at a time are enough
			us := int64(slow * k.median * math.Exp(k.spread*random.NormFloat64()))
			if random.IntN(2000) == 0 {
				us *= 8 // a checkpoint
			}
			_ = second.RecordValues(max(1, us), 10)
		}
		op.Done += done / 10 * 10
		op.Latency.Merge(second.Histogram)
		run.Seconds = append(run.Seconds, Second{
			At: time.Duration(i+1)*time.Second + time.Duration(random.IntN(3000))*time.Microsecond, Done: done / 10 * 10,
			P50: time.Duration(second.ValueAtQuantile(50)) * time.Microsecond,
			P99: time.Duration(second.ValueAtQuantile(99)) * time.Microsecond,
		})
	}
	run.Took = time.Duration(seconds)*time.Second + 3*time.Millisecond
	each := func(us float64) time.Duration { return time.Duration(us * float64(op.Done) * 1e3) }
	run.Spent = Spent{Server: each(k.server), Database: each(k.server/2 + 21), Load: each(9)}
	if k.failing != "" {
		op.Failed = map[string]int64{k.failing: 7 + int64(turn), "Timeout": 1}
	}
	return run
}
