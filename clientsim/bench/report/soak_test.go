package report

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// plausibleSoak makes a run that keeps everything steady, the same one every time.
func plausibleSoak(length time.Duration) *Soak {
	random := rand.New(rand.NewPCG(5, 6))
	about := func(v, share float64) float64 { return v * (1 + share*random.NormFloat64()) }
	s := &Soak{
		SoakBegin: SoakBegin{
			Began: time.Date(2026, 9, 14, 9, 30, 0, 0, time.UTC), For: length, Every: 10 * time.Second, Rate: 20, Seed: 7,
			Setup: []string{"steady: 20 messages a second", "MLSD_EVENT_RETENTION=1h"}, Cores: 2, Go: "go1.26.0",
		},
		End: &SoakEnd{Ended: time.Date(2026, 9, 14, 17, 30, 0, 0, time.UTC), Rounds: 240, Notes: []string{"12 connections"}},
	}
	for at := 10 * time.Second; at <= length; at += 10 * time.Second {
		hours := at.Hours()
		v := map[string]float64{
			"sent": 72_000 * hours, "wal": 300e6 * hours, "commits": 200_000 * hours, "rounds": 30 * hours, "rounds-failed": 0,
			"send/p50": about(0.004, 0.3), "send/p99": 0.05 * math.Exp(0.6*random.NormFloat64()),
			"event/p50": about(0.008, 0.3), "event/p99": 0.1 * math.Exp(0.6*random.NormFloat64()),
			"outbox-oldest": 0, "backends": about(500*mib, 0.02), "connections": 31 + float64(random.IntN(3)),
			"answers/5xx": 0, "answers/429": 3 * hours, "answers/none": 0, "cpu/load": 250 * hours, "cpu/database": 600 * hours, "resident/load": 40 * mib,
			"table/messages": 20*mib + 8*mib*math.Mod(at.Minutes(), 10)/10, "index/messages": 10 * mib, "rows/messages": 20_000, "dead/messages": about(3000, 0.3),
			"table/events": 200 * 72_000 * hours, "index/events": 50 * 72_000 * hours, "rows/events": 72_000 * hours, "dead/events": 0,
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
func (s *Soak) file(t *testing.T) *bytes.Buffer {
	t.Helper()
	lines := []SoakLine{{Begin: &s.SoakBegin}}
	for i := range s.Samples {
		lines = append(lines, SoakLine{Sample: &s.Samples[i]})
	}
	if s.End != nil {
		lines = append(lines, SoakLine{End: s.End})
	}
	var out bytes.Buffer
	for _, line := range lines {
		if err := json.NewEncoder(&out).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	return &out
}

func TestReadSoak(t *testing.T) {
	t.Parallel()
	made := plausibleSoak(time.Minute)
	whole := made.file(t).String()
	s, err := ReadSoak(strings.NewReader(whole))
	if err != nil || len(s.Samples) != 6 || s.Seed != 7 || s.End == nil || s.End.Rounds != 240 || s.length() != time.Minute {
		t.Fatalf("%+v, %v", s, err)
	}
	// A killed run has no end, and half a line.
	cut := whole[:strings.LastIndex(whole, `"at"`)]
	if s, err := ReadSoak(strings.NewReader(cut)); err != nil || len(s.Samples) != 5 || s.End != nil {
		t.Errorf("a run that was killed: %+v, %v", s, err)
	}
	for want, text := range map[string]string{
		"no line says how the run began": "{\"sample\":{\"at\":1}}\n",
		"line 2":                         "{\"begin\":{}}\nnonsense\n",
	} {
		if _, err := ReadSoak(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

func TestSoakPage(t *testing.T) {
	t.Parallel()
	_, visible := checkPage(t, plausibleSoak(2*time.Hour).WriteHTML)
	for _, want := range []string{
		"0 of 19 measures grew; every promise kept", "2026-09-14 09:30:00 UTC, 2h0m0s, seed 7", "MLSD_EVENT_RETENTION=1h", "12 connections",
		"Resident memory, MiB", "node2", "1:30 h", "Time to an event", "p99", "database", "events, bytes a row", "250 B", "steady",
	} {
		if !strings.Contains(visible, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// A run that has just begun, or lacks most values, has a page too.
func TestSoakPageOfLittle(t *testing.T) {
	t.Parallel()
	s := plausibleSoak(time.Minute)
	s.End, s.Samples = nil, s.Samples[:1]
	if _, visible := checkPage(t, s.WriteHTML); !strings.Contains(visible, "the run has no end yet") || !strings.Contains(visible, "too short") {
		t.Error("the page does not say that the run has just begun")
	}
	s.Samples = nil
	checkPage(t, s.WriteHTML)
}

func TestSoakPageOfABrokenRun(t *testing.T) {
	t.Parallel()
	s := leaky(map[string]func(time.Duration) float64{"goroutines/node1": func(at time.Duration) float64 { return 60 + 100*at.Hours() }})
	s.End.Broken = []string{`round 3: <b>"lost"</b>`}
	text, visible := checkPage(t, s.WriteHTML)
	for _, want := range []string{"1 of 19 measures grew; 1 promise broken", "GREW", s.End.Broken[0]} {
		if !strings.Contains(visible, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if s.Kept() || !strings.Contains(text, `class="verdict broken"`) {
		t.Error("the page looks as if all was well")
	}
}

func TestSoakPicture(t *testing.T) {
	t.Parallel()
	s := plausibleSoak(8 * time.Hour)
	var out bytes.Buffer
	if err := s.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, out.String())
	if n := out.Len(); n > 200<<10 {
		t.Errorf("the picture of a night has %d bytes", n)
	}
	for _, p := range s.smalls() {
		if !strings.Contains(out.String(), ">"+joined(p.title, p.unit)+"<") {
			t.Errorf("the picture has no %q", p.title)
		}
	}
}

func TestReplaceFigures(t *testing.T) {
	t.Parallel()
	s := plausibleSoak(2 * time.Hour)
	page, err := s.ReplaceFigures([]byte("before\n" + figuresBegin + "old figures\n" + figuresEnd + "after\n"))
	text := string(page)
	if err != nil || strings.Contains(text, "old figures") || !strings.HasPrefix(text, "before\n") || !strings.HasSuffix(text, "after\n") {
		t.Fatalf("%s, %v", text, err)
	}
	for _, want := range []string{"**0 of 19 measures grew; every promise kept.**", "| goroutines, node1 | ", "- 12 connections\n", "- 240 rounds of scenarios\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q:\n%s", want, text)
		}
	}
	again, err := s.ReplaceFigures(page)
	if err != nil || !bytes.Equal(again, page) {
		t.Errorf("replaced twice: %s, %v", again, err)
	}
	if _, err := s.ReplaceFigures([]byte("no place")); err == nil {
		t.Error("a page without a place was taken")
	}
}

// Thinning keeps the level of noise, and of errors the peaks.
func TestThinned(t *testing.T) {
	t.Parallel()
	points := seriesOver(8*time.Hour, func(at time.Duration, random *rand.Rand) float64 {
		if at == 4*time.Hour {
			return 1000
		}
		return 10 + random.NormFloat64()
	})
	for _, peaks := range []bool{false, true} {
		greatest := 0.0
		thin := thinned(points, 8*time.Hour, peaks)
		for _, p := range thin {
			greatest = max(greatest, p.y)
		}
		if len(thin) > mostPoints+1 || (greatest == 1000) != peaks {
			t.Errorf("peaks %v: %d points up to %v", peaks, len(thin), greatest)
		}
	}
}

// The names of curves stay within their picture, in as many rows as they need.
func TestLegendWraps(t *testing.T) {
	names := []string{"p50, some nodes", "p50, other nodes", "p99, some nodes", "p99, other nodes"}
	places := legendPlaces(names)
	for i, at := range places {
		if end := at.x + 21 + 6.8*float64(len(names[i])); end > smallWidth {
			t.Errorf("%q ends at %v", names[i], end)
		}
	}
	if places[0] != (point{}) || places[2].y != 0 || places[3].x != 0 || places[3].y == 0 {
		t.Errorf("places: %v", places)
	}
	if one := legendPlaces(names[:1]); len(one) != 1 || one[0] != (point{}) {
		t.Errorf("a single name: %v", one)
	}
}
