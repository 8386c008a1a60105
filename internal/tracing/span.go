package tracing

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Span is a piece of work. The zero Span stands for no span, and its methods do nothing.
type Span struct{ span trace.Span }

// Traced reports whether there is a span.
func (s Span) Traced() bool { return s.span != nil }

// TraceID returns the id of the span's trace, in hexadecimal, or "".
func (s Span) TraceID() string {
	if s.span == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Text sets an attribute. The value must never come from a client.
func (s Span) Text(name, value string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(name, value))
	}
}

// Number sets an attribute.
func (s Span) Number(name string, value int) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int(name, value))
	}
}

// Failed records that the work failed, with the name of the error. It does not record the error's
// text, because this can quote a client.
func (s Span) Failed(name string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String("error.type", name))
		s.span.SetStatus(codes.Error, "")
	}
}

// End ends the span now.
func (s Span) End() {
	if s.span != nil {
		s.span.End()
	}
}

// EndAt ends the span at the given time.
func (s Span) EndAt(at time.Time) {
	if s.span != nil {
		s.span.End(trace.WithTimestamp(at))
	}
}
