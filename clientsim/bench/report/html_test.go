package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// pageOf is the page of a report.
func pageOf(t *testing.T, r *Report) (text string, visible string) {
	t.Helper()
	return checkPage(t, r.WriteHTML)
}

// checkPage writes a page, and checks that it is valid and needs no script and no network.
func checkPage(t *testing.T, write func(io.Writer) error) (text string, visible string) {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out); err != nil {
		t.Fatal(err)
	}
	text = out.String()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var words strings.Builder
	for n := range root.Descendants() {
		switch n.Type {
		case html.TextNode:
			if n.Parent.Data != "style" {
				words.WriteString(n.Data)
			}
		case html.ElementNode:
			switch n.Data {
			case "script", "link", "img", "iframe", "object", "form":
				t.Errorf("<%s> in the page", n.Data)
			}
			for _, a := range n.Attr {
				if a.Key == "src" || a.Key == "href" || strings.HasPrefix(a.Key, "on") {
					t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
				}
			}
		}
	}
	for _, bad := range []string{"NaN", "Inf", "%!", "ZgotmplZ", "url("} {
		if strings.Contains(text, bad) {
			t.Errorf("%s in the page", bad)
		}
	}
	for rest := text; ; {
		_, after, more := strings.Cut(rest, "<svg ")
		if !more {
			break
		}
		picture, after, closed := strings.Cut(after, "</svg>")
		if !closed {
			t.Fatal("an <svg> that does not end")
		}
		wellFormed(t, "<svg "+picture+"</svg>")
		rest = after
	}
	return text, words.String()
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
}

func TestPage(t *testing.T) {
	t.Parallel()
	_, visible := pageOf(t, plausible(3, 5, threeWays...))
	for _, want := range []string{
		"Every promise kept: 0 lost, 0 doubled", "AMD EPYC 7B13", "durable: each COMMIT waits", "wal_sync_method = fdatasync", "batched ÷ alone",
		"batched ÷ ceiling", "Requests done per second", "requests/s", "Latency by percentile", "99.9 %", "Every second", "turn 3", "p99",
		"Processor time per request", "load generator", "alone, sendMessage failed: Overloaded 24, Timeout 3", "go run ./cmd/clientsim bench send",
	} {
		if !strings.Contains(visible, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

func TestPageOfManyLoads(t *testing.T) {
	t.Parallel()
	var kinds []kind
	for _, convos := range []int{1, 1000} {
		for _, k := range threeWays {
			k.load.Convos = convos
			kinds = append(kinds, k)
		}
	}
	r := plausible(2, 2, kinds...)
	r.Runs[0].Operations["getMessages"] = &Operation{Done: 3, Latency: NewLatency()}
	_, visible := pageOf(t, r)
	for _, want := range []string{
		"Requests done per second: 1 convo", "Latency by percentile: sendMessage, 1 convo", "Latency by percentile: 1,000 convos",
		"Every second: 1,000 convos",
	} {
		if !strings.Contains(visible, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// Any text may come from a server, so all text is escaped.
func TestPageEscapes(t *testing.T) {
	t.Parallel()
	const hostile = `"><script>alert('1')</script><style>*{}</style>&amp;`
	hostileKind := threeWays[0]
	hostileKind.name, hostileKind.failing = hostile, hostile
	r := plausible(1, 2, hostileKind)
	r.Scenario, r.Command = hostile, hostile
	r.Machine.CPU, r.Machine.Server, r.Database.Version = hostile, hostile, hostile
	r.Database.Settings = map[string]string{hostile: hostile, "fsync": hostile, "synchronous_commit": hostile}
	r.Verdict.Violated = []string{hostile}
	r.Runs[0].Operations[hostile] = r.Runs[0].Operations["sendMessage"]
	text, visible := pageOf(t, r)
	if n := strings.Count(text, "<style>"); n != 1 {
		t.Errorf("%d styles", n)
	}
	if !strings.Contains(visible, hostile) {
		t.Error("what was escaped cannot be read any more")
	}
}

func TestScales(t *testing.T) {
	t.Parallel()
	for _, greatest := range []float64{0.003, 1, 7, 99, 100, 24800, 3e7, math.NaN(), 0} {
		s, ticks := fromZero(greatest, 0, 100, significant)
		if s.greatest < greatest || len(ticks) < 4 || len(ticks) > 12 || s.at(ticks[len(ticks)-1].at) > 100.01 {
			t.Errorf("to %v: %+v, %d ticks", greatest, s, len(ticks))
		}
	}
	for _, test := range []struct{ least, greatest, first, last float64 }{
		{1000, 1000, 1000, 2000}, {130, 9000, 100, 10000}, {1, 6e8, 1, 1e9}, {3, 4, 2, 5}, {0, 5, 1, 10}, {math.Inf(1), 0, 1, 10},
	} {
		s, ticks := logarithmic(test.least, test.greatest, 0, 100, latencyText)
		labels := 0
		for _, tick := range ticks {
			if tick.label != "" {
				labels++
			}
		}
		if math.Abs(s.least/test.first-1) > 1e-6 || math.Abs(s.greatest/test.last-1) > 1e-6 || labels < 2 || labels > 11 {
			t.Errorf("%v to %v: %+v, %d labels", test.least, test.greatest, s, labels)
		}
		if at := s.at(s.least); at != 0 {
			t.Errorf("%v to %v begins at %v", test.least, test.greatest, at)
		}
	}
}
