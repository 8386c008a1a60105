package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/worker"
)

// Metrics counts jobs and calls. Methods are safe for concurrent use.
type Metrics interface {
	PushAttempted(kind Kind, result string)       // one call: delivered, gone, refused, retry
	PushEnded(outcome string)                     // one job: done, dead, superseded, connected
	PushBacklog(jobs int64, oldest time.Duration) // jobs to be called, and the age of the oldest
}

// Config configures a Worker.
type Config struct {
	DB       *pgxpool.Pool
	Writes   *idem.Store
	APNs     *APNs     // nil: none, and APNs jobs wait for a node that has it
	Webhooks *Webhooks // nil: none
	Metrics  Metrics
	Log      *slog.Logger
	Faults   *failpoint.Set // nil: none
	Timeout  time.Duration  // of one call, in total; default: 10 s
	// Operation has the lifetimes of jobs' records and leases. Default: idem.Push.
	Operation idem.Operation
	// Jitter picks a delay up to longest. The default picks at random.
	Jitter func(longest time.Duration) time.Duration
}

// Worker makes the calls. Any number of nodes can run one: they pass over each other's rows.
type Worker struct {
	db        *pgxpool.Pool
	writes    *idem.Store
	providers map[Kind]provider
	metrics   Metrics
	log       *slog.Logger
	faults    *failpoint.Set
	timeout   time.Duration
	jitter    func(time.Duration) time.Duration
	operation idem.Operation

	slots   chan struct{} // one for each running call
	freed   chan struct{} // a call has ended
	running sync.WaitGroup
}

// NewWorker returns a worker.
func NewWorker(c Config) *Worker {
	w := &Worker{
		db: c.DB, writes: c.Writes, providers: map[Kind]provider{}, metrics: c.Metrics, log: c.Log, faults: c.Faults, timeout: c.Timeout, jitter: c.Jitter, operation: c.Operation,
		slots: make(chan struct{}, inFlight), freed: make(chan struct{}, 1),
	}
	if w.timeout == 0 {
		w.timeout = callTimeout
	}
	if w.operation.NSID == "" {
		w.operation = idem.Push
	}
	if w.jitter == nil {
		w.jitter = rand.N[time.Duration]
	}
	if c.APNs != nil {
		w.providers[KindAPNs] = c.APNs
	}
	if c.Webhooks != nil {
		w.providers[KindWebhook] = c.Webhooks
	}
	return w
}

// Run works until ctx ends, and then waits for the running calls, which end with ctx. It looks for
// work every interval, and whenever a call has ended.
func (w *Worker) Run(ctx context.Context, interval time.Duration) {
	defer w.running.Wait()
	start := func(context.Context) error { return w.round(ctx) } // a call can last longer than the round that starts it
	worker.Every("push worker", interval, w.log, start, worker.Wake(w.freed, 0)).Run(ctx)
}

// RunOnce does what is due and waits for its calls.
func (w *Worker) RunOnce(ctx context.Context) error {
	err := w.round(ctx)
	w.running.Wait()
	return err
}

// round makes jobs of recorded messages, ends the jobs that need no call, and starts the due jobs
// for which a slot is free.
func (w *Worker) round(ctx context.Context) error {
	failed := errors.Join(w.FanOut(ctx), w.endConnected(ctx))
	jobs, err := w.take(ctx, cap(w.slots)-len(w.slots))
	for _, j := range jobs {
		w.slots <- struct{}{}
		w.running.Go(func() {
			w.attempt(ctx, j)
			<-w.slots
			select {
			case w.freed <- struct{}{}:
			default: // Run has not read the last one yet
			}
		})
	}
	return errors.Join(failed, err)
}

// take commits that this worker sends up to n due jobs: pending jobs, jobs to be tried again, and
// jobs whose worker is overdue. A pending job waits while another job of its device is being sent.
// A deferred job also waits, for at most reportWithin, while a connection of its device can have
// delivered everything that the job stands for.
func (w *Worker) take(ctx context.Context, n int) (jobs []Job, err error) {
	if n == 0 {
		return nil, nil
	}
	batch := &pgx.Batch{} // one transaction
	batch.Queue(`SELECT set_config('mlsd.reason', 'push', true)`)
	batch.Queue(`
		UPDATE push_jobs j
		SET state = 'sending', attempts = attempts + 1, next_attempt_at = now() + $2::interval, heard_by = NULL, version = version + 1
		FROM (
			SELECT did, id FROM push_jobs d
			WHERE state IN ('pending', 'sending') AND next_attempt_at <= now()
				AND (state = 'sending' OR NOT EXISTS (
					SELECT FROM push_jobs s WHERE s.did = d.did AND s.device_id = d.device_id AND s.state = 'sending'))
				AND (heard_by IS NULL OR next_attempt_at <= now() - $3::interval OR NOT EXISTS (
					SELECT FROM presence p JOIN nodes n ON n.id = p.node
					WHERE n.lease_expires_at > clock_timestamp() AND (p.did, p.device_id) = (d.did, d.device_id)
						AND p.since <= d.heard_by - $4::interval))
			ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED
		) due
		WHERE j.did = due.did AND j.id = due.id
		RETURNING j.id, j.did, j.device_id, j.reason, j.attempts, j.version`,
		n, w.operation.Lease+takeOverAfterLease, reportWithin, catchUpWithin).
		Query(func(rows pgx.Rows) (err error) {
			jobs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (j Job, err error) {
				err = row.Scan(&j.ID, &j.DID, &j.DeviceID, &j.Reason, &j.attempt, &j.version)
				return j, err
			})
			return err
		})
	if err := w.db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("take push jobs: %w", err)
	}
	return jobs, nil
}

// Sweep deletes jobs that ended longer than keepEnded ago, in bounded batches, and reports the
// backlog to the metrics.
func (w *Worker) Sweep(ctx context.Context) error {
	for {
		tag, err := w.db.Exec(ctx, `
			DELETE FROM push_jobs
			WHERE (did, id) IN (
				SELECT did, id FROM push_jobs WHERE state IN ('done', 'dead') AND ended_at <= now() - $1::interval
				ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED)`, keepEnded, sweepBatch)
		if err != nil {
			return fmt.Errorf("delete ended push jobs: %w", err)
		}
		if tag.RowsAffected() < sweepBatch {
			break
		}
	}
	var jobs int64
	var oldest time.Duration
	err := w.db.QueryRow(ctx, `
		SELECT count(*), coalesce(clock_timestamp() - min(created_at), '0') FROM push_jobs
		WHERE state IN ('pending', 'sending') AND heard_by IS NULL`).
		Scan(&jobs, &oldest)
	if err != nil {
		return fmt.Errorf("count push jobs: %w", err)
	}
	w.metrics.PushBacklog(jobs, oldest)
	return nil
}
