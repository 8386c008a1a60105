package tracing

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exported is a body that a collector gets.
type exported struct {
	ResourceSpans []struct {
		Resource   struct{ Attributes []any }
		ScopeSpans []struct{ Spans []map[string]any }
	}
}

// send sends a trace of two spans to a collector, and returns what it got. The spans can come in
// two requests.
func send(t *testing.T, answer http.HandlerFunc) (header http.Header, bodies []exported, tracer *Tracer) {
	t.Helper()
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body exported
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		header, bodies = r.Header, append(bodies, body)
		answer(w, r)
	}))
	defer collector.Close()
	tracer, err := New(Config{URL: collector.URL, Share: 1, Version: "1.2.3", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	parent := http.Header{"Traceparent": {"00-" + strings.Repeat("ab", 16) + "-" + strings.Repeat("cd", 8) + "-01"}}
	ctx, request := tracer.Request(t.Context(), "request", parent)
	_, other := tracer.Request(t.Context(), "other", nil)
	_, call := Shared(ctx, "call", 2, func(i int) Span { return []Span{request, other}[i] })
	call.Text("server", `a "b"`)
	call.Number("rows", 7)
	call.Failed("40001")
	call.End()
	request.End()
	if err := tracer.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return header, bodies, tracer
}

// The body is OTLP's JSON: ids in hexadecimal, 64-bit numbers as strings, enumerations as numbers.
func TestOTLP(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret, tenant=a")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "tenant=b")
	header, bodies, _ := send(t, func(http.ResponseWriter, *http.Request) {})
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Authorization": "Bearer secret", "Tenant": "b",
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	version := map[string]any{"key": "service.version", "value": map[string]any{"stringValue": "1.2.3"}}
	if diff := cmp.Diff(version, bodies[0].ResourceSpans[0].Resource.Attributes[2]); diff != "" {
		t.Errorf("resource (-want +got)\n%s", diff)
	}
	var spans []map[string]any
	for _, body := range bodies {
		spans = append(spans, body.ResourceSpans[0].ScopeSpans[0].Spans...)
	}
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	call, request := spans[0], spans[1]
	for _, s := range spans {
		for _, name := range []string{"startTimeUnixNano", "endTimeUnixNano"} {
			if text, ok := s[name].(string); !ok || len(text) != 19 {
				t.Errorf("%s: %v", name, s[name])
			}
			delete(s, name)
		}
	}
	trace := strings.Repeat("ab", 16)
	link := call["links"].([]any)[0].(map[string]any)
	want := map[string]any{
		"traceId": trace, "spanId": call["spanId"], "parentSpanId": request["spanId"],
		"name": "call", "kind": 1.0, "flags": 257.0,
		"attributes": []any{
			map[string]any{"key": "server", "value": map[string]any{"stringValue": `a "b"`}},
			map[string]any{"key": "rows", "value": map[string]any{"intValue": "7"}},
			map[string]any{"key": "error.type", "value": map[string]any{"stringValue": "40001"}},
		},
		"status": map[string]any{"code": 2.0},
		"links":  []any{map[string]any{"traceId": link["traceId"], "spanId": link["spanId"], "flags": 257.0}},
	}
	if diff := cmp.Diff(want, call); diff != "" {
		t.Errorf("call (-want +got)\n%s", diff)
	}
	want = map[string]any{
		"traceId": trace, "spanId": request["spanId"], "parentSpanId": strings.Repeat("cd", 8),
		"name": "request", "kind": 2.0, "flags": 769.0, "attributes": []any{},
	}
	if diff := cmp.Diff(want, request); diff != "" {
		t.Errorf("request (-want +got)\n%s", diff)
	}
}

// What a collector answers decides what counts as sent.
func TestAnswersOfCollectors(t *testing.T) {
	t.Parallel()
	for answer, exported := range map[string]bool{
		"": true, "{}": true, "\x0a\x00": true,
		`{"partialSuccess":{}}`: true, `{"partialSuccess":{"rejectedSpans":"0","errorMessage":"slow down"}}`: true,
		`{"partialSuccess":{"rejectedSpans":"2"}}`: false, `{"partialSuccess":{"rejectedSpans":2}}`: false,
	} {
		_, _, tracer := send(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
		if got := tracer.queue.exported.Load() == 2; got != exported {
			t.Errorf("%q: exported is %t", answer, got)
		}
	}
	_, _, tracer := send(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusUnauthorized) })
	if n := tracer.queue.failed.Load(); n != 2 {
		t.Errorf("401: %d spans count as failed", n)
	}
}

// Headers that cannot be read end the start. The error has no secret.
func TestBadHeaders(t *testing.T) {
	for _, list := range []string{"secret", "=secret", "a=b,name=%zzsecret"} {
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", list)
		_, err := New(Config{URL: "http://127.0.0.1:1"})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", list, err)
		}
	}
}
