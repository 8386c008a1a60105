package tracing

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

const (
	maxQueued   = 2048            // spans that wait; further ones are dropped
	maxExport   = 512             // spans of one call of the collector
	exportEvery = 2 * time.Second // how often fewer are sent
)

// queue is an sdk.SpanProcessor. It sends spans in the background and never makes a request wait:
// what does not fit is dropped, and counted.
type queue struct {
	exporter sdk.SpanExporter
	every    time.Duration
	log      *slog.Logger
	spans    chan sdk.ReadOnlySpan
	stop     chan struct{}
	stopOnce sync.Once
	stopped  chan struct{} // closed when nothing waits any more, after stop

	exported, dropped, failed atomic.Int64
}

func newQueue(exporter sdk.SpanExporter, every time.Duration, log *slog.Logger) *queue {
	q := &queue{
		exporter: exporter, every: every, log: log,
		spans: make(chan sdk.ReadOnlySpan, maxQueued), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go q.run()
	return q
}

// OnStart implements sdk.SpanProcessor.
func (q *queue) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd implements sdk.SpanProcessor.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	select {
	case q.spans <- s:
	default:
		q.dropped.Add(1)
	}
}

// ForceFlush implements sdk.SpanProcessor. Only Shutdown flushes.
func (q *queue) ForceFlush(context.Context) error { return nil }

// Shutdown implements sdk.SpanProcessor. It sends what waits.
func (q *queue) Shutdown(ctx context.Context) error {
	q.stopOnce.Do(func() { close(q.stop) })
	select {
	case <-q.stopped:
	case <-ctx.Done():
		return ctx.Err()
	}
	return q.exporter.Shutdown(ctx)
}

// run sends spans until Shutdown, in batches.
func (q *queue) run() {
	defer close(q.stopped)
	tick := time.NewTicker(q.every)
	defer tick.Stop()
	for stopping := false; !stopping; {
		var batch []sdk.ReadOnlySpan
		for waiting := true; waiting && len(batch) < maxExport; {
			select {
			case s := <-q.spans:
				batch = append(batch, s)
			case <-tick.C:
				waiting = false
			case <-q.stop:
				stopping, waiting = true, false
			}
		}
		q.export(batch)
	}
	for len(q.spans) > 0 {
		batch := make([]sdk.ReadOnlySpan, min(len(q.spans), maxExport))
		for i := range batch {
			batch[i] = <-q.spans
		}
		q.export(batch)
	}
}

func (q *queue) export(batch []sdk.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
	defer cancel()
	if err := q.exporter.ExportSpans(ctx, batch); err != nil {
		q.failed.Add(int64(len(batch)))
		q.log.Warn("spans could not be sent to MLSD_TRACES_URL", "spans", len(batch), "error", err)
		return
	}
	q.exported.Add(int64(len(batch)))
}

// Metrics is a prometheus.Collector of what has become of the spans of t, which can be nil.
func Metrics(t *Tracer) prometheus.Collector {
	if t == nil {
		t = &Tracer{queue: &queue{}}
	}
	return spanMetrics{t.queue, prometheus.NewDesc("mlsd_trace_spans_total",
		"Spans by what has become of them: exported, dropped (too many waited), failed (the collector did not take them).",
		[]string{"outcome"}, nil)}
}

type spanMetrics struct {
	queue *queue
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (m spanMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc }

// Collect implements prometheus.Collector.
func (m spanMetrics) Collect(ch chan<- prometheus.Metric) {
	for outcome, n := range map[string]*atomic.Int64{"exported": &m.queue.exported, "dropped": &m.queue.dropped,
		"failed": &m.queue.failed} {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(n.Load()), outcome)
	}
}
