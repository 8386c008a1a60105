package api

import (
	"crypto/rand"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
)

// answeredAt is where a request's context has the time at which its answer began, if that is a stream: how long it goes on is no
// matter of the server's.
const answeredAt = "answered"

// identify names each request, for the log and for who asks about it: what its client calls it, or a name of ours.
func identify() echo.MiddlewareFunc {
	process, serial := rand.Text()[:10]+"-", new(atomic.Uint64)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			id := c.Request().Header.Get(echo.HeaderXRequestID)
			if id == "" {
				id = string(strconv.AppendUint(append(make([]byte, 0, 32), process...), serial.Add(1), 36))
			}
			c.Response().Header().Set(echo.HeaderXRequestID, id)
			return next(c)
		}
	}
}

// observe counts and logs every request. Labels come from the route table, never from the caller; DIDs are not logged.
func (s *Server) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		begun := time.Now()
		failed := ""
		err := next(c)
		if err != nil {
			f := s.failureOf(c, err)
			failed = f.name
			err = f
			c.Error(err)
		}
		nsid := c.Param("nsid")
		if _, known := s.routes[nsid]; !known {
			nsid = "other"
		}
		took := time.Since(begun)
		if at, streamed := c.Get(answeredAt).(time.Time); streamed {
			took = at.Sub(begun)
		}
		s.cfg.Metrics.observe(nsid, c.Response().Status, failed, took)
		if !s.cfg.Log.Enabled(c.Request().Context(), slog.LevelDebug) {
			return nil
		}
		s.cfg.Log.LogAttrs(c.Request().Context(), slog.LevelDebug, "request", slog.String("nsid", nsid),
			slog.Int("status", c.Response().Status), slog.String("error", failed), slog.Duration("took", took),
			slog.String("request", c.Response().Header().Get(echo.HeaderXRequestID)))
		return nil
	}
}

// observe counts one request; failed is its error's name, or "".
func (m *Metrics) observe(nsid string, status int, failed string, took time.Duration) {
	m.requests.WithLabelValues(nsid, strconv.Itoa(status), failed).Inc()
	m.duration.WithLabelValues(nsid).Observe(took.Seconds())
	if failed == mlsapi.ErrEpochMismatch {
		m.epochs.WithLabelValues(nsid).Inc()
	}
	switch failed {
	case mlsapi.ErrEpochMismatch, mlsapi.ErrIdempotencyConflict, mlsapi.ErrRequestInProgress:
		if m.refused != nil {
			m.refused(failed, nsid)
		}
	}
	if nsid == mlsapi.NSIDGetWelcome {
		outcome := failed
		if outcome == "" {
			outcome = "ok"
		}
		m.fetches.WithLabelValues(outcome).Inc()
	}
}
