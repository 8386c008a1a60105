package operator

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/push"
)

// jobParams name a push job.
var jobParams = []Param{didParam, {Name: "id", Usage: "the push job's id", Kind: ID}}

var pushRetry = Method{
	Noun: "push", Verb: "retry", Usage: "call a device now instead of later; a dead job is replaced by a new one",
	Params: jobParams, Write: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		due, err := push.Retry(ctx, tx, c.did(), c.id("id"))
		return PushRetried{c.did(), due}, err
	},
}

// PushRetried is the result of push.retry.
type PushRetried struct {
	DID syntax.DID `json:"did"`
	Due uuid.UUID  `json:"due"` // the job that a worker takes next: a new job if the given one is dead
}

var pushDrop = Method{
	Noun: "push", Verb: "drop", Usage: "end a push job without a further call",
	Params: jobParams, Write: true, Final: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		const note = "A worker ends the job within seconds. A call that is under way is not stopped."
		return PushDropped{c.did(), c.id("id"), note}, push.Drop(ctx, tx, c.did(), c.id("id"))
	},
}

// PushDropped is the result of push.drop.
type PushDropped struct {
	DID  syntax.DID `json:"did"`
	ID   uuid.UUID  `json:"id"`
	Note string     `json:"note"`
}

var inspectPush = question("push", "push jobs that wait", countPushJobs)

// PushJobs are the push jobs by state.
type PushJobs struct {
	Jobs       []PushJobCount `json:"jobs"`
	LastErrors []ErrorCount   `json:"lastErrors"` // last errors of jobs that are not done
}

// PushJobCount counts the push jobs in a state.
type PushJobCount struct {
	State         string  `json:"state"`
	Count         int64   `json:"count" text:"jobs"`
	Due           int64   `json:"due"`
	OldestSeconds float64 `json:"oldestSeconds" text:"oldest"`
	Attempts      int64   `json:"attempts"`
}

func countPushJobs(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	var r PushJobs
	var err error
	r.Jobs, err = list[PushJobCount](ctx, tx, `
		SELECT state, count(*), count(*) FILTER (WHERE state IN ('pending', 'sending') AND next_attempt_at <= now()),
			extract(epoch FROM now() - min(created_at))::float8, sum(attempts)
		FROM push_jobs GROUP BY state ORDER BY state`)
	if err != nil {
		return nil, err
	}
	r.LastErrors, err = list[ErrorCount](ctx, tx, `
		SELECT left(last_error, 80), count(*) FROM push_jobs WHERE last_error IS NOT NULL AND state <> 'done'
		GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $1`, c.rows())
	return r, err
}
