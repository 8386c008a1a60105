package bench

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/load"
)

// turn makes a turn of 10 s with so many messages, each of the same latency.
func turn(variant string, index int, messages, us int64) Turn {
	return Turn{
		Variant: variant, Index: index, Took: 10 * time.Second, Main: opSend,
		Operations: map[string]*load.Operation{opSend: {Done: messages, Latency: latencies(us, messages)}},
		Spent: Spent{
			Server:   time.Duration(messages) * 20 * time.Microsecond,
			Database: time.Duration(messages) * 10 * time.Microsecond,
		},
	}
}

// latencies is a histogram of n times the same latency, in µs.
func latencies(us int64, n int64) *load.Latency {
	l := load.NewLatency()
	for range n {
		l.Record(time.Duration(us) * time.Microsecond)
	}
	return l
}

// plausible makes a report of two servers that take turns.
func plausible() *Report {
	r := &Report{
		Scenario: "welcome-storm", Began: time.Date(2026, 9, 14, 9, 30, 0, 0, time.UTC), Seed: 1 << 63,
		Machine: Machine{CPU: "AMD EPYC 7B13", Cores: 2, Go: "go1.26.0", Server: "v0.9.1",
			Database: "15.14, fsync on, synchronous_commit on"},
		Load:    Load{InFlight: 128, Servers: 1, Convos: 1000, Members: 2, Senders: 64, Body: 1 << 10},
		Verdict: &Verdict{Sent: 15000, Stored: 15003, Unknown: 3, Retried: 41, Dropped: 12, Duplicate: 29, Kills: 2},
	}
	for index, messages := range []int64{1000, 3000, 2000} {
		storm := turn("load=storm/mlsd=new", index, messages, 5000)
		storm.Operations[opSend].Failed = map[string]int64{"Busy": 2}
		storm.Operations["getWelcome"] = &load.Operation{Done: 10, Latency: latencies(1500, 10)}
		r.Turns = append(r.Turns, storm, turn("load=storm/mlsd=old", index, messages/4, 20000))
	}
	return r
}

func TestTable(t *testing.T) {
	t.Parallel()
	r := plausible()
	r.Verdict.Violated, r.Verdict.Lost = []string{"convo 7: seq 3 after 4"}, 2
	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(` +`).ReplaceAllString(text.String(), " ")
	for _, want := range []string{
		"2026-09-14 09:30:00 UTC, seed 9223372036854775808\n", "mlsd v0.9.1, AMD EPYC 7B13, 2 cores",
		"PostgreSQL 15.14, fsync on, synchronous_commit on\n", "128 in flight, 1 server, 1,000 convos of 2 members",
		"load=storm/mlsd=new sendMessage 200 5.00 ms 5.00 ms 5.00 ms 10 s 20 µs 10 µs 0 µs failed: map[Busy:6]",
		"getWelcome 1 1.50 ms", "load=storm/mlsd=old sendMessage 50 20.0 ms",
		"- violated: convo 7: seq 3 after 4\n", "BROKEN: 2 lost, 0 doubled, 0 gaps, 1 violated\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
}

// Benchstat reads the lines: a name whose parts are KEY=VALUE, a count, and values with units.
func TestLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := plausible().WriteLines(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\ncpu: AMD EPYC 7B13\n", "\npostgresql: 15.14, fsync on, synchronous_commit on\n",
		"\nBenchmarkWelcomeStorm/load=storm/mlsd=new-2 1000 1e+07 ns/op 5003000 p50-ns 5003000 p99-ns" +
			" 20000 server-ns/op 10000 database-ns/op 0 load-ns/op\n",
		"\nBenchmarkWelcomeStorm/load=storm/mlsd=new/op=getWelcome-2 10 1e+09 ns/op 1500000 p50-ns 1500000 p99-ns\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "\nBenchmark"); n != 9 {
		t.Errorf("%d lines for 3 turns of 3 operations", n)
	}
}

// Without measurements there are no figures, but still a table.
func TestNothingMeasured(t *testing.T) {
	t.Parallel()
	idle := Turn{Variant: "auth=service", Main: opSend, Took: time.Second,
		Operations: map[string]*load.Operation{opSend: {Latency: load.NewLatency()}}}
	for _, r := range []*Report{{}, {Turns: []Turn{{}}}, {Scenario: "x", Turns: []Turn{idle, {Variant: "auth=session"}}}} {
		for _, write := range []func(*bytes.Buffer) error{
			func(out *bytes.Buffer) error { return r.WriteTable(out) },
			func(out *bytes.Buffer) error { return r.WriteLines(out) },
		} {
			var text bytes.Buffer
			if err := write(&text); err != nil {
				t.Error(err)
			}
			for _, bad := range []string{"NaN", "Inf", "%!"} {
				if strings.Contains(text.String(), bad) {
					t.Errorf("%s in\n%s", bad, text.String())
				}
			}
		}
	}
}
