package console

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mlsd/internal/nsid"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func TestDIDs(t *testing.T) {
	t.Parallel()
	const alice = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
	r := &Request{refKey: &[32]byte{1}, Query: map[string][]string{}}
	for text, want := range map[string]string{
		alice: "did:plc:ewvi…64oiz", "did:web:example.com": "did:web:exam…e.com", "did:web:a.test": "did:web:…",
		"did:erased:ab12": "did:erased:…",
		"no DID":          "no DID", "": "",
		"of " + alice + ", " + alice + "#key.":    "of did:plc:ewvi…64oiz, did:plc:ewvi…64oiz#key.",
		"did:web:localhost%3A8080:user.":          "did:web:loca…user.",
		"/did%3Aplc%3Aewvi7nxzyoun6zhxrhs64oiz?x": "/did:plc:ewvi…64oiz?x",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	ref := r.Ref(alice)
	if strings.Contains(ref, "ewvi") || ref != r.Ref(alice) || ref == r.Ref(alice+"2") {
		t.Errorf("the reference %s", ref)
	}
	for text, want := range map[string]string{ref: alice, " " + alice + " ": alice, "": "", "x": "", ref + "AA": "",
		(&Request{refKey: &[32]byte{2}}).Ref(alice): ""} {
		r.Query.Set("did", text)
		if got, err := r.ReadDID("did"); got.String() != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	full := &Request{Full: true}
	if got := full.Text("of " + alice); got != "of "+alice {
		t.Errorf("in full: %s", got)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	r := &Request{Now: noon}
	at := noon.Add(-3 * time.Minute)
	want := `<time datetime="2026-11-23T11:57:00Z">2026-11-23 11:57:00</time> <span class="age">3 min ago</span>`
	var missing *time.Time
	for name, c := range map[string]struct {
		at   any
		want string
	}{"a moment": {at, want}, "a pointer": {&at, want}, "in another zone": {at.In(time.FixedZone("", 3600)), want},
		"none": {missing, "–"}, "zero": {time.Time{}, "–"}} {
		if got := string(r.Time(c.at)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for d, want := range map[time.Duration]string{time.Second: "1 s ago", -90 * time.Minute: "in 1 h",
		47 * time.Hour: "47 h ago", 50 * time.Hour: "2 d ago"} {
		if got := Age(d); got != want {
			t.Errorf("%s: %s", d, got)
		}
	}
}

// After the log-in, a browser stays on the listener.
func TestLocalPath(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"/queues?after=1": "/queues?after=1", "/": "/", "": "/", "queues": "/", "//evil.example": "/",
		"https://evil.example/": "/", `/\evil.example`: "/",
		"/\t/evil.example": "/", "javascript:alert(1)": "/", "///evil.example": "/", "/x#y": "/x",
	} {
		if got := localPath(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// registered is a registry with some of a node's metrics.
type registered struct {
	*prometheus.Registry
	uses, requests *prometheus.CounterVec
	took           *prometheus.HistogramVec
}

func newRegistered() registered {
	r := registered{
		prometheus.NewRegistry(),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: keyUses}, []string{"nsid", "outcome"}),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: requests}, []string{"nsid", "status", "error"}),
		prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: requestTime, Buckets: []float64{.1, .2, .4}},
			[]string{"nsid"}),
	}
	r.MustRegister(r.uses, r.requests, r.took)
	return r
}

// of returns the value of a line in a sample.
func (s sample) of(key, name string) float64 {
	at := 0
	for _, c := range charts() {
		for _, l := range c.Lines {
			if c.Key == key && l.Name == name {
				return s.values[at]
			}
			at++
		}
	}
	return math.NaN()
}

// Counters become rates between two samples, and histograms the quantiles of what came between.
func TestHistory(t *testing.T) {
	t.Parallel()
	r := newRegistered()
	h := newHistory(r)
	add := func(at time.Duration) {
		if err := h.add(noon.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	r.took.WithLabelValues(nsid.SendMessage).Observe(9) // before the first sample
	add(0)
	r.uses.WithLabelValues(nsid.SendMessage, "first").Add(50)
	r.uses.WithLabelValues(nsid.AddMembers, "first").Add(20)
	r.uses.WithLabelValues(nsid.AddMembers, "replay").Add(5)
	r.uses.WithLabelValues(nsid.SendMessage, "replay").Add(5)
	r.requests.WithLabelValues(nsid.SendMessage, "200", "").Add(60)
	r.requests.WithLabelValues(nsid.SendMessage, "409", "IdempotencyConflict").Add(30)
	r.requests.WithLabelValues(nsid.SendMessage, "503", "ServiceUnavailable").Add(10)
	for range 10 {
		r.took.WithLabelValues(nsid.SendMessage).Observe(.15)
	}
	r.took.WithLabelValues(nsid.GetConvos).Observe(9)
	add(10 * time.Second)
	add(20 * time.Second)
	samples := h.hour()
	if len(samples) != 2 {
		t.Fatalf("%d samples", len(samples))
	}
	for _, c := range []struct {
		key, name string
		want      float64
	}{
		{"sends", "sends", 5}, {"sends", "replays", 1}, {"sends", "conflicts", 0}, {"requests", "all", 10},
		{"requests", "refused", 3}, {"requests", "failed", 1},
		{"epochs", "commits", 2}, {"latency", "50 %", .15}, {"latency", "99 %", .199},
	} {
		if got := samples[0].of(c.key, c.name); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s, %s: %v, want %v", c.key, c.name, got, c.want)
		}
	}
	if got := samples[1].of("latency", "50 %"); !math.IsNaN(got) {
		t.Errorf("a time without requests: %v", got)
	}
	live, err := h.live(noon.Add(30 * time.Second))
	if got := live.of("sends", "sends"); err != nil || got != 0 {
		t.Errorf("live: %v, %v", got, err)
	}
}

// The history has an hour, and no more.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	h := newHistory(prometheus.NewRegistry())
	for i := range 2 * kept {
		if err := h.add(noon.Add(time.Duration(i) * step)); err != nil {
			t.Fatal(err)
		}
	}
	samples := h.hour()
	if len(samples) != kept || !samples[0].at.Equal(noon.Add(kept*step)) {
		t.Errorf("%d samples from %s on", len(samples), samples[0].at)
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	h := metric{count: 10, sum: 30, buckets: []bucket{{1, 0}, {2, 5}, {4, 9}, {math.Inf(1), 10}}}
	for q, want := range map[float64]float64{.5: 2, .25: 1.5, .7: 3, .9: 4, .99: 4} {
		if got := h.quantile(q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if got := (metric{}).quantile(.5); !math.IsNaN(got) {
		t.Errorf("of nothing: %v", got)
	}
}

// A drawing has its newest value at the right edge, and a gap where there are no values.
func TestDrawing(t *testing.T) {
	t.Parallel()
	lines := []chart{{Key: "k", Title: "T", unit: count, Lines: []line{{Name: "one"}}}}
	var samples []sample
	for i, v := range []float64{0, 5, math.NaN(), 10} {
		samples = append(samples, sample{noon.Add(time.Duration(i) * 2 * time.Minute), []float64{v}})
	}
	d := draw(lines, samples, sample{noon.Add(10 * time.Minute), []float64{3}})[0]
	if d.Top != "10" || d.Since != "10 min ago" || d.Lines[0].Now != "3" ||
		d.Lines[0].Path != "M4.0 102.0h0L74.4 60.0M215.2 18.0h0" {
		t.Errorf("%+v", d)
	}
	if want := "In the last hour: one: now 3, at most 10."; d.Spoken != want {
		t.Errorf("spoken: %s", d.Spoken)
	}
	empty := draw(lines, nil, sample{noon, []float64{math.NaN()}})[0]
	if empty.Lines[0].Now != "–" || empty.Lines[0].Path != "" || empty.Spoken != "There are no values yet." {
		t.Errorf("without values: %+v", empty)
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	var got []string
	for _, v := range []float64{0, .001, .0234, 1, 2.5, 12.34, 123.4, 12345} {
		got = append(got, perSecond(v))
	}
	for _, v := range []float64{0, .0004, .0234, 1.5, 90, 7200} {
		got = append(got, seconds(v))
	}
	got = append(got, byteSize(512), byteSize(57.7*1024*1024), number(-1234567), number(12))
	want := []string{"0/s", "<0.01/s", "0.02/s", "1/s", "2.50/s", "12.3/s", "123/s", "12,345/s", "0 s", "<1 ms", "23.4 ms",
		"1.50 s", "1 min", "2 h",
		"512 B", "57.7 MiB", "-1,234,567", "12"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A message that was sent twice is shown, and one is bad.
func TestMessagesSentTwice(t *testing.T) {
	t.Parallel()
	for _, n := range []float64{0, 1} {
		r := reading{families: map[string][]metric{"mlsd_messages_repeated": {{value: n}}}}
		i := slices.IndexFunc(facts(r), func(f fact) bool { return f.Key == "mlsd_messages_repeated" })
		if i < 0 {
			t.Fatal("the page Now has no such figure")
		}
		if f := facts(r)[i]; f.Value != count(n) || f.Bad != (n > 0) {
			t.Errorf("%v: %+v", n, f)
		}
	}
}
