package main

import (
	"context"
	"encoding/json"
	"errors"
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

// checkAnswerTimeout is how long the answer of a check may take to be read, once it is known.
const checkAnswerTimeout = time.Minute

// admin is the handler of the admin listener. It authenticates nobody: its address is for the operator alone.
func (n *node) admin(pool *pgxpool.Pool, log *slog.Logger) http.Handler {
	whole := make(chan struct{}, 1)
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
	mux.HandleFunc("GET /check", func(w http.ResponseWriter, r *http.Request) { check(w, r, pool, whole, log) })
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
//
// A check of everything may take minutes, with a connection that others could use: they take turns, for which whole has the room. The
// listener's timeouts are for answers that come at once.
func check(w http.ResponseWriter, r *http.Request, pool *pgxpool.Pool, whole chan struct{}, log *slog.Logger) {
	control := http.NewResponseController(w)
	// net/http goes on reading, to see the client hang up: the request's deadline must not end the check.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		log.Warn("a check may be cut off", "error", err)
	}
	violations, err := violated(r, pool, whole)
	if err := control.SetWriteDeadline(time.Now().Add(checkAnswerTimeout)); err != nil {
		log.Warn("the answer of a check may be cut off", "error", err)
	}
	switch {
	case errors.Is(err, errNotUUID):
		say(w, log, http.StatusBadRequest, err.Error())
		return
	case err != nil:
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

var errNotUUID = errors.New("convo must be a UUID")

// violated makes the check that a request asks for.
func violated(r *http.Request, pool *pgxpool.Pool, whole chan struct{}) ([]string, error) {
	if text := r.URL.Query().Get("convo"); text != "" {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, errNotUUID
		}
		return invariants.CheckConvo(r.Context(), pool, id)
	}
	select {
	case whole <- struct{}{}:
		defer func() { <-whole }()
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	return invariants.Check(r.Context(), pool)
}

func say(w http.ResponseWriter, log *slog.Logger, status int, text string) {
	w.WriteHeader(status)
	if _, err := w.Write([]byte(text + "\n")); err != nil {
		log.Debug("the answer could not be written", "error", err)
	}
}
