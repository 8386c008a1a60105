package report

import "time"

// plausible makes a report of two variants.
func plausible() *Report {
	asked := Load{InFlight: 128, Servers: 1, Convos: 1000, Members: 2, BodyBytes: 1024}
	return &Report{
		Scenario: "send", Began: time.Date(2026, 9, 14, 9, 30, 0, 123456789, time.UTC), Seed: 1 << 63,
		Command: "go run ./cmd/clientsim bench send --in-flight 128 --convos 1000 --turns 5 --for 30s --seed " +
			"9223372036854775808",
		Machine: Machine{CPU: "AMD EPYC 7B13", Cores: 2, Memory: 24 << 30, OS: "linux 6.1 amd64", Go: "go1.26.0",
			Server: "v0.9.1"},
		Database: Database{Version: "PostgreSQL 15.14", Settings: map[string]string{
			"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "128MB",
			"max_connections": "100",
			"wal_sync_method": "fdatasync",
		}},
		Runs:    []Run{fixed("old", 0, asked, 40_000, 6100), against("old", fixed("new", 0, asked, 50_000, 5000))},
		Verdict: &Verdict{Sent: 1234567, Stored: 1234570, Unknown: 3, Retried: 41, Dropped: 12, Duplicate: 29, Kills: 2},
	}
}
