package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// maxAnswer is how many bytes of a collector's answer are read.
const maxAnswer = 64 << 10

// exporter is an sdk.SpanExporter that sends spans as OTLP/HTTP in JSON. OpenTelemetry's own
// exporter links gRPC and protobuf.
type exporter struct {
	url    string
	header http.Header
	client *http.Client
}

// newExporter returns an exporter. OTEL_EXPORTER_OTLP_HEADERS has headers for the collector.
// OTEL_EXPORTER_OTLP_TRACES_HEADERS has headers only for traces.
func newExporter(url string) (*exporter, error) {
	e := &exporter{url: url, header: http.Header{}, client: &http.Client{Timeout: exportTimeout}}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		if err := addHeaders(e.header, os.Getenv(name)); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	e.header.Set("Content-Type", "application/json")
	return e, nil
}

// addHeaders adds a list of headers such as "authorization=Bearer%20secret,tenant=a". An error does
// not quote the list.
func addHeaders(h http.Header, list string) error {
	for i, entry := range strings.Split(list, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		name, escaped, found := strings.Cut(entry, "=")
		value, err := url.PathUnescape(strings.TrimSpace(escaped))
		if name = strings.TrimSpace(name); name == "" || !found || err != nil {
			return fmt.Errorf("entry %d is not name=value, with %%20 for a space", i+1)
		}
		h.Set(name, value)
	}
	return nil
}

// ExportSpans implements sdk.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	body, err := json.Marshal(request(spans))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = e.header.Clone()
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close() // read to its end, or too long
	if err != nil {
		return fmt.Errorf("read the collector's answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answers %s", resp.Status)
	}
	return rejected(answer)
}

// rejected returns an error if the collector's answer says that it took only a part of the spans.
// An answer that is not JSON counts as success.
func rejected(answer []byte) error {
	var said struct {
		PartialSuccess struct {
			RejectedSpans json.RawMessage `json:"rejectedSpans"` // a number, or a string with a number
			ErrorMessage  string          `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &said) != nil {
		return nil
	}
	if n, err := strconv.Atoi(strings.Trim(string(said.PartialSuccess.RejectedSpans), `"`)); err != nil || n == 0 {
		return nil
	}
	return fmt.Errorf("the collector rejects spans: %s", said.PartialSuccess.ErrorMessage)
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

type object = map[string]any

// request returns OTLP's ExportTraceServiceRequest. All spans belong to one resource and scope.
func request(spans []sdk.ReadOnlySpan) object {
	var all []object
	for _, s := range spans {
		all = append(all, encode(s))
	}
	return object{"resourceSpans": []object{{
		"resource":   object{"attributes": attributes(spans[0].Resource().Attributes())},
		"scopeSpans": []object{{"scope": object{"name": spans[0].InstrumentationScope().Name}, "spans": all}},
	}}}
}

// encode returns a span in the form of OTLP. The numbers of span kinds are those of the SDK.
func encode(s sdk.ReadOnlySpan) object {
	o := object{
		"traceId": s.SpanContext().TraceID(), "spanId": s.SpanContext().SpanID(),
		"flags": flags(s.SpanContext(), s.Parent()),
		"name":  s.Name(), "kind": int(s.SpanKind()),
		"startTimeUnixNano": nanoseconds(s.StartTime()), "endTimeUnixNano": nanoseconds(s.EndTime()),
		"attributes": attributes(s.Attributes()),
	}
	if s.Parent().SpanID().IsValid() {
		o["parentSpanId"] = s.Parent().SpanID()
	}
	if s.Status().Code == codes.Error {
		o["status"] = object{"code": 2}
	}
	var links []object
	for _, l := range s.Links() {
		c := l.SpanContext
		links = append(links, object{"traceId": c.TraceID(), "spanId": c.SpanID(), "flags": flags(c, c)})
	}
	if len(links) > 0 {
		o["links"] = links
	}
	return o
}

// flags returns the trace's flags. They also say whether the parent, or the linked span, is known
// and belongs to another process.
func flags(c, other trace.SpanContext) int {
	const known, remote = 1 << 8, 1 << 9
	if other.IsRemote() {
		return int(c.TraceFlags()) | known | remote
	}
	return int(c.TraceFlags()) | known
}

// nanoseconds writes a time. In OTLP's JSON, 64-bit numbers are strings.
func nanoseconds(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// attributes returns the attributes that Span sets: texts and whole numbers.
func attributes(all []attribute.KeyValue) []object {
	encoded := []object{}
	for _, a := range all {
		value := object{"stringValue": a.Value.String()}
		if a.Value.Type() == attribute.INT64 {
			value = object{"intValue": a.Value.String()}
		}
		encoded = append(encoded, object{"key": a.Key, "value": value})
	}
	return encoded
}
