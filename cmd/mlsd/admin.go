package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mlsd/internal/failpoint"
	"mlsd/internal/invariants"
	"mlsd/messages"
)

// admin is the handler of the admin listener. It authenticates nobody: its address is for the operator alone.
func (n *node) admin(pool *pgxpool.Pool, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(n.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { say(w, log, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !n.ready.Load() {
			say(w, log, http.StatusServiceUnavailable, "not serving")
			return
		}
		if err := pool.Ping(ctx); err != nil {
			log.Warn("not ready", "error", err)
			say(w, log, http.StatusServiceUnavailable, "the database cannot be reached")
			return
		}
		say(w, log, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /check", func(w http.ResponseWriter, r *http.Request) { check(w, r, pool, log) })
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	if n.faults != nil {
		mux.HandleFunc("POST /failpoints", func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			if err := n.faults.Arm(q.Get("point"), q.Get("method"), failpoint.Action(q.Get("action"))); err != nil {
				say(w, log, http.StatusBadRequest, err.Error())
				return
			}
			say(w, log, http.StatusOK, "armed")
		})
		mux.HandleFunc("POST /sends", func(w http.ResponseWriter, r *http.Request) {
			mode := messages.Mode(r.URL.Query().Get("mode"))
			if err := n.messages.SetMode(mode); err != nil {
				say(w, log, http.StatusBadRequest, err.Error())
				return
			}
			say(w, log, http.StatusOK, "set")
		})
	}
	return mux
}

// check answers with the violated promises of one convo (?convo=ID) or of the whole database, as a JSON array of texts.
func check(w http.ResponseWriter, r *http.Request, pool *pgxpool.Pool, log *slog.Logger) {
	var violations []string
	var err error
	if text := r.URL.Query().Get("convo"); text != "" {
		var id uuid.UUID
		if id, err = uuid.Parse(text); err != nil {
			say(w, log, http.StatusBadRequest, "convo must be a UUID")
			return
		}
		violations, err = invariants.CheckConvo(r.Context(), pool, id)
	} else {
		violations, err = invariants.Check(r.Context(), pool)
	}
	if err != nil {
		log.Error("the check failed", "error", err)
		say(w, log, http.StatusInternalServerError, "the check could not be made")
		return
	}
	if violations == nil {
		violations = []string{}
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(violations); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}

func say(w http.ResponseWriter, log *slog.Logger, status int, text string) {
	w.WriteHeader(status)
	if _, err := w.Write([]byte(text + "\n")); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}
