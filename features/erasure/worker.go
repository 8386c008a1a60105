package erasure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/people/accounts"
)

// NSID names the batches of erasures for failpoints.
const NSID = "mlsd.erasure"

const (
	// Interval is how often a node looks for jobs.
	Interval = 5 * time.Second
	// batchRows bounds the rows that one batch deletes or changes, of each table.
	batchRows = 500
	// batchBlocks bounds the part of a table that one batch reads, in blocks of 8 KiB.
	batchBlocks = 2048
	// togetherMost bounds the jobs that read together.
	togetherMost = 100
	// batchTimeout bounds one statement of a batch.
	batchTimeout = time.Minute
	// batchReserve is the least time that a batch has until its round ends. Its other statements
	// are quick.
	batchReserve = 2 * batchTimeout
	// RoundTimeout is the time limit of a round. Batches begin only in the first minute of a round.
	RoundTimeout = batchReserve + time.Minute
	// keyRest is the time from the mark that an account's key is forgotten to the key's deletion.
	// By then every node has read the mark, and connected members have the event that the person
	// has left.
	keyRest = time.Minute
	// retryAfter is the pause after a failed batch. If the job has not moved for longer than that,
	// the pause is as long as that time: so it doubles with each failure in a row, up to
	// longestRetry.
	retryAfter   = 30 * time.Second
	longestRetry = 10 * time.Minute
	// maxPasses is how often a job begins again because its search has found something.
	maxPasses = 5
	// dueBatch is how many erasures of deleted accounts one round begins at most.
	dueBatch = 100
)

// Config is what a Worker uses.
type Config struct {
	DB       *pgxpool.Pool // the pool for maintenance
	Log      *slog.Logger
	Jobs     *Store
	Accounts *accounts.Store
	Remover  *convos.Remover
	// Forget makes every node forget the key of an account.
	Forget func(ctx context.Context, did syntax.DID) error
	// Tell asks another service to erase an account whose home this service is. refused means that
	// the other service never will.
	Tell func(ctx context.Context, service, did syntax.DID) (refused bool, err error)
	// EraseActions puts a person's tombstone into a part of the record of operators' actions.
	EraseActions func(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error)
	// Changed is called after a commit that changes which accounts are refused. Wake is called
	// after a commit that has inserted events. Default: nothing is called.
	Changed, Wake func()
	Faults        *failpoint.Set
	// Now is the clock that decides what is due. Default: time.Now.
	Now func() time.Time
	// KeyRest is the time from the mark that a key is forgotten to the key's deletion. Default: a
	// minute.
	KeyRest time.Duration
}

// Worker executes jobs. Any number of nodes can run one: they take turns, batch by batch.
type Worker struct {
	cfg    Config
	steps  []step
	blocks int64 // most blocks of a table that a batch reads
}

// NewWorker returns a worker.
func NewWorker(c Config) *Worker {
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Wake == nil {
		c.Wake = func() {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.KeyRest == 0 {
		c.KeyRest = keyRest
	}
	return &Worker{cfg: c, steps: steps(c), blocks: batchBlocks}
}

// RunOnce begins the erasures of deleted accounts that are due. Then it executes every batch that
// may run now: this comes last, because jobs can take the whole round. It begins no batch that the
// end of ctx could cut off. The time limit of ctx is RoundTimeout. While a job asks other services,
// batches of other jobs run.
func (w *Worker) RunOnce(ctx context.Context) error {
	failed := w.beginDue(ctx)
	asking, answered := 0, make(chan error)
	wait := func() {
		failed = errors.Join(failed, <-answered)
		asking--
	}
	for ctx.Err() == nil {
		if end, limited := ctx.Deadline(); limited && time.Until(end) < batchReserve {
			break
		}
		j, err := w.batch(ctx)
		failed = errors.Join(failed, err)
		switch {
		case j == nil && asking == 0:
			return failed
		case j == nil:
			wait()
		case err == nil && len(j.asks) > 0:
			if asking == askingMost {
				wait()
			}
			asking++
			go func() { answered <- w.failed(ctx, j, w.tell(ctx, j)) }()
		}
	}
	for asking > 0 {
		wait()
	}
	return failed
}

// beginDue begins the erasures of accounts that were deleted in the network. An account that has
// come back is no longer due.
func (w *Worker) beginDue(ctx context.Context) error {
	now := w.cfg.Now()
	due, err := w.cfg.Accounts.Due(ctx, w.cfg.DB, now, dueBatch)
	if err != nil {
		return err
	}
	for _, did := range due {
		err := pgx.BeginFunc(ctx, w.cfg.DB, func(tx pgx.Tx) error {
			if still, err := w.cfg.Accounts.StillDue(ctx, tx, did, now); err != nil || !still {
				return err
			}
			_, _, err := w.cfg.Jobs.Begin(ctx, tx, did, ByNetwork, "the account was deleted")
			return err
		})
		if err != nil {
			return err
		}
		w.cfg.Log.InfoContext(ctx, "the erasure of a deleted account has begun")
	}
	return nil
}

// job is a job while one of its batches runs. The batch holds the lock of the job's row.
type job struct {
	w        *Worker
	tx       pgx.Tx
	id       uuid.UUID
	person   tombstone.Person
	step     string
	position string // position in the step; "" is the beginning
	pass     int
	counts   map[string]int64
	remains  map[string]int64
	services map[syntax.DID]string // the services that were asked, with the outcomes
	asks     []syntax.DID          // services to ask after the batch's transaction
	moved    time.Time             // the time that the batch's commit has stored; fences the outcomes of asks
	wait     time.Duration         // pause before the next batch
	finished bool
	with     []*job // jobs that read the same part of a table in this batch
}

// add adds n to the count of a table's rows.
func (j *job) add(table string, n int64) {
	if n > 0 {
		j.counts[table] += n
	}
}

// batch executes one batch of one job, and of the jobs that read with it. It returns nil if no job
// can go on now. If jobs that read together fail, each goes on alone: a job whose own batch fails
// waits (postpone), and does not delay the others.
func (w *Worker) batch(ctx context.Context) (*job, error) {
	j, err := w.try(ctx, togetherMost)
	if err != nil && j != nil && len(j.with) > 0 {
		w.cfg.Log.WarnContext(ctx, "erasures could not read together", "jobs", len(j.with)+1, "step", j.step, "error", err)
		j, err = w.try(ctx, 1)
	}
	if j == nil || err != nil {
		return j, w.failed(ctx, j, err)
	}
	w.cfg.Wake()
	if j.finished {
		w.cfg.Changed()
		w.cfg.Log.InfoContext(ctx, "an account has been erased", "erasure", j.id, "counts", j.counts, "remains", j.remains)
	}
	return j, w.cfg.Faults.Hit(ctx, failpoint.AfterCommit, NSID)
}

// failed postpones the job if err is not nil. The error that it returns names the job.
func (w *Worker) failed(ctx context.Context, j *job, err error) error {
	if j == nil || err == nil {
		return err
	}
	return errors.Join(fmt.Errorf("erasure %s, step %s: %w", j.id, j.step, err), w.postpone(ctx, j.id))
}

// try executes one batch for up to most jobs. It returns the job whose turn it was, or nil.
func (w *Worker) try(ctx context.Context, most int) (j *job, err error) {
	err = pgx.BeginFunc(ctx, w.cfg.DB, func(tx pgx.Tx) error {
		var err error
		if j, err = w.take(ctx, tx); err != nil || j == nil {
			return err
		}
		if err := j.run(ctx, most); err != nil {
			return err
		}
		for _, each := range j.together() {
			if err := each.save(ctx); err != nil {
				return err
			}
		}
		return w.cfg.Faults.Hit(ctx, failpoint.BeforeCommit, NSID)
	})
	return j, err
}

// take locks the job whose next batch has waited longest. It returns nil if there is no such job,
// or if another node works on it.
func (w *Worker) take(ctx context.Context, tx pgx.Tx) (*job, error) {
	_, err := tx.Exec(ctx, `
		SELECT set_config('mlsd.maintenance', 'on', true), set_config('mlsd.reason', 'erasure', true),
			set_config('statement_timeout', $1, true)`, fmt.Sprint(batchTimeout.Milliseconds()))
	if err != nil {
		return nil, fmt.Errorf("prepare a batch: %w", err)
	}
	j := &job{w: w, tx: tx, counts: map[string]int64{}, services: map[syntax.DID]string{}}
	err = tx.QueryRow(ctx, `
		SELECT id, did, salt, step, position, pass, counts, remains, services FROM erasures
		WHERE state = 'running' AND not_before <= clock_timestamp() ORDER BY not_before LIMIT 1 FOR UPDATE SKIP LOCKED`).
		Scan(&j.id, &j.person.DID, &j.person.Salt, &j.step, &j.position, &j.pass, &j.counts, &j.remains, &j.services)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // no job is an ordinary answer
	}
	if err != nil {
		return nil, fmt.Errorf("look for a job: %w", err)
	}
	return j, nil
}

// run executes a batch of the job's step, for up to most jobs. Jobs that have finished the step
// move on. If this version does not know the step, the job begins again.
func (j *job) run(ctx context.Context, most int) error {
	s := j.w.steps[j.at()]
	j.step = s.name
	if s.scan != nil {
		return s.scan.batch(ctx, j, most)
	}
	done, err := s.run(ctx, j)
	if done && err == nil {
		j.next()
	}
	return err
}

// at returns the index of the job's step.
func (j *job) at() int {
	return max(0, slices.IndexFunc(j.w.steps, func(s step) bool { return s.name == j.step }))
}

// next moves the job to the next step.
func (j *job) next() {
	j.position = ""
	if next := j.at() + 1; next < len(j.w.steps) {
		j.step = j.w.steps[next].name
		return
	}
	j.finished = true
}

// together returns all jobs of the batch.
func (j *job) together() []*job { return append(j.with, j) }

// save stores the progress of the job.
func (j *job) save(ctx context.Context) error {
	if j.finished {
		_, err := j.tx.Exec(ctx, `
			UPDATE erasures SET state = 'finished', did = $2, salt = NULL, reason = regexp_replace(reason, $3, $2, 'g'),
				requested_by = regexp_replace(requested_by, $3, $2, 'g'), counts = $4, remains = $5, finished_at = clock_timestamp()
			WHERE id = $1`, j.id, j.person.Anywhere().String(), j.person.Pattern(), j.counts, j.remains)
		if err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		return nil
	}
	err := j.tx.QueryRow(ctx, `
		UPDATE erasures SET step = $2, position = $3, pass = $4, counts = $5, remains = $6, services = $8,
			not_before = greatest(clock_timestamp() + $7::interval, not_before), moved_at = clock_timestamp()
		WHERE id = $1 RETURNING moved_at`, j.id, j.step, j.position, j.pass, j.counts, j.remains, j.wait, j.services).
		Scan(&j.moved)
	return errs.Wrap(err, "save the progress")
}

// postponeTimeout bounds the statement that records a failed batch.
const postponeTimeout = 5 * time.Second

// postpone makes a job wait after its batch has failed. If the node is stopping, that does not
// count as a failure.
func (w *Worker) postpone(ctx context.Context, id uuid.UUID) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postponeTimeout)
	defer cancel()
	_, err := w.cfg.DB.Exec(ctx, `
		UPDATE erasures SET failures = failures + 1,
			not_before = clock_timestamp() + least($3, greatest($2, clock_timestamp() - coalesce(moved_at, begun_at)))
		WHERE id = $1 AND state = 'running'`, id, retryAfter, longestRetry)
	return errs.Wrap(err, "postpone an erasure")
}
