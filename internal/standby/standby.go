// Package standby lets reads use a standby of the database.
//
// The rule: a read uses the standby only if the primary said, after the read had arrived, how far
// its WAL is flushed, and the standby then said that it has replayed that much.
//
// What was answered before a read arrived, on any node, is flushed by then, so a read misses
// nothing that anybody can know of. One question serves all reads that arrived before it. A read
// without a quick answer uses the primary.
//
// Positions in the WAL of two servers can only be compared if they have the same WAL. See
// identity.go.
package standby

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/internal/ratelog"
	"mlsd/internal/worker"
)

const (
	// maxWait is how long reads wait for the standby. After it they, and all others until it has
	// caught up, use the primary.
	maxWait = 100 * time.Millisecond
	// answerTime bounds a connection and an answer. After it the standby counts as lost, and its
	// reads are repeated on the primary.
	answerTime = 500 * time.Millisecond
	// readTime bounds a read on the standby. After it the read is repeated on the primary, in the
	// rest of the request's time.
	readTime = 4 * time.Second
	// lookEvery is the time between two questions while no read waits, and between attempts to
	// connect.
	lookEvery = 250 * time.Millisecond
	// rightsEvery is the time until a standby is looked at again whose account lacks rights.
	rightsEvery = 10 * time.Second
	// pace is the shortest time between two questions: it bounds what they cost the primary.
	pace = time.Millisecond
	// slowPace is the time between two questions to a standby for which no read waits any more.
	slowPace = 10 * time.Millisecond
)

// Config is what reads use.
type Config struct {
	DB *pgxpool.Pool // of the primary
	// Standby is how to connect to the standby. nil: there is none, and reads use DB. Primary is how
	// to connect to the primary, for one session that is asked for its WAL.
	Standby *pgxpool.Config
	Primary *pgx.ConnConfig
	Log     *slog.Logger // needed with a standby
}

// Reads chooses the server for each read.
type Reads struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	wake    worker.Signal

	mu    sync.Mutex // guards what follows
	state state
	asked *round // its question is under way; nil: none is
	next  *round // reads that arrived since; nil: there are none
}

// round is the reads that wait for the same answer.
type round struct {
	done chan struct{} // closed when use is set
	use  *session      // nil: the primary
}

// state says whether reads use the standby, or why not.
type state string

const (
	none        state = "none"        // no standby is configured
	used        state = "used"        // reads wait for an answer
	behind      state = "behind"      // it has not replayed enough in time
	unreachable state = "unreachable" // it does not answer, or the primary does not
	refused     state = "refused"     // it is not a standby of this primary
)

// New returns the Reads of a configuration. They use the standby while Run runs.
func New(cfg Config) *Reads {
	r := &Reads{cfg: cfg, metrics: newMetrics(), wake: worker.NewSignal(), state: none}
	if cfg.Standby != nil {
		r.log, r.state = ratelog.New(cfg.Log), unreachable
	}
	r.metrics.show(r.state)
	return r
}

// Register registers the metrics.
func (r *Reads) Register(reg prometheus.Registerer) { r.metrics.register(reg) }

// Read calls read with the pool of a server that has everything committed before the call. If the
// standby fails or is lost, Read calls read again from the start, with the primary's pool. read
// must not write.
func (r *Reads) Read(ctx context.Context, read func(context.Context, *pgxpool.Pool) error) error {
	if s := r.await(ctx); s != nil {
		err := s.read(ctx, read)
		if err == nil || ctx.Err() != nil || !s.failed(err) {
			r.metrics.standby.Inc()
			return err
		}
		r.metrics.repeated.Inc()
	}
	r.metrics.primary.Inc()
	return read(ctx, r.cfg.DB)
}

// await returns the session of the standby if it has what a read needs that arrives now, or nil.
func (r *Reads) await(ctx context.Context) *session {
	r.mu.Lock()
	if r.state != used {
		r.mu.Unlock()
		return nil
	}
	if r.next == nil {
		r.next = &round{done: make(chan struct{})}
		r.wake.Send()
	}
	waiting := r.next
	r.mu.Unlock()
	select {
	case <-waiting.done:
		return waiting.use
	case <-ctx.Done():
		return nil
	}
}

// Run uses the standby until ctx ends. It connects again when it has lost one of the servers.
func (r *Reads) Run(ctx context.Context) {
	if r.cfg.Standby == nil {
		return
	}
	var closing sync.WaitGroup
	defer closing.Wait()
	for ctx.Err() == nil {
		s, err := open(ctx, r.cfg)
		if err == nil {
			err = r.follow(ctx, s)
		}
		r.leave(ctx, stateOf(err), err)
		if s != nil {
			s.end()
			closing.Go(func() {
				s.pool.Close() // waits for the reads, whose contexts have ended
				if err := s.close(ctx); err != nil {
					r.log.DebugContext(ctx, "a connection was lost already", "error", err)
				}
			})
		}
		if errors.Is(err, ErrNoRights) {
			worker.Pause(ctx, rightsEvery-lookEvery)
		}
		worker.Pause(ctx, lookEvery)
	}
}

func stateOf(err error) state {
	if errors.Is(err, ErrOther) || errors.Is(err, ErrNotStandby) || errors.Is(err, ErrNoRights) ||
		errors.Is(err, errNotProven) {
		return refused
	}
	return unreachable
}

// follow asks both servers, for the reads that wait, until one of them fails.
func (r *Reads) follow(ctx context.Context, s *session) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for ctx.Err() == nil {
		r.mu.Lock()
		r.asked, r.next = r.next, nil
		r.mu.Unlock()
		begun := time.Now()
		late := time.AfterFunc(maxWait, func() { r.leave(ctx, behind, nil) })
		lag, err := s.ask(ctx)
		inTime := late.Stop()
		if err != nil {
			return err
		}
		r.metrics.lag.Set(float64(lag))
		if lag == 0 && inTime {
			r.use(ctx, s)
		} else {
			r.leave(ctx, behind, nil)
		}
		worker.Pause(ctx, min(time.Since(begun), pace))
		if lag == 0 && !inTime {
			continue // it has caught up just now
		}
		select {
		case <-r.wake:
		case <-look.C:
		case <-s.denied:
			return ErrNoRights
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// use lets the reads that were asked for use the standby.
func (r *Reads) use(ctx context.Context, s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.change(ctx, used, nil)
	r.asked.end(s)
	r.asked = nil
}

// leave makes all reads use the primary: those that wait, and those to come.
func (r *Reads) leave(ctx context.Context, why state, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.change(ctx, why, err)
	r.asked.end(nil)
	r.next.end(nil)
	r.asked, r.next = nil, nil
}

// change records the state. The caller holds mu.
func (r *Reads) change(ctx context.Context, to state, err error) {
	if r.state == to {
		return
	}
	r.state = to
	r.metrics.show(to)
	switch {
	case ctx.Err() != nil: // the node ends
	case to == used:
		r.log.InfoContext(ctx, "reads use the standby")
	case err != nil:
		r.log.WarnContext(ctx, "reads use the primary alone", "standby", string(to), "error", err)
	default:
		r.log.WarnContext(ctx, "reads use the primary alone", "standby", string(to))
	}
}

// end tells the reads of a round which server to use. nil has none.
func (w *round) end(use *session) {
	if w != nil {
		w.use = use
		close(w.done)
	}
}
