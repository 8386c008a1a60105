package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/soak"
	"mlsd/clientsim/testbed/testbedtest"
)

// A run that a signal ends is judged and reported. Its samples have every measure that has a rule.
func TestSoak(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	samples := filepath.Join(t.TempDir(), "samples")
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	go endSoak(ctx, samples, signal)
	var out bytes.Buffer
	err := run(ctx, []string{
		"clientsim", "soak", "--for", "1h", "--every", "200ms", "--rate", "40", "--seed", "3", "--mlsd",
		testbedtest.Binary(t),
		"--samples", samples,
	}, &out, io.Discard)
	if err != nil {
		t.Fatalf("run = %v\n%s", err, out.String())
	}
	if text := out.String(); !strings.Contains(text, "every promise kept") || !strings.Contains(text, "node2") {
		t.Errorf("the table is\n%s", text)
	}
	s := readSoak(t, samples)
	if s.End == nil || s.End.Rounds == 0 || len(s.Samples) == 0 {
		t.Fatalf("%d samples, end %+v", len(s.Samples), s.End)
	}
	if missing := unmeasured(s); len(missing) > 0 {
		t.Errorf("no sample has a value of %v", missing)
	}
	for _, name := range []string{"outbox-oldest", "dead/messages", "answers/none", "answers/5xx", "rounds-failed"} {
		if _, ok := s.Samples[0].Values[name]; !ok {
			t.Errorf("%s is not in the first sample", name)
		}
	}
	for name := range s.Samples[0].Values {
		if regexp.MustCompile(`_[0-9]{8}$`).MatchString(name) {
			t.Errorf("%s is a partition, and counts alone", name)
		}
	}
}

// unmeasured returns the measures that no sample has a value of.
func unmeasured(s *soak.Record) (missing []string) {
	for _, name := range []string{
		"sent", "send/p99", "event/p50", "wal", "database", "backends", "connections", "table/messages", "index/messages",
		"rows/messages", "table/events",
		"resident/node1", "next-gc/node2", "gc-percent/node1", "goroutines/node1", "files/node2", "cpu/node1", "cpu/database",
		"cpu/load", "resident/load",
		"lag-count/node1", "answers/2xx", "rounds",
	} {
		if !slices.ContainsFunc(s.Samples, func(at soak.Sample) bool { return at.Values[name] > 0 }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// endSoak sends the signal when the samples have every measure, or after a minute.
func endSoak(ctx context.Context, file string, signal func()) {
	defer signal()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		whole := text[:bytes.LastIndexByte(text, '\n')+1]
		if s, err := soak.Read(bytes.NewReader(whole)); err == nil && len(unmeasured(s)) == 0 {
			return
		}
	}
}

func readSoak(t *testing.T, name string) *soak.Record {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s, err := soak.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
