package soak

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// plausible makes a run that keeps everything steady, the same one every time.
func plausible(length time.Duration) *Record {
	random := rand.New(rand.NewPCG(5, 6))
	about := func(v, share float64) float64 { return v * (1 + share*random.NormFloat64()) }
	s := &Record{
		Begin: Begin{
			Began: time.Date(2026, 9, 14, 9, 30, 0, 0, time.UTC), For: length, Every: 10 * time.Second, Rate: 20, Seed: 7,
			Cores: 2, Go: "go1.26.0",
		},
		End: &End{Ended: time.Date(2026, 9, 14, 17, 30, 0, 0, time.UTC), Rounds: 240, Notes: []string{"12 connections"}},
	}
	for at := 10 * time.Second; at <= length; at += 10 * time.Second {
		hours := at.Hours()
		v := map[string]float64{
			"sent": 72_000 * hours, "wal": 300e6 * hours, "commits": 200_000 * hours, "rounds": 30 * hours, "rounds-failed": 0,
			"send/p50": about(0.004, 0.3), "send/p99": 0.05 * math.Exp(0.6*random.NormFloat64()),
			"event/p50": about(0.008, 0.3), "event/p99": 0.1 * math.Exp(0.6*random.NormFloat64()),
			"outbox-oldest": 0, "backends": about(500*mib, 0.02), "connections": 31 + float64(random.IntN(3)),
			"answers/5xx": 0, "answers/429": 3 * hours, "answers/none": 0, "cpu/load": 250 * hours, "cpu/database": 600 * hours,
			"resident/load":  40 * mib,
			"table/messages": 20*mib + 8*mib*math.Mod(at.Minutes(), 10)/10, "index/messages": 10 * mib, "rows/messages": 20_000,
			"dead/messages": about(3000, 0.3),
			"table/events":  200 * 72_000 * hours, "index/events": 50 * 72_000 * hours, "rows/events": 72_000 * hours,
			"dead/events": 0,
		}
		for _, node := range []string{"node1", "node2"} {
			v["resident/"+node], v["next-gc/"+node], v["gc-percent/"+node] = about(90*mib, 0.05), about(100*mib, 0.1), 400
			v["goroutines/"+node], v["files/"+node] = 60+float64(random.IntN(9)), 40+float64(random.IntN(9))
			v["cpu/"+node], v["lag-sum/"+node], v["lag-count/"+node] = 300*hours, 360*hours, 36_000*hours
		}
		s.Samples = append(s.Samples, Sample{At: at.Seconds(), Values: v})
	}
	return s
}

// file is a run's file of samples.
func (s *Record) file(t *testing.T) *bytes.Buffer {
	t.Helper()
	lines := []Line{{Begin: &s.Begin}}
	for i := range s.Samples {
		lines = append(lines, Line{Sample: &s.Samples[i]})
	}
	if s.End != nil {
		lines = append(lines, Line{End: s.End})
	}
	var out bytes.Buffer
	for _, line := range lines {
		if err := json.NewEncoder(&out).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	return &out
}

func TestRead(t *testing.T) {
	t.Parallel()
	made := plausible(time.Minute)
	whole := made.file(t).String()
	s, err := Read(strings.NewReader(whole))
	if err != nil || len(s.Samples) != 6 || s.Seed != 7 || s.End == nil || s.End.Rounds != 240 ||
		s.length() != time.Minute {
		t.Fatalf("%+v, %v", s, err)
	}
	// A killed run has no end, and half a line.
	cut := whole[:strings.LastIndex(whole, `"at"`)]
	if s, err := Read(strings.NewReader(cut)); err != nil || len(s.Samples) != 5 || s.End != nil {
		t.Errorf("a run that was killed: %+v, %v", s, err)
	}
	for want, text := range map[string]string{
		"no line says how the run began": "{\"sample\":{\"at\":1}}\n",
		"line 2":                         "{\"begin\":{}}\nnonsense\n",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

// markdown is the report of the run.
func (s *Record) markdown(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	if err := s.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text := plausible(2 * time.Hour).markdown(t)
	for _, want := range []string{
		"0 of 19 measures grew; every promise kept", "2026-09-14 09:30:00 UTC, 2h0m0s, 20 messages a second, seed 7",
		"12 connections",
		"events, bytes a row", "250 B", "steady", "| goroutines, node1 | ", "- 240 rounds of scenarios\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
}

// A run that has just begun, or lacks most values, has a report too.
func TestRecordOfLittle(t *testing.T) {
	t.Parallel()
	s := plausible(time.Minute)
	s.End, s.Samples = nil, s.Samples[:1]
	if text := s.markdown(t); !strings.Contains(text, "the run has no end yet") || !strings.Contains(text, "too short") {
		t.Errorf("the report does not say that the run has just begun:\n%s", text)
	}
	s.Samples = nil
	s.markdown(t)
}

func TestRecordOfABrokenRun(t *testing.T) {
	t.Parallel()
	s := leaky(map[string]func(time.Duration) float64{"goroutines/node1": func(at time.Duration) float64 {
		return 60 +
			100*at.Hours()
	}})
	s.End.Broken = []string{"round 3: lost"}
	text := s.markdown(t)
	for _, want := range []string{"1 of 19 measures grew; 1 promise broken", "GREW", "- broken: " + s.End.Broken[0]} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
	if s.Kept() {
		t.Error("the run counts as kept")
	}
}
