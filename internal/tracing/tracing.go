// Package tracing makes OpenTelemetry spans of a sample of the requests, and of the work that they
// cause, and sends them to a collector over OTLP/HTTP.
//
// Only the server decides, at random, which requests are traced. A client's traceparent gives a
// trace its id and its parent, but its flag "sampled" does not count. Otherwise an unauthenticated
// caller could make the server trace everything. Spans below a request exist only if the request is
// traced. So an untraced request costs one random number, and nothing with a nil *Tracer.
//
// A span has names of methods, statements and errors, and counts. It contains no DID, no id of a
// convo, no key and no content.
package tracing

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	randv2 "math/rand/v2"
	"net/http"
	"net/url"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// header is the W3C header that carries a trace's id and the parent span's.
const header = "Traceparent"

// exportTimeout bounds one call of the collector.
const exportTimeout = 5 * time.Second

// Config says what is traced, and where the spans go.
type Config struct {
	URL     string  // address of the collector: http://127.0.0.1:4318/v1/traces; the path can be left out
	Share   float64 // share of requests that are traced, from 0 to 1
	Version string  // version of the program
	Log     *slog.Logger
}

// Tracer makes spans. A nil *Tracer makes no spans.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	share    float64
	queue    *queue
	causes   *lru.Cache[any, cause]
	calls    *lru.Cache[any, cause]
}

// New returns a tracer, or nil if there is no URL. The caller closes it.
func New(cfg Config) (*Tracer, error) {
	if cfg.URL == "" {
		return nil, nil
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("read the collector's URL: %w", err)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces" // the path that OTLP/HTTP defines
	}
	exporter, err := newExporter(u.String())
	if err != nil {
		return nil, err
	}
	return newTracer(cfg, exporter, exportEvery)
}

func newTracer(cfg Config, exporter sdk.SpanExporter, every time.Duration) (*Tracer, error) {
	causes, err := lru.New[any, cause](maxCauses)
	if err != nil {
		return nil, fmt.Errorf("make the memory of traced writes: %w", err)
	}
	calls, err := lru.New[any, cause](maxCauses)
	if err != nil {
		return nil, fmt.Errorf("make the memory of traced calls: %w", err)
	}
	t := &Tracer{share: cfg.Share, queue: &queue{SpanExporter: exporter, log: cfg.Log}, causes: causes, calls: calls}
	t.provider = sdk.NewTracerProvider(
		sdk.WithSampler(sdk.AlwaysSample()), // a span is made only to be sent
		sdk.WithSpanProcessor(t.queue.processor(every)),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "mlsd"), attribute.String("service.version", cfg.Version),
			attribute.String("service.instance.id", rand.Text()))),
	)
	t.tracer = t.provider.Tracer("mlsd")
	return t, nil
}

// Close sends the waiting spans, and stops. If they could not be sent in time, it returns ctx's
// error.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Request begins the span of an HTTP request, if the request is to be traced. If the client sent a
// valid traceparent, that becomes the parent.
func (t *Tracer) Request(ctx context.Context, name string, h http.Header) (context.Context, Span) {
	if t == nil || randv2.Float64() >= t.share {
		return ctx, Span{}
	}
	if parents := h[header]; len(parents) == 1 {
		carrier := propagation.MapCarrier{"traceparent": parents[0]}
		ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	}
	ctx, s := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, Span{s}
}

// Start begins a span below the span of ctx. If ctx has no span, Start begins none.
func Start(ctx context.Context, name string) (context.Context, Span) {
	return below(ctx, name, trace.SpanKindInternal)
}

// StartCall begins the span of a call of another server.
func StartCall(ctx context.Context, name string) (context.Context, Span) {
	return below(ctx, name, trace.SpanKindClient)
}

func below(ctx context.Context, name string, kind trace.SpanKind) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, Span{}
	}
	ctx, s := parent.TracerProvider().Tracer("mlsd").Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{s}
}

// Of returns the span of ctx, or the zero Span if ctx has none.
func Of(ctx context.Context) Span {
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		return Span{s}
	}
	return Span{}
}

// Follow begins a span below cause, which may have ended. If cause is the zero Span, Follow begins
// none.
func Follow(ctx context.Context, name string, cause Span) (context.Context, Span) {
	if cause.span == nil {
		return ctx, Span{}
	}
	tracer := cause.span.TracerProvider().Tracer("mlsd")
	ctx, s := tracer.Start(trace.ContextWithSpan(ctx, cause.span), name)
	return ctx, Span{s}
}

// Shared begins the span of work that n requests share. of returns the spans of the requests. The
// new span is below the first traced request, and is linked to the others, which get a link to it.
// If no request is traced, Shared begins no span.
func Shared(ctx context.Context, name string, n int, of func(i int) Span) (context.Context, Span) {
	var first Span
	var others []Span
	for i := range n {
		switch s := of(i); {
		case s.span == nil:
		case first.span == nil:
			first = s
		default:
			others = append(others, s)
		}
	}
	ctx, shared := Follow(ctx, name, first)
	for _, s := range others {
		s.span.AddLink(trace.Link{SpanContext: shared.span.SpanContext()})
		shared.span.AddLink(trace.Link{SpanContext: s.span.SpanContext()})
	}
	return ctx, shared
}

// Detached returns ctx without its span, for work that continues after the span has ended.
func Detached(ctx context.Context) context.Context {
	if !Of(ctx).Traced() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, nil)
}
