package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/outgoing"
	"mlsd/idem"
	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/internal/tracing"
	"mlsd/internal/worker"
)

// Metrics counts jobs and calls. Methods are safe for concurrent use.
type Metrics interface {
	PushAttempted(kind Kind, result, reason string) // one call: delivered, gone, refused, retry
	PushChallenged(result, reason string)           // one challenge of a webhook: passed, failed
	PushEnded(outcome string)                       // one job: done, dead, superseded, connected
	PushBacklog(jobs int64, oldest time.Duration)   // jobs that still need a call, and the age of the oldest
}

// Config configures a Worker.
type Config struct {
	DB       *pgxpool.Pool
	Writes   *idem.Store
	APNs     *APNs     // nil means that this node has none: APNs jobs wait for a node that has it
	Webhooks *Webhooks // nil means none
	WebPush  *WebPush  // nil means none
	Metrics  Metrics
	Log      *slog.Logger
	Faults   *failpoint.Set  // nil means none
	Tracer   *tracing.Tracer // nil means none
	Timeout  time.Duration   // of one call of a URL, in total; default: 3 s
	// Withheld returns the DIDs, among the given ones, whose devices are not to be called now. The
	// jobs of these devices end. Default: none.
	Withheld func(context.Context, []syntax.DID) ([]syntax.DID, error)
	// Operation has the lifetimes of jobs' records and leases. Default: idem.Push.
	Operation idem.Operation
	// Jitter picks a delay up to longest. The default picks at random.
	Jitter func(longest time.Duration) time.Duration
	// Now is the clock of the limits. Default: time.Now. What is stored has the database's clock.
	Now func() time.Time
}

// Worker makes the calls. Any number of nodes can run a worker: a worker skips rows that another
// worker has locked.
type Worker struct {
	cfg       Config
	providers map[Kind]provider

	pools   *pools
	jobs    *outgoing.Queue
	queue   queue          // used only by the goroutine that runs rounds
	freed   worker.Trigger // a call has ended, or a round has left work
	running sync.WaitGroup
}

// NewWorker returns a worker.
func NewWorker(c Config) *Worker {
	c.Timeout = cmp.Or(c.Timeout, webhookTimeout)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Operation.NSID == "" {
		c.Operation = idem.Push
	}
	if c.Withheld == nil {
		c.Withheld = func(context.Context, []syntax.DID) ([]syntax.DID, error) { return nil, nil }
	}
	w := &Worker{
		cfg: c, providers: map[Kind]provider{}, pools: newPools(c.Now, c.Timeout), freed: worker.NewTrigger(),
		jobs: &outgoing.Queue{Job: "a push job", Writes: c.Writes, Operation: c.Operation, Log: c.Log, Faults: c.Faults,
			FirstDelay: firstDelay, LastDelay: lastDelay, Factor: 3, Jitter: c.Jitter},
	}
	if c.APNs != nil {
		w.providers[KindAPNs] = c.APNs
	}
	if c.Webhooks != nil {
		w.providers[KindWebhook] = c.Webhooks
	}
	if c.WebPush != nil {
		w.providers[KindWebPush] = c.WebPush
	}
	return w
}

// Run works until ctx ends, and then waits for the running calls, which end with ctx. It looks for
// work every interval, and whenever a call has ended.
func (w *Worker) Run(ctx context.Context, rounds *worker.Rounds, interval time.Duration) {
	defer w.running.Wait()
	// A call can last longer than the round that starts it, so it has the context of Run.
	start := func(round context.Context) error { return w.round(round, ctx, interval) }
	rounds.Every("push worker", interval, w.cfg.Log, start, worker.Wake(w.freed, 0)).Run(ctx)
}

// RunOnce does what is due and waits for its calls. Work that these calls leave is for the next
// RunOnce.
func (w *Worker) RunOnce(ctx context.Context) error {
	err := w.round(ctx, ctx, 0)
	w.running.Wait()
	return err
}

// round makes jobs of recorded messages, ends the jobs that need no call, and starts the due jobs
// and challenges for which there is a place. Each step has a time limit of its own and a limit of
// rows, so that no step keeps the next step waiting. The calls run under the context calls. If the
// last reading of due jobs is younger than interval, only calls are started.
func (w *Worker) round(ctx, calls context.Context, interval time.Duration) error {
	fresh := w.cfg.Now().Sub(w.queue.read) >= interval
	if fresh && len(w.queue.jobs) == 0 {
		if has, err := w.hasWork(ctx); err != nil || !has {
			return err
		}
	}
	var more bool
	step := func(do func(context.Context) (bool, error)) error {
		ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
		defer cancel()
		again, err := do(ctx)
		more = more || again
		return err
	}
	var failed error
	if fresh {
		w.queue.read = w.cfg.Now()
		failed = errors.Join(step(w.FanOut), step(w.endConnected), step(func(ctx context.Context) (bool, error) {
			due, again, err := w.takeChallenges(ctx)
			for _, c := range due {
				w.start(c.place, func() { w.challenge(calls, c) })
			}
			return again, err
		}))
	}
	failed = errors.Join(failed, step(func(ctx context.Context) (bool, error) {
		jobs, again, err := w.dispatch(ctx, fresh)
		for _, j := range jobs {
			w.start(j.place, func() { w.attempt(calls, j) })
		}
		return again, err
	}))
	if more {
		w.queue.read = time.Time{}
		w.freed.Send()
	}
	return failed
}

// hasWork reports whether something is due. Most rounds of most nodes end after this check.
func (w *Worker) hasWork(ctx context.Context) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	err = w.cfg.DB.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM push_convos)
			OR EXISTS (SELECT FROM push_jobs WHERE state IN ('pending', 'sending') AND next_attempt_at <= now())
			OR EXISTS (SELECT FROM push_targets WHERE challenge_at <= now())`).Scan(&has)
	return has, errs.Wrap(err, "look for work")
}

// start runs a call in the background, at a place that it releases.
func (w *Worker) start(p outgoing.Place, call func()) {
	w.running.Go(func() {
		call()
		p.Release()
		w.freed.Send()
	})
}

// Sweep deletes jobs a week after their end.
func Sweep(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "push_jobs", `
		DELETE FROM push_jobs
		WHERE (did, id) IN (
			SELECT did, id FROM push_jobs WHERE state IN ('done', 'dead') AND ended_at <= now() - $2::interval
			ORDER BY ended_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepEnded)
}

// CountBacklog reports the backlog to the metrics.
func (w *Worker) CountBacklog(ctx context.Context) error {
	var jobs int64
	var oldest time.Duration
	err := w.cfg.DB.QueryRow(ctx, `
		SELECT count(*), coalesce(clock_timestamp() - min(created_at), '0') FROM push_jobs
		WHERE state IN ('pending', 'sending') AND heard_by IS NULL`).
		Scan(&jobs, &oldest)
	if err != nil {
		return fmt.Errorf("count push jobs: %w", err)
	}
	w.cfg.Metrics.PushBacklog(jobs, oldest)
	return nil
}
