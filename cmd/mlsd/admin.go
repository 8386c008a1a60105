package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mlsd/internal/failpoint"
)

// admin is the handler of the admin listener. It does not authenticate: only the operator must be
// able to reach its address.
func (n *node) admin(log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(n.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { writeText(w, log, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", n.readiness(log))
	mux.Handle("GET /check", newChecker(n.db.maintenance, log))
	mux.HandleFunc("GET /check/clients", clientFaults(n.db.maintenance, log))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	if n.faults != nil {
		mux.HandleFunc("POST /failpoints", n.armFailpoint(log))
	}
	n.benchRoutes(mux, log)
	return mux
}

// readiness answers 200 if the server takes requests and its database answers within a second.
func (n *node) readiness(log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !n.ready.Load() {
			writeText(w, log, http.StatusServiceUnavailable, "not serving")
			return
		}
		if err := n.db.requests.Ping(ctx); err != nil {
			log.Warn("not ready", "error", err)
			writeText(w, log, http.StatusServiceUnavailable, "the database cannot be reached")
			return
		}
		writeText(w, log, http.StatusOK, "ok")
	}
}

// armFailpoint arms the failpoint that the query names.
func (n *node) armFailpoint(log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if err := n.faults.Arm(q.Get("point"), q.Get("method"), failpoint.Action(q.Get("action"))); err != nil {
			writeText(w, log, http.StatusBadRequest, err.Error())
			return
		}
		writeText(w, log, http.StatusOK, "armed")
	}
}

func writeText(w http.ResponseWriter, log *slog.Logger, status int, text string) {
	w.WriteHeader(status)
	if _, err := w.Write([]byte(text + "\n")); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}
