// Package standby lets reads use a standby of the database.
//
// The rule: a read uses the standby only if the primary said, after the read had arrived, how far
// its WAL is flushed, and the standby then said that it has replayed that much.
//
// Everything that any node answered before a read arrived is flushed by then, so the read misses
// nothing that anybody can know of. One question serves all reads that arrived before it. If a read
// gets no quick answer, it uses the primary.
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
	// maxWait is how long reads wait for the standby. After that, all reads use the primary until
	// the standby has caught up.
	maxWait = 100 * time.Millisecond
	// answerTime bounds the time to connect and the time for an answer. After that, the standby
	// counts as lost, and its reads are repeated on the primary.
	answerTime = 500 * time.Millisecond
	// readTime bounds a read on the standby. After that, the read is repeated on the primary, in
	// the time left to the request.
	readTime = 4 * time.Second
	// lookEvery is the time between two questions while no read waits, and between two attempts to
	// connect.
	lookEvery = 250 * time.Millisecond
	// rightsEvery is the time until a standby whose account lacks rights is checked again.
	rightsEvery = 10 * time.Second
	// pace is the shortest time between two questions. It bounds the cost for the primary.
	pace = time.Millisecond
	// slowPace is the time between two questions to the standby when no read waits for it any more.
	slowPace = 10 * time.Millisecond
)

// Config configures Reads.
type Config struct {
	DB *pgxpool.Pool // pool of the primary
	// Standby is how to connect to the standby. If it is nil, there is no standby, and reads use
	// DB. Primary is how to connect to the primary, for one session that asks for the position of
	// its WAL.
	Standby *pgxpool.Config
	Primary *pgx.ConnConfig
	Log     *slog.Logger // required with a standby
}

// Reads chooses the server for each read.
type Reads struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	wake    worker.Trigger

	mu    sync.Mutex // guards the fields below
	state state
	asked *round // round whose question is running; nil means none
	next  *round // reads that have arrived since; nil means none
}

// round is the reads that wait for the same answer.
type round struct {
	done chan struct{} // closed when use is set
	use  *session      // nil means the primary
}

// state says whether reads use the standby, or why not.
type state string

const (
	none        state = "none"        // no standby is configured
	used        state = "used"        // reads wait for an answer
	behind      state = "behind"      // the standby has not replayed enough in time
	unreachable state = "unreachable" // the standby or the primary does not answer
	refused     state = "refused"     // the server is not a standby of this primary
)

// New returns the Reads of a configuration. These use the standby while Run runs.
func New(cfg Config) *Reads {
	r := &Reads{cfg: cfg, metrics: newMetrics(), wake: worker.NewTrigger(), state: none}
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
		worker.Pause(ctx, rest(time.Since(begun)))
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

// rest is how long no question is asked after a question that took so long.
func rest(took time.Duration) time.Duration { return pace - took }

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
