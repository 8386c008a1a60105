package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// otlpSpan is a span in OTLP's JSON.
type otlpSpan struct {
	TraceID      string `json:"traceId"`
	SpanID       string `json:"spanId"`
	ParentSpanID string `json:"parentSpanId"`
	TraceState   string `json:"traceState"`
	Name         string `json:"name"`
	Kind         int    `json:"kind"`
	Attributes   []any  `json:"attributes"`
	Links        []any  `json:"links"`
}

// traces is a collector that keeps the spans that it gets.
type traces struct {
	*httptest.Server
	mu    sync.Mutex // guards spans
	spans []otlpSpan
}

func newTraces(t *testing.T) *traces {
	t.Helper()
	c := &traces{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var req struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []otlpSpan } }
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range req.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// of returns the spans of a trace.
func (c *traces) of(trace string) (spans []otlpSpan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.TraceID == trace {
			spans = append(spans, s)
		}
	}
	return spans
}

// tree writes the spans below a parent, one a line, the children indented. Equal lines are written
// once.
func tree(spans []otlpSpan, parent string, indent string) string {
	var lines []string
	for _, s := range spans {
		if s.ParentSpanID != parent {
			continue
		}
		if line := indent + s.Name + "\n" + tree(spans, s.SpanID, indent+"  "); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// hook is a webhook that keeps the headers of its calls.
type hook struct {
	*httptest.Server
	calls chan http.Header
}

func newHook(t *testing.T) hook {
	t.Helper()
	h := hook{calls: make(chan http.Header, 10)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var call struct{ Challenge string }
		if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
			t.Error(err)
		}
		if call.Challenge == "" {
			h.calls <- r.Header
		}
		_, _ = io.WriteString(rw, call.Challenge) // the server notices what is missing
	}))
	t.Cleanup(h.Close)
	return h
}

// A message is one trace, from the request to the call of a device. No span says who sent it, or
// where. Finding S9: the device's webhook gets no id of the trace. Else the owners of two webhooks
// could see that they got the same message, and the sender's client could choose what they see.
func TestTraceOfMessage(t *testing.T) {
	t.Parallel()
	w, c, h := newWorld(t), newTraces(t), newHook(t)
	s := boot(t, nil, w.flags("--database-url", pgtest.URL(t), "--allow-loopback=true",
		"--traces-url", c.URL+"/v1/traces", "--traces-sample", "1")...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	convo := alice.create(bob)
	bob.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: convo.id}).must().ok()
	url := h.URL + "/"
	bob.procedure(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: &url}).must().ok()
	events := alice.stream()
	trace, parent := strings.Repeat("ab", 16), strings.Repeat("cd", 8)
	in := alice.message(convo, "hello")
	send := alice.procedure(mlsapi.NSIDSendMessage, in)
	send.header = http.Header{"Traceparent": {"00-" + trace + "-" + parent + "-01"}}
	send.must().ok()
	called := <-h.calls
	awaitMessage(t, events)
	s.stop() // sends the spans that wait

	spans := c.of(trace)
	want := `blue.catbird.mls.sendMessage
  append
    batch
      connection
      statement
    event
    push fan-out
      push
        connection
        push call
        statement
      statement
  auth
`
	if got := tree(spans, parent, ""); got != want {
		t.Errorf("the trace is\n%s, want\n%s", got, want)
	}
	if text := fmt.Sprint(called); strings.Contains(text, "Trace") || strings.Contains(text, trace) {
		t.Errorf("the device got %s", text)
	}
	for _, private := range []string{"did:", convo.id, *in.IdempotencyKey, alice.did().String()} {
		if text := fmt.Sprint(spans); strings.Contains(text, private) {
			t.Errorf("the spans say %q", private)
		}
	}
}

// Hostile headers do no harm: each request is answered, and its trace is one that the server began.
// With traces, a scrape in the OpenMetrics format names one for each range of latencies.
func TestHostileTraceparent(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t), newTraces(t)
	s := boot(t, nil, w.flags("--database-url", pgtest.URL(t), "--traces-url", c.URL+"/v1/traces", "--traces-sample",
		"1")...)
	w.use(s.admin, s.public)
	alice := w.user()
	for _, header := range []string{"00", strings.Repeat("f", 20_000),
		"00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("0", 16) + "-01", "\xff\xfe", "did:plc:abc"} {
		q := alice.query(mlsapi.NSIDGetConvos)
		q.header = http.Header{"Traceparent": {header}, "Tracestate": {strings.Repeat("a=b,", 1000)}}
		q.must().ok()
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close() // read to its end
	exemplar := regexp.MustCompile(`mlsd_request_seconds_bucket\{nsid="blue.catbird.mls.getConvos",le="[^"]+"\} \d+ # ` +
		`\{trace_id="([0-9a-f]{32})"\}`)
	if !exemplar.Match(page) {
		t.Error("no latency has the id of a trace")
	}
	s.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	requests, lookups := 0, 0
	for _, span := range c.spans {
		if span.Name == "look-up" {
			lookups++
		}
		if span.Name == mlsapi.NSIDGetConvos {
			requests++
			if span.ParentSpanID != "" || span.TraceState != "" {
				t.Errorf("the span has the parent %s and the state %q", span.ParentSpanID, span.TraceState)
			}
		}
	}
	if requests != 5 || lookups != 1 {
		t.Errorf("%d requests and %d look-ups are traced, want 5 and 1", requests, lookups)
	}
}
