package push

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/outgoing"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

const (
	// queueSize is how many due jobs a node reads at once.
	queueSize = 1024

	// keepBusy is how many due jobs of a busy host stay where they are if the queue is full, and
	// how many of all unproven hosts together. In total, half the queue may stay so. The other jobs
	// become due later, by busyDelay, so that the jobs after them are read.
	keepBusy  = 64
	busyDelay = time.Second
)

// queue holds due jobs that this node has read and not taken. Other nodes may take them first.
type queue struct {
	jobs []Job
	full bool // there may be more due jobs than were read
	read time.Time
}

// dispatch takes the due jobs for which there is a place. It reads jobs again if fresh is set or
// none is left. more says that further jobs are due after the jobs that were read.
func (w *Worker) dispatch(ctx context.Context, fresh bool) (jobs []Job, more bool, err error) {
	if fresh || len(w.queue.jobs) == 0 {
		if w.queue.jobs, err = w.dueJobs(ctx); err != nil {
			w.queue.jobs = nil
			return nil, false, err
		}
		w.queue.full = len(w.queue.jobs) == queueSize
		roundRobin(w.queue.jobs)
	}
	var start, rest, back, failing []Job
	left := map[string]int{} // by busy host; "" stands for unproven hosts and jobs without a host
	for _, j := range w.queue.jobs {
		if j.attempt >= maxAttempts { // the job ends without a call
			j.call = outgoing.Call{Pool: w.pools.byKind[""]}
		}
		p, v, wait := w.pools.Acquire(j.call)
		switch v {
		case outgoing.Admitted:
			j.place = p
			start = append(start, j)
		case outgoing.Open:
			j.wait = max(wait, w.jobs.Delay(j.attempt+1, 0))
			failing = append(failing, j)
		case outgoing.Busy, outgoing.Limited:
			host := p.Host
			if p.Unproven {
				host = ""
			}
			if left[host]++; w.queue.full && (left[host] > keepBusy || len(rest) > queueSize/2) {
				back = append(back, j)
				continue
			}
			rest = append(rest, j)
		case outgoing.Full:
			rest = append(rest, j)
		}
	}
	w.queue.jobs = rest
	jobs, err = w.take(ctx, start)
	if err == nil {
		err = errors.Join(w.putBack(ctx, back), w.skip(ctx, failing))
	}
	return jobs, len(back)+len(failing) > 0 && w.queue.full, err
}

// roundRobin orders jobs so that each DID's first job comes before any DID's second.
func roundRobin(jobs []Job) {
	seen := map[syntax.DID]int{}
	turn := map[uuid.UUID]int{}
	for _, j := range jobs {
		turn[j.ID] = seen[j.DID]
		seen[j.DID]++
	}
	slices.SortStableFunc(jobs, func(a, b Job) int { return cmp.Compare(turn[a.ID], turn[b.ID]) })
}

// dueJobs returns due jobs: pending jobs, jobs to be tried again, and jobs whose worker is overdue.
// A pending job waits while another job of its device is being sent. A deferred job also waits, for
// at most reportWithin, while a connection of its device may have delivered everything that the job
// stands for. dueJobs leaves out jobs of pools without a place.
func (w *Worker) dueJobs(ctx context.Context) ([]Job, error) {
	rows := pgpool.Rows(ctx, w.cfg.DB, `
		SELECT d.id, d.did, d.device_id, d.reason, d.attempts, d.version, coalesce(d.last_error, ''), coalesce(t.kind, ''),
			coalesce(t.address, '')
		FROM push_jobs d LEFT JOIN push_targets t ON t.did = d.did AND t.device_id = d.device_id AND t.state = 'active'
		WHERE d.state IN ('pending', 'sending') AND next_attempt_at <= now() AND coalesce(t.kind, '') <> ALL ($2::text[])
			AND (d.state = 'sending' OR NOT EXISTS (
				SELECT FROM push_jobs s WHERE s.did = d.did AND s.device_id = d.device_id AND s.state = 'sending'))
			AND (heard_by IS NULL OR next_attempt_at <= now() - $3::interval OR NOT EXISTS (
				SELECT FROM presence p JOIN nodes n ON n.id = p.node
				WHERE n.lease_expires_at > clock_timestamp() AND (p.did, p.device_id) = (d.did, d.device_id)
					AND (p.since <= d.heard_by - $4::interval OR p.attached_since <= d.heard_from)))
		ORDER BY next_attempt_at LIMIT $1`, queueSize, w.pools.exhausted(), reportWithin, catchUpWithin)
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j Job, err error) {
		t := Target{DID: j.DID}
		err = row.Scan(&j.ID, &t.DID, &j.DeviceID, &j.Reason, &j.attempt, &j.version, &j.lastError, &t.Kind, &t.Address)
		j.DID, j.call = t.DID, w.pools.of(t)
		return j, err
	})
	return jobs, errs.Wrap(err, "look for push jobs")
}

// take commits that this worker sends the jobs, which have been admitted. It returns the jobs that
// no other worker has taken, and that no new message has deferred. It releases the places of all
// other jobs.
func (w *Worker) take(ctx context.Context, start []Job) ([]Job, error) {
	if len(start) == 0 {
		return nil, nil
	}
	dids, ids, versions := keys(start)
	taken := map[uuid.UUID]bool{}
	batch := &pgx.Batch{} // one transaction
	batch.Queue(`SELECT set_config('mlsd.reason', 'push', true)`)
	batch.Queue(`
		UPDATE push_jobs j
		SET state = 'sending', attempts = attempts + 1, next_attempt_at = now() + $4::interval, heard_by = NULL, version =
			version + 1
		FROM (
			SELECT d.did, d.id FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS s (did, id, version)
			JOIN push_jobs d ON d.did = s.did AND d.id = s.id AND d.version = s.version
			WHERE d.state IN ('pending', 'sending') AND d.next_attempt_at <= now() FOR UPDATE OF d SKIP LOCKED
		) due
		WHERE j.did = due.did AND j.id = due.id
		RETURNING j.id`, dids, ids, versions, w.cfg.Operation.Lease+takeOverAfterLease).
		Query(func(rows pgx.Rows) error {
			var id uuid.UUID
			_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
				taken[id] = true
				return nil
			})
			return err
		})
	err := w.cfg.DB.SendBatch(ctx, batch).Close()
	var jobs []Job
	for _, j := range start {
		if err != nil || !taken[j.ID] {
			j.place.Release()
			continue
		}
		j.attempt++
		j.version++
		jobs = append(jobs, j)
	}
	return jobs, errs.Wrap(err, "take push jobs")
}

// putBack makes jobs due later, because enough calls of their DID or host are running.
func (w *Worker) putBack(ctx context.Context, jobs []Job) error {
	if len(jobs) == 0 {
		return nil
	}
	dids, ids, versions := keys(jobs)
	_, err := w.cfg.DB.Exec(ctx, `
		UPDATE push_jobs SET next_attempt_at = now() + $4::interval
		WHERE (did, id) IN (
			SELECT d.did, d.id FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS s (did, id, version)
			JOIN push_jobs d ON d.did = s.did AND d.id = s.id AND d.version = s.version
			WHERE d.state IN ('pending', 'sending') AND d.next_attempt_at <= now() FOR UPDATE OF d SKIP LOCKED)`,
		dids, ids, versions, busyDelay)
	return errs.Wrap(err, "put push jobs back")
}

// errOpen is stored as the error of a job that is not called because its host fails.
const errOpen = "its host does not answer, and was not called"

// skip counts an attempt for jobs whose host is not called now, and makes them due after their
// waits. A job that has no attempt left is taken later and ends without a call.
func (w *Worker) skip(ctx context.Context, jobs []Job) error {
	if len(jobs) == 0 {
		return nil
	}
	dids, ids, versions := keys(jobs)
	waits := make([]time.Duration, len(jobs))
	for i, j := range jobs {
		waits[i] = j.wait
	}
	_, err := w.cfg.DB.Exec(ctx, `
		UPDATE push_jobs j SET attempts = attempts + 1, next_attempt_at = now() + due.wait, heard_by = NULL, last_error = $5
		FROM (
			SELECT d.did, d.id, s.wait FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::interval[]) AS s (did, id, version,
				wait)
			JOIN push_jobs d ON d.did = s.did AND d.id = s.id AND d.version = s.version
			WHERE d.state IN ('pending', 'sending') AND d.next_attempt_at <= now() FOR UPDATE OF d SKIP LOCKED
		) due
		WHERE j.did = due.did AND j.id = due.id`, dids, ids, versions, waits, errOpen)
	return errs.Wrap(err, "skip push jobs")
}

// keys returns the keys and versions of jobs as three parallel parameters.
func keys(jobs []Job) (dids []syntax.DID, ids []uuid.UUID, versions []int64) {
	for _, j := range jobs {
		dids, ids, versions = append(dids, j.DID), append(ids, j.ID), append(versions, j.version)
	}
	return dids, ids, versions
}
