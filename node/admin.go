package node

import (
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mlsd/internal/failpoint"
	"mlsd/operator"
	"mlsd/operator/console"
)

// admin is the handler of the admin listener. access decides who may use it.
func (n *Node) admin(access *operator.Access, pages *console.Console) http.Handler {
	log := n.log
	mux := http.NewServeMux()
	var handle operator.Handle = func(pattern string, level operator.Level, h http.Handler) {
		mux.Handle(pattern, access.Protect(level, h))
	}
	handle("GET /livez", operator.Open,
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, log, http.StatusOK, "ok") }))
	handle("GET /readyz", operator.Open, n.readiness())
	handle("GET /metrics", operator.Metrics,
		promhttp.HandlerFor(prometheus.Gatherers{n.reg, n.stored}, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	handle("GET /check", operator.Read, &checker{n.db.maintenance, log, n.checks, time.Now})
	handle("GET /check/clients", operator.Read, clientFaults(n.db.maintenance, log))
	handle("GET /debug/pprof/", operator.Write, http.HandlerFunc(pprof.Index))
	handle("GET /debug/pprof/profile", operator.Write, http.HandlerFunc(pprof.Profile))
	handle("GET /debug/pprof/trace", operator.Write, http.HandlerFunc(pprof.Trace))
	handle("GET /debug/pprof/symbol", operator.Write, http.HandlerFunc(pprof.Symbol))
	if n.faults != nil {
		handle("POST /failpoints", operator.Write, n.armFailpoint())
	}
	n.operator.Handle(handle)
	pages.Handle(handle)
	return mux
}

// readiness answers 200 if the server takes requests, reaches its database, and can serve with the
// schema. It sends no query: schemaWatch does.
func (n *Node) readiness() http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if fault := n.fault(); fault != "" {
			writeText(w, n.log, http.StatusServiceUnavailable, fault)
			return
		}
		text := "ok"
		if cause := n.writes.fault(); cause != "" { // reads go on, so the node stays in service
			text += ", but writes do not succeed: " + cause
		}
		if cause := n.plc.fault(); cause != "" { // so do accounts whose keys are known
			text += ", but " + cause
		}
		writeText(w, n.log, http.StatusOK, text)
	}
}

// fault says why the node is not ready, or "".
func (n *Node) fault() string {
	if !n.ready.Load() {
		return "not serving"
	}
	return n.schema.fault()
}

// armFailpoint arms the failpoint that the query names.
func (n *Node) armFailpoint() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if err := n.faults.Arm(q.Get("point"), q.Get("method"), failpoint.Action(q.Get("action"))); err != nil {
			writeText(w, n.log, http.StatusBadRequest, err.Error())
			return
		}
		writeText(w, n.log, http.StatusOK, "armed")
	}
}

func writeText(w http.ResponseWriter, log *slog.Logger, status int, text string) {
	w.WriteHeader(status)
	if _, err := w.Write([]byte(text + "\n")); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}
