package tracing

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// blocked is a collector that answers no call before release is closed.
type blocked struct {
	*tracetest.InMemoryExporter
	release chan struct{}
}

func (b blocked) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	select {
	case <-b.release:
		return b.InMemoryExporter.ExportSpans(ctx, spans)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Shutdown keeps the spans, so that the test can read them.
func (b blocked) Shutdown(context.Context) error { return nil }

func newTest(t *testing.T, share float64) (*Tracer, blocked) {
	t.Helper()
	exporter := blocked{tracetest.NewInMemoryExporter(), make(chan struct{})}
	tracer, err := newTracer(Config{Share: share, Log: slog.New(slog.DiscardHandler)}, exporter, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return tracer, exporter
}

// spans closes the tracer and returns what the collector got.
func (b blocked) spans(t *testing.T, tracer *Tracer) tracetest.SpanStubs {
	t.Helper()
	close(b.release)
	if err := tracer.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	return b.GetSpans()
}

const (
	clientTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan   = "00f067aa0ba902b7"
	clientParent = "00-" + clientTrace + "-" + clientSpan + "-01"
)

// Without a tracer, and in a request that is not traced, nothing is allocated.
func TestOffCostsNothing(t *testing.T) {
	var off *Tracer
	rarely, exporter := newTest(t, 0)
	defer exporter.spans(t, rarely)
	header := http.Header{header: {clientParent}}
	convo, batch := uuid.New(), &pgx.Batch{}
	for name, tracer := range map[string]*Tracer{"off": off, "not in the sample": rarely} {
		allocations := testing.AllocsPerRun(100, func() {
			ctx, request := tracer.Request(t.Context(), "request", header)
			ctx, inner := Start(ctx, "inner")
			spans := [...]Span{request, inner}
			_, shared := Shared(ctx, "batch", len(spans), func(i int) Span { return spans[i] })
			_, next := Follow(Detached(ctx), "next", shared)
			EndStatement(StartBatch(ctx, batch), nil)
			tracer.Wrote(convo, 1, request)
			tracer.WriterOf(convo, 1).End()
			shared.Number("n", 1)
			inner.Failed("error")
			next.End()
			inner.End()
			request.EndAt(time.Time{})
		})
		if allocations != 0 {
			t.Errorf("%s: %v allocations", name, allocations)
		}
	}
}

// A client's traceparent gives a trace its id and its parent. Anything else in that header is
// ignored.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		header []string
		kept   bool
	}{
		"of a client":            {[]string{clientParent}, true},
		"not sampled there":      {[]string{strings.TrimSuffix(clientParent, "1") + "0"}, true},
		"none":                   {nil, false},
		"empty":                  {[]string{""}, false},
		"two":                    {[]string{clientParent, clientParent}, false},
		"zeros":                  {[]string{"00-00000000000000000000000000000000-0000000000000000-01"}, false},
		"forbidden version":      {[]string{"ff" + clientParent[2:]}, false},
		"capitals":               {[]string{strings.ToUpper(clientParent)}, false},
		"text":                   {[]string{"did:plc:abc\r\nX-Evil: 1"}, false},
		"very long":              {[]string{strings.Repeat("0", 1<<16)}, false},
		"long, after a good one": {[]string{clientParent + strings.Repeat("0", 1<<16)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tracer, exporter := newTest(t, 1)
			_, s := tracer.Request(t.Context(), "request", http.Header{header: tc.header, "Tracestate": {"a=did:plc:abc"}})
			s.End()
			got := exporter.spans(t, tracer)
			if len(got) != 1 {
				t.Fatalf("%d spans", len(got))
			}
			span := got[0]
			if kept := span.SpanContext.TraceID().String() == clientTrace &&
				span.Parent.SpanID().String() == clientSpan; kept != tc.kept {
				t.Errorf("the span is %s below %s", span.SpanContext.TraceID(), span.Parent.SpanID())
			}
			if !tc.kept && span.Parent.IsValid() {
				t.Errorf("the span has the parent %s", span.Parent.SpanID())
			}
			if state := span.SpanContext.TraceState().String(); state != "" {
				t.Errorf("tracestate %q", state)
			}
		})
	}
}

// An unauthenticated caller who asks for traces gets no more of them than others, whatever id it
// chooses.
func TestUnauthenticatedDoNotSample(t *testing.T) {
	t.Parallel()
	tracer, exporter := newTest(t, .1)
	defer exporter.spans(t, tracer)
	traced := 0
	for range 1000 {
		if _, s := tracer.Request(t.Context(), "request", http.Header{header: {clientParent}}); s.Traced() {
			traced++
		}
	}
	if traced == 0 || traced > 200 {
		t.Errorf("%d of 1000 requests are traced at a tenth", traced)
	}
}

// A collector that hangs makes nobody wait. What does not fit is dropped and counted, and the rest
// arrives.
func TestCollectorHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tracer, exporter := newTest(t, 1)
		const more = 100
		for range maxExport {
			_, s := tracer.Request(t.Context(), "request", nil)
			s.End()
		}
		synctest.Wait() // the first call of the collector has begun
		for range maxQueued - maxExport + more {
			_, s := tracer.Request(t.Context(), "request", nil)
			s.End()
		}
		if dropped := tracer.queue.dropped.Load(); dropped != more {
			t.Errorf("%d spans were dropped, want %d", dropped, more)
		}
		if got := exporter.spans(t, tracer); len(got) != maxQueued {
			t.Errorf("the collector got %d spans, want %d", len(got), maxQueued)
		}
		if n := tracer.queue.exported.Load(); n != maxQueued {
			t.Errorf("%d spans count as exported", n)
		}
	})
}

// A collector that does not answer delays the end of the server by its timeout only.
func TestCollectorNeverAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tracer, _ := newTest(t, 1)
		_, s := tracer.Request(t.Context(), "request", nil)
		s.End()
		if err := tracer.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := tracer.queue.failed.Load(); n != 1 {
			t.Errorf("%d spans count as failed", n)
		}
	})
}

// The collector's URL needs no path.
func TestURL(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths <- r.URL.Path }))
	defer collector.Close()
	for path, want := range map[string]string{"": "/v1/traces", "/": "/v1/traces", "/otlp/v1/traces": "/otlp/v1/traces"} {
		tracer, err := New(Config{URL: collector.URL + path, Share: 1, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		_, s := tracer.Request(t.Context(), "request", nil)
		s.End()
		if err := tracer.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := <-paths; got != want {
			t.Errorf("%q: spans are sent to %q", path, got)
		}
	}
}

// Work that requests share is below the first of them, and linked with the others.
func TestShared(t *testing.T) {
	t.Parallel()
	tracer, exporter := newTest(t, 1)
	_, first := tracer.Request(t.Context(), "first", nil)
	_, second := tracer.Request(t.Context(), "second", nil)
	all := []Span{{}, first, second}
	_, batch := Shared(t.Context(), "batch", len(all), func(i int) Span { return all[i] })
	for _, s := range []Span{batch, first, second} {
		s.End()
	}
	spans := map[string]tracetest.SpanStub{}
	for _, s := range exporter.spans(t, tracer) {
		spans[s.Name] = s
	}
	if spans["batch"].Parent.SpanID() != spans["first"].SpanContext.SpanID() {
		t.Error("the batch is not below the first request")
	}
	linked := func(from, to string) bool {
		links := spans[from].Links
		return len(links) == 1 && links[0].SpanContext.Equal(trace.SpanContext(spans[to].SpanContext))
	}
	if !linked("batch", "second") || !linked("second", "batch") || len(spans["first"].Links) > 0 {
		t.Errorf("links: %v, %v, %v", spans["batch"].Links, spans["first"].Links, spans["second"].Links)
	}
}

// What goes on after a request is not in its trace.
func TestDetached(t *testing.T) {
	t.Parallel()
	tracer, exporter := newTest(t, 1)
	defer exporter.spans(t, tracer)
	ctx, s := tracer.Request(t.Context(), "request", nil)
	defer s.End()
	if _, inner := Start(Detached(ctx), "inner"); inner.Traced() {
		t.Error("it is")
	}
}

// A node remembers traced writes for a minute, and so many of them.
func TestCauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tracer, exporter := newTest(t, 1)
		defer exporter.spans(t, tracer)
		_, s := tracer.Request(t.Context(), "request", nil)
		convo := uuid.New()
		tracer.Wrote(convo, 7, s)
		for seq, found := range map[int64]bool{0: true, 7: true, 6: false, 8: false} {
			if tracer.WriterOf(convo, seq).Traced() != found {
				t.Errorf("%d is found: %t", seq, !found)
			}
		}
		time.Sleep(causeFor + 1)
		if tracer.WriterOf(convo, 7).Traced() {
			t.Error("it is found after its time")
		}
		for range 3 * maxCauses {
			tracer.Wrote(uuid.New(), 1, s)
		}
		if n := tracer.causes.Len(); n != maxCauses {
			t.Errorf("%d writes are remembered", n)
		}
	})
}

// The summary of statements has no comments, and one line.
func TestBeginning(t *testing.T) {
	t.Parallel()
	if got := beginning("-- why\n\tSELECT a -- it is\n\tFROM b"); got != "SELECT a FROM b" {
		t.Errorf("%q", got)
	}
	if got := beginning(strings.Repeat("SELECT ", 100)); len(got) != maxBeginning {
		t.Errorf("%q", got)
	}
}

// A statement that fails has the SQLSTATE, and not the text of the error.
func TestFailedStatement(t *testing.T) {
	t.Parallel()
	tracer, exporter := newTest(t, 1)
	ctx, s := tracer.Request(t.Context(), "request", nil)
	EndStatement(startStatements(ctx, []string{"SELECT 1"}), errors.New("of did:plc:abc"))
	EndStatement(ctx, nil) // there is none
	s.End()
	got := exporter.spans(t, tracer)
	if len(got) != 2 || got[0].Name != "statement" {
		t.Fatalf("spans %+v", got)
	}
	for _, a := range got[0].Attributes {
		if strings.Contains(a.Value.String(), "did:") {
			t.Errorf("%s is %s", a.Key, a.Value.String())
		}
	}
}
