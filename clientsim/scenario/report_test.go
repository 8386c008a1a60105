package scenario

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

func testReport(found ...history.Violation) *Report {
	stats := &xrpc.Stats{}
	stats.Sent.Store(3)
	stats.Delivered.Store(6)
	good := Result{Scenario: "good", Duration: time.Second}
	good.count(stats, nil)
	good.Notes = []string{"the longest wait"}
	other := Result{Scenario: "other", Duration: time.Second}
	other.count(stats, found)
	return &Report{Seed: 42, Results: []Result{good, other, {Scenario: "far", Skipped: "no server"}}}
}

func TestReport(t *testing.T) {
	t.Parallel()
	kept, broken := testReport(), testReport(
		history.Violation{Kind: history.Lost, What: "a"}, history.Violation{Kind: history.Duplicated, What: "b"},
		history.Violation{Kind: history.Broken, What: "c"}, history.Violation{Kind: history.Lost, What: "d"})
	if !kept.Kept() || broken.Kept() {
		t.Errorf("Kept = %t and %t", kept.Kept(), broken.Kept())
	}
	for report, last := range map[*Report]string{
		kept:   "0 lost, 0 duplicated, 0 violated",
		broken: "2 lost, 1 duplicated, 1 violated",
	} {
		var out bytes.Buffer
		if err := report.WriteTable(&out); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := lines[len(lines)-1]; got != last {
			t.Errorf("last line %q, want %q", got, last)
		}
		if !strings.Contains(out.String(), "good: the longest wait\n") {
			t.Errorf("the note is not in the report:\n%s", out.String())
		}
		if got := strings.Contains(out.String(), "--seed 42"); got == report.Kept() {
			t.Errorf("the seed is printed: %t, kept: %t", got, report.Kept())
		}
	}
	var out bytes.Buffer
	if err := broken.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Seed  uint64
		Total Result
	}
	if err := json.Unmarshal(out.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if read.Seed != 42 || read.Total.Sent != 6 || read.Total.Lost != 2 {
		t.Errorf("JSON says %+v", read)
	}
}

func TestLongListsAreCut(t *testing.T) {
	t.Parallel()
	var found []history.Violation
	for range maxListed + 5 {
		found = append(found, history.Violation{Kind: history.Broken, What: "the same"})
	}
	var out bytes.Buffer
	if err := testReport(found...).WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "the same"); got != maxListed || !strings.Contains(out.String(), "and 5 more") {
		t.Errorf("%d lines are listed:\n%s", got, out.String())
	}
}
