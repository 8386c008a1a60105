package report

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/load"
)

// fixed makes a run with so many requests in 10 s, each of the same latency.
func fixed(variant string, turn int, asked Load, requests, us int64) Run {
	latency := load.NewLatency()
	_ = latency.RecordValues(us, requests)
	return Run{
		Variant: variant, Turn: turn, Load: asked, Took: 10 * time.Second,
		Operations: map[string]*load.Operation{"sendMessage": {Done: requests, Latency: latency}},
		Spent: Spent{Server: time.Duration(requests) * 20 * time.Microsecond,
			Database: time.Duration(requests) * 10 * time.Microsecond},
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		of   []float64
		want float64
	}{{[]float64{7}, 7}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 100}, 3}} {
		if got := median(test.of); got != test.want {
			t.Errorf("median of %v is %v, want %v", test.of, got, test.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
}

// against makes a run that is compared with another variant.
func against(variant string, run Run) Run {
	run.Against = variant
	return run
}

// The machine is slow in the second turn. The ratio of the medians would be 4, but in every turn
// the ratio was 2 or 3.
func TestRatiosAreOfOneTurn(t *testing.T) {
	t.Parallel()
	asked := Load{InFlight: 8, Convos: 1}
	r := &Report{Runs: []Run{
		fixed("old", 0, asked, 4000, 900), against("old", fixed("new", 0, asked, 8000, 300)),
		fixed("old", 1, asked, 1000, 3000), against("old", fixed("new", 1, asked, 3000, 1000)),
		fixed("old", 2, asked, 2000, 1000), against("old", fixed("new", 2, asked, 6000, 500)),
		fixed("old", 3, asked, 2000, 1000), // its other turn failed
	}}
	ratios := r.ratios()
	if len(ratios) != 1 {
		t.Fatalf("%d ratios, want 1: %+v", len(ratios), ratios)
	}
	got := ratios[0]
	if got.over != "new" || got.under != "old" || got.turns != 3 || got.rate != 3 || got.least != 2 || got.most != 3 {
		t.Errorf("rate: %+v", got)
	}
	if math.Abs(got.p99-1.0/3) > 0.002 || math.Abs(got.processors-1) > 1e-9 {
		t.Errorf("p99 or processor: %+v", got)
	}
}

// Of a storm only what the calm does too is compared.
func TestStormIsComparedByItsSends(t *testing.T) {
	t.Parallel()
	calm, storm := fixed("calm", 0, Load{Rate: 100}, 1000, 100),
		against("calm", fixed("storm", 0, Load{Rate: 90, Faults: true}, 900, 400))
	storm.Operations["getWelcome"] = &load.Operation{Done: 7000, Latency: latencies(9000, 7000)}
	r := Report{Runs: []Run{calm, storm}}
	if ratios := r.ratios(); len(ratios) != 1 || math.Abs(ratios[0].p99-4) > 0.02 || ratios[0].rate != 0.9 {
		t.Errorf("%+v", ratios)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	asked := Load{InFlight: 128, Servers: 1, Convos: 1000}
	r := plausible()
	r.Runs = nil
	for turn, requests := range []int64{100000, 300000, 200000} {
		run := against("old", fixed("new", turn, asked, requests, 5000))
		run.Operations["sendMessage"].Failed = map[string]int64{"Busy": 2, "Overloaded": 500}
		r.Runs = append(r.Runs, run, fixed("old", turn, Load{InFlight: 64, Servers: 1, Convos: 1000}, requests/4, 20000))
	}
	read := load.NewLatency()
	_ = read.RecordValues(1500, 10)
	r.Runs[0].Operations["getMessages"] = &load.Operation{Done: 10, Latency: read}
	r.Verdict.Violated = []string{"convo 7: seq 3 after 4"}
	r.Verdict.Lost = 2

	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"AMD EPYC 7B13, 2 cores, 24 GiB", "PostgreSQL 15.14, durable: each COMMIT waits",
		"128 in flight, 1 server, 1,000 convos, 3 turns of 10 s",
		"20,000", "10,001–30,000", "5.00 ms", "Busy 6, Overloaded 1,500", "  getMessages  ", "1.50 ms", "new ÷ old", "4–4",
		"  64 in flight, 1 server",
		"violated: convo 7: seq 3 after 4", "BROKEN: 2 lost, 0 doubled, 0 gaps, 1 violated", "again: " + r.Command,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
}

func TestDurable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fsync, commit, want string
	}{
		{"on", "on", "durable: each"},
		{"on", "remote_apply", "durable: each"},
		{"on", "off", "NOT durable: synchronous_commit off"},
		{"off", "on", "NOT durable: fsync off"},
		{"", "", "not known"},
	} {
		text := Database{Settings: map[string]string{"fsync": test.fsync, "synchronous_commit": test.commit}}.durable()
		if !strings.HasPrefix(text, test.want) {
			t.Errorf("fsync %q, synchronous_commit %q: %q", test.fsync, test.commit, text)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{thousands(0), "0"}, {thousands(-1234567), "-1,234,567"}, {thousands(-123), "-123"}, {thousands(999), "999"},
		{significant(99.97), "100"}, {significant(9.996), "10.0"}, {significant(0.0512), "0.051"}, {significant(3), "3"},
		{significant(math.NaN()), none}, {significant(math.Inf(1)), none},
		{latencyText(7), "7 µs"}, {latencyText(999.6), "1.00 ms"}, {latencyText(12345), "12.3 ms"},
		{latencyText(2.5e6), "2.50 s"},
		{bytesOf(512), "512 B"}, {bytesOf(24 << 30), "24 GiB"}, {plural(1, "convo"), "1 convo"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}

// Without measurements there are no figures, but still a table.
func TestNothingMeasured(t *testing.T) {
	t.Parallel()
	idle := Run{Variant: "batched", Operations: map[string]*load.Operation{"sendMessage": {}, "getMessages": nil}}
	for _, r := range []*Report{{}, {Runs: []Run{{}}}, {Runs: []Run{idle, {Variant: "alone", Took: time.Second}}}} {
		var text bytes.Buffer
		if err := r.WriteTable(&text); err != nil {
			t.Error(err)
		}
		for _, bad := range []string{"NaN", "Inf", "%!"} {
			if strings.Contains(text.String(), bad) {
				t.Errorf("%s in\n%s", bad, text.String())
			}
		}
	}
}

// latencies is a histogram of n times the same latency, in µs.
func latencies(us int64, n int64) *load.Latency {
	l := load.NewLatency()
	if err := l.RecordValues(us, n); err != nil {
		panic(err)
	}
	return l
}
