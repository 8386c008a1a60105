package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

const (
	maxQueued   = 2048            // spans that wait or are being sent; further spans are dropped
	maxExport   = 512             // spans in one call of the collector
	exportEvery = 2 * time.Second // how often fewer spans are sent
)

// queue is an sdk.SpanExporter that counts sent, failed and dropped spans. The SDK's batch
// processor calls it in the background.
type queue struct {
	sdk.SpanExporter
	log *slog.Logger

	waiting                   atomic.Int64 // waiting spans, including those of a running call
	exported, dropped, failed atomic.Int64
}

// bounded is an sdk.SpanProcessor that never makes a request wait. If a span does not fit into the
// queue, it drops and counts the span. The SDK's processor would drop spans without a count.
type bounded struct {
	sdk.SpanProcessor
	queue *queue
}

// processor returns the processor that sends spans through q.
func (q *queue) processor(every time.Duration) sdk.SpanProcessor {
	return bounded{sdk.NewBatchSpanProcessor(q, sdk.WithMaxQueueSize(maxQueued), sdk.WithMaxExportBatchSize(maxExport),
		sdk.WithBatchTimeout(every), sdk.WithExportTimeout(exportTimeout)), q}
}

// OnEnd implements sdk.SpanProcessor.
func (b bounded) OnEnd(s sdk.ReadOnlySpan) {
	if b.queue.waiting.Add(1) > maxQueued {
		b.queue.waiting.Add(-1)
		b.queue.dropped.Add(1)
		return
	}
	b.SpanProcessor.OnEnd(s)
}

// ExportSpans implements sdk.SpanExporter. A failure is logged here, and is no error for the SDK.
func (q *queue) ExportSpans(ctx context.Context, batch []sdk.ReadOnlySpan) error {
	n := int64(len(batch))
	defer q.waiting.Add(-n)
	if err := q.SpanExporter.ExportSpans(ctx, batch); err != nil {
		q.failed.Add(n)
		q.log.Warn("spans could not be sent to MLSD_TRACES_URL", "spans", n, "error", err)
		return nil
	}
	q.exported.Add(n)
	return nil
}

// Metrics is a prometheus.Collector of the counts of t's spans. t can be nil.
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
