package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/load"
)

// latencies is a histogram of n times the same latency, in µs.
func latencies(us int64, n int64) *load.Latency {
	l := load.NewLatency()
	if err := l.RecordValues(us, n); err != nil {
		panic(err)
	}
	return l
}

// scaleRun is a run of ten seconds in which every server used all of its share, and the database a
// quarter for each.
func scaleRun(does string, nodes int, standby bool, rate int64) Run {
	name := fmt.Sprintf("%d nodes", nodes)
	if standby {
		name += " and a standby"
	}
	const took = 10 * time.Second
	shares := []Share{{Name: ShareDatabase, Cores: 0.4, Used: time.Duration(nodes) * time.Second, Periods: 500, Throttled: 5}}
	if standby {
		shares = append(shares, Share{Name: ShareStandby, Cores: 0.4, Used: 2 * time.Second, Periods: 500})
	}
	for i := range nodes {
		shares = append(shares, Share{Name: fmt.Sprintf("node %d", i+1), Cores: 0.1, Used: time.Second, Periods: 500, Throttled: 450})
	}
	return Run{
		Variant: does + ", " + name, Took: took, Load: Load{Servers: nodes},
		Operations: map[string]*load.Operation{"sendMessage": {Done: 10 * rate, Latency: latencies(7000, 10*rate)}},
		Scale: &Scale{
			Standby: standby, Shares: shares, WAL: 23_000 * rate, Batch: 12, Idle: 0.3,
			Events: &load.Operation{Done: 20 * rate, Latency: latencies(900, 20*rate)},
		},
	}
}

func plausibleScale() *Report {
	r := &Report{Verdict: &Verdict{Sent: 1234, Stored: 1234}}
	for _, standby := range []bool{false, true} {
		for _, nodes := range []int{1, 2, 4} {
			rate := int64(500 * nodes)
			r.Runs = append(r.Runs, scaleRun(sends, nodes, standby, rate), scaleRun(reads, nodes, standby, 2*rate), scaleRun(halfs, nodes, standby, rate/2))
		}
	}
	return r
}

func TestScaleTables(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := plausibleScale()
	if err := r.WriteScale(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 1 nodes | 500 | 1 | 1,000 | 1,000 | 1 | 7.00 ms, 7.00 ms | 900 µs, 900 µs |",
		"| 4 nodes and a standby | 2,000 | 4 | 4,000 | 4,000 | 4 |",
		"| 2 nodes | 50 %, 1 % | 100 %, 90 % | 200, 200 | 12 | 2,300 B |",
		"| 2 nodes | 50 % | – | 100 % | 100, 100 |",
		"| 1 nodes and a standby | 25 % | 50 % | 100 % | 100, 100 |",
		"Every promise kept",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the tables do not say %q", want)
		}
	}
	if strings.Contains(out.String(), "full") {
		t.Error("the machine was not full")
	}
	r.Runs[4].Scale.Idle = 0.01
	out.Reset()
	if err := r.WriteScale(&out); err != nil || strings.Count(out.String(), "The machine was full: the figures of 2 nodes mean nothing.") != 1 {
		t.Errorf("%v; of a full machine it says %s", err, out.String())
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestIdleTable(t *testing.T) {
	t.Parallel()
	r := &Report{}
	for _, n := range []int{0, 10_240} {
		run := scaleRun(halfs, 1, false, 50)
		run.Variant, run.Load.Subscribers, run.Scale.Resident = fmt.Sprintf("%d idle", n), n, int64(40+n/32)<<20
		r.Runs = append(r.Runs, run)
	}
	var out bytes.Buffer
	if err := r.WriteScale(&out); err != nil {
		t.Fatal(err)
	}
	const want = "| 10,240 | 360 MiB | 32 KiB | 10 % | 10 % | 7.00 ms, 7.00 ms | 900 µs, 900 µs |"
	if !strings.Contains(out.String(), want) {
		t.Errorf("the table does not say %q:\n%s", want, out.String())
	}
}

func TestNothingScaled(t *testing.T) {
	t.Parallel()
	if err := new(Report).WriteScale(io.Discard); err == nil {
		t.Error("nothing was measured, and it is written")
	}
}
