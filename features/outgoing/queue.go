package outgoing

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
)

// Queue makes attempts at the jobs of one table.
type Queue struct {
	Job       string // what a job is called in the log, such as "a push job"
	Writes    *idem.Store
	Operation idem.Operation // lifetimes of the jobs' records, and of leases
	Log       *slog.Logger
	Faults    *failpoint.Set
	// The longest delay before attempt 2 is FirstDelay. Each further attempt multiplies it by Factor,
	// up to LastDelay.
	FirstDelay, LastDelay time.Duration
	Factor                int
	// Jitter picks a delay up to longest. The default picks at random.
	Jitter func(longest time.Duration) time.Duration
}

// Retry ends an attempt that is to be repeated.
type Retry struct {
	Cause error
	After time.Duration // the receiver asks for at least this delay; 0 means none
}

func (e *Retry) Error() string { return "to be tried again: " + e.Cause.Error() }
func (e *Retry) Unwrap() error { return e.Cause }

// Ended is how a job ended. Committed is called after the COMMIT that ends the job; it can be nil.
type Ended struct {
	idem.Done
	Committed func()
}

// Attempt is one attempt at a job that this node has taken.
type Attempt struct {
	Key    string // of the job's record; the same in all attempts and versions of the server
	Number int
	// Work makes the call. A *Retry postpones the job. After any other error, another node takes the
	// job once it is overdue.
	Work func(context.Context) (Ended, error)
	// Postpone stores that the job is due again after a delay. reason is "" if there is nothing to say.
	Postpone func(ctx context.Context, delay time.Duration, reason string) error
}

// content is compared with the job's record. It is the same in every version of the server, because
// another version may make the next attempt.
func content(key string) idem.Content {
	return idem.Content{{Name: "job", JSON: []byte(`"` + key + `"`)}}
}

// Make makes an attempt under the job's record. It reports in the log what it leaves undone.
func (q *Queue) Make(ctx context.Context, a Attempt) {
	var committed func()
	err := q.Faults.Hit(ctx, failpoint.BeforeReserve, q.Operation.NSID)
	if err == nil {
		_, err = q.Writes.Run(ctx, idem.Request{
			Caller: "mlsd", NSID: q.Operation.NSID, Key: a.Key, Life: q.Operation.Life, Lease: q.Operation.Lease,
			Input: content(a.Key),
		}, func(ctx context.Context, _ int64) (idem.Done, error) {
			ended, err := a.Work(ctx)
			committed = ended.Committed
			return ended.Done, err
		})
	}
	retry, isRetry := errors.AsType[*Retry](err)
	running, isRunning := errors.AsType[*idem.RunningError](err)
	switch {
	case err == nil:
		if committed != nil {
			committed()
		}
		return
	case isRetry:
		err = a.Postpone(ctx, q.Delay(a.Number, retry.After), Clip(retry.Cause.Error()))
	case isRunning: // the job's last worker is late, but its lease has not expired
		err = a.Postpone(ctx, running.Left, "")
	case errors.Is(err, idem.ErrLeaseLost):
		q.Log.WarnContext(ctx, q.Job+" was taken over", "job", a.Key)
		return
	}
	if err != nil {
		q.Log.ErrorContext(ctx, q.Job+" is left for another worker", "job", a.Key, "error", err)
	}
}

// Delay is how long to wait after an attempt: back-off with full jitter, and at least the delay that
// the receiver asks for.
func (q *Queue) Delay(attempt int, after time.Duration) time.Duration {
	longest := q.FirstDelay
	for range attempt - 1 {
		longest = min(time.Duration(q.Factor)*longest, q.LastDelay)
	}
	jitter := q.Jitter
	if jitter == nil {
		jitter = rand.N[time.Duration]
	}
	return max(jitter(longest), min(after, q.LastDelay))
}

// Clip shortens a receiver's text, and makes it text that the database accepts.
func Clip(reason string) string { return pgpool.Storable(reason[:min(len(reason), 200)]) }
