package soak

import (
	"net/http"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
)

// watch is the transport of all clients. It times messages and counts answers. It also collects the
// ages of events.
type watch struct {
	wire *http.Transport

	mu      sync.Mutex         // guards what follows
	sends   *load.Latency      // µs until an answer, since the last take
	events  *load.Latency      // µs from createdAt until arrival, since the last take
	answers map[string]float64 // since the start, by class of status; "none": no answer
	sent    float64            // messages that were answered with success, since the start
}

func newWatch(wire *http.Transport) *watch {
	return &watch{wire: wire, sends: load.NewLatency(), events: load.NewLatency(), answers: map[string]float64{}}
}

// RoundTrip implements http.RoundTripper.
func (w *watch) RoundTrip(req *http.Request) (*http.Response, error) {
	begun := time.Now()
	resp, err := w.wire.RoundTrip(req)
	took := time.Since(begun)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.answers["none"]++
		return nil, err
	}
	w.answers[strconv.Itoa(resp.StatusCode/100)+"xx"]++
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		w.answers[strconv.Itoa(resp.StatusCode)]++
	}
	if path.Base(req.URL.Path) == mlsapi.NSIDSendMessage && resp.StatusCode/100 == 2 {
		w.sent++
		w.sends.Record(took)
	}
	return resp, nil
}

// CloseIdleConnections makes World.CloseIdle work.
func (w *watch) CloseIdleConnections() { w.wire.CloseIdleConnections() }

// event takes the age of an event that has come.
func (w *watch) event(age time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events.Record(age)
}

// take adds the counts, and the latencies in seconds since the last take, to a sample's values.
func (w *watch) take(values map[string]float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	values["sent"] = w.sent
	for _, class := range []string{"2xx", "4xx", "5xx", "429", "503", "none"} {
		values["answers/"+class] = w.answers[class]
	}
	for name, h := range map[string]*load.Latency{"send": w.sends, "event": w.events} {
		values[name+"/count"] = float64(h.TotalCount())
		if h.TotalCount() > 0 {
			values[name+"/p50"] = float64(h.ValueAtQuantile(50)) / 1e6
			values[name+"/p99"] = float64(h.ValueAtQuantile(99)) / 1e6
		}
		h.Reset()
	}
}

// counters counts rounds.
type counters struct{ played, failed atomic.Int64 }
