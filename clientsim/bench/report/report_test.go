package report

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// fixed makes a run with so many requests in 10 s, each of the same latency.
func fixed(variant string, turn int, load Load, requests, us int64) Run {
	latency := NewLatency()
	_ = latency.RecordValues(us, requests)
	return Run{
		Variant: variant, Turn: turn, Load: load, Took: 10 * time.Second,
		Operations: map[string]*Operation{"sendMessage": {Done: requests, Latency: latency}},
		Spent:      Spent{Server: time.Duration(requests) * 20 * time.Microsecond, Database: time.Duration(requests) * 10 * time.Microsecond},
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

// The machine is slow in the second turn. The ratio of the medians would be 4, but in every turn
// the ratio was 2 or 3.
func TestRatiosAreOfOneTurn(t *testing.T) {
	t.Parallel()
	load := Load{InFlight: 8, Convos: 1}
	r := &Report{Runs: []Run{
		fixed("alone", 0, load, 4000, 900), fixed("batched", 0, load, 8000, 300),
		fixed("alone", 1, load, 1000, 3000), fixed("batched", 1, load, 3000, 1000),
		fixed("alone", 2, load, 2000, 1000), fixed("batched", 2, load, 6000, 500),
		fixed("alone", 3, load, 2000, 1000), // its batched turn failed
	}}
	ratios := r.ratios()
	if len(ratios) != 1 {
		t.Fatalf("%d ratios, want 1: %+v", len(ratios), ratios)
	}
	got := ratios[0]
	if got.over != "batched" || got.under != "alone" || got.turns != 3 || got.rate != 3 || got.least != 2 || got.most != 3 {
		t.Errorf("rate: %+v", got)
	}
	if math.Abs(got.p99-1.0/3) > 0.002 || math.Abs(got.processors-1) > 1e-9 {
		t.Errorf("p99 or processor: %+v", got)
	}
}

func TestComparable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		variants []string
		want     string
	}{
		{[]string{"batched", "alone", "ceiling"}, "batched/alone batched/ceiling alone/ceiling"},
		{[]string{"calm", "storm"}, "storm/calm"},
		{[]string{"one node", "two nodes", "three nodes"}, "two nodes/one node three nodes/one node"},
		{[]string{"batched"}, ""},
	} {
		var got []string
		for _, pair := range comparable(test.variants) {
			got = append(got, pair[0]+"/"+pair[1])
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%v: %v, want %s", test.variants, got, test.want)
		}
	}
}

// With several loads, each is compared with its own, although ceiling has neither servers nor
// members.
func TestPanels(t *testing.T) {
	t.Parallel()
	var r Report
	for i, convos := range []int{1, 1000} {
		load := Load{InFlight: 8, Servers: 1, Convos: convos, Members: 2}
		bare := Load{InFlight: 8, Convos: convos}
		r.Runs = append(r.Runs, fixed("batched", 0, load, 1000, 100), fixed("ceiling", 0, bare, int64(2000*(i+1)), 100))
	}
	each := panels(r.groups())
	if len(each) != 2 || each[0].load != "1 convo" || each[1].load != "1,000 convos" || len(each[0].groups) != 2 {
		t.Fatalf("%+v", each)
	}
	ratios := r.ratios()
	if len(ratios) != 2 || ratios[0].rate != 0.5 || ratios[1].rate != 0.25 || ratios[1].load != "1,000 convos" {
		t.Errorf("%+v", ratios)
	}
	if common, apart := loads(r.groups()); common != "8 in flight, 1 server, 2 members each" || apart[3] != "1,000 convos" {
		t.Errorf("common %q, apart %q", common, apart)
	}
}

// The absence of faults is shown too.
func TestOneVariantOneLoad(t *testing.T) {
	t.Parallel()
	r := Report{Runs: []Run{fixed("calm", 0, Load{Rate: 100}, 1000, 100), fixed("storm", 0, Load{Rate: 90, Faults: true}, 900, 400)}}
	if each := panels(r.groups()); len(each) != 1 || each[0].load != "" {
		t.Fatalf("%+v", each)
	}
	_, apart := loads(r.groups())
	if want := []string{"100/s offered", "90/s offered, with faults"}; !slices.Equal(apart, want) {
		t.Errorf("%q, want %q", apart, want)
	}
	if ratios := r.ratios(); len(ratios) != 1 || math.Abs(ratios[0].p99-4) > 0.02 {
		t.Errorf("%+v", ratios)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	load := Load{InFlight: 128, Servers: 1, Convos: 1000}
	r := plausible(1, 1)
	for turn, requests := range []int64{100000, 300000, 200000} {
		run := fixed("batched", turn, load, requests, 5000)
		run.Operations["sendMessage"].Failed = map[string]int64{"Busy": 2, "Overloaded": 500}
		r.Runs = append(r.Runs, run, fixed("alone", turn, load, requests/4, 20000))
	}
	read := NewLatency()
	_ = read.RecordValues(1500, 10)
	r.Runs[0].Operations["getMessages"] = &Operation{Done: 10, Latency: read}
	r.Verdict.Violated = []string{"convo 7: seq 3 after 4"}
	r.Verdict.Lost = 2

	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"AMD EPYC 7B13, 2 cores, 24 GiB", "PostgreSQL 15.14, durable: each COMMIT waits", "128 in flight, 1 server, 1,000 convos, 3 turns of 10 s",
		"20,000", "10,001–30,000", "5.00 ms", "Overloaded 1,500, Busy 6", "\n  getMessages ", "1.50 ms", "batched ÷ alone", "4–4",
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
		is                  bool
	}{
		{"on", "on", "durable: each", true},
		{"on", "remote_apply", "durable: each", true},
		{"on", "off", "NOT durable: synchronous_commit off", false},
		{"off", "on", "NOT durable: fsync off", false},
		{"", "", "not known", false},
	} {
		text, is := Database{Settings: map[string]string{"fsync": test.fsync, "synchronous_commit": test.commit}}.durable()
		if is != test.is || !strings.HasPrefix(text, test.want) {
			t.Errorf("fsync %q, synchronous_commit %q: %q, %v", test.fsync, test.commit, text, is)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{thousands(0), "0"}, {thousands(-1234567), "-1,234,567"}, {thousands(-123), "-123"}, {thousands(999), "999"},
		{significant(99.97), "100"}, {significant(9.996), "10.0"}, {significant(0.0512), "0.051"}, {significant(3), "3"},
		{significant(math.NaN()), none}, {significant(math.Inf(1)), none},
		{latencyText(7), "7 µs"}, {latencyText(999.6), "1.00 ms"}, {latencyText(12345), "12.3 ms"}, {latencyText(2.5e6), "2.50 s"},
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
	idle := Run{Variant: "batched", Operations: map[string]*Operation{"sendMessage": {}, "getMessages": nil}, Seconds: []Second{{At: time.Second}, {}}}
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
