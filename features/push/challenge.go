package push

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/features/outgoing"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// A webhook is used only after its owner has agreed. The worker sends a challenge to the URL, and
// the answer must be the challenge itself and nothing else: a server that repeats the request's
// body, or answers everything with 200, has not agreed. docs/PUSH.md has the form.
const (
	// maxChallenges is how many challenges a target gets before it counts as failed. The delays are
	// the delays of jobs, so this takes up to 20 minutes.
	maxChallenges = 8

	// challengeBatch is how many due challenges one round reads.
	challengeBatch = 64

	// challengeLease is how long after a worker took a challenge another worker may take it.
	challengeLease = time.Minute
)

// State says whether a target may be called.
type State string

const (
	Pending State = "pending" // the target has not answered its challenge yet
	Active  State = "active"
	Failed  State = "failed" // the target has answered no challenge; another registration starts again
)

// errWrongAnswer says that an answer to a challenge is not the challenge.
var errWrongAnswer = errors.New("the answer is not the challenge")

// challenge is a target that must be challenged.
type challenge struct {
	target  Target
	attempt int
	place   outgoing.Place
}

// takeChallenges commits that this worker challenges the due targets for which there is a place.
// more says that other targets may be due.
func (w *Worker) takeChallenges(ctx context.Context) (taken []challenge, more bool, err error) {
	if w.cfg.Webhooks == nil {
		return nil, false, nil
	}
	rows := pgpool.Rows(ctx, w.cfg.DB, `
		SELECT did, device_id, kind, address, secret, challenge_attempts FROM push_targets
		WHERE challenge_at <= now() ORDER BY challenge_at LIMIT $1`, challengeBatch)
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c challenge, err error) {
		t := &c.target
		err = row.Scan(&t.DID, &t.DeviceID, &t.Kind, &t.Address, &t.Secret, &c.attempt)
		return c, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("look for challenges: %w", err)
	}
	for _, c := range due {
		p, v, wait := w.pools.Acquire(outgoing.Call{Pool: w.pools.challenges, Caller: c.target.DID.String(),
			Host: c.target.host()})
		c.place = p
		switch v {
		case outgoing.Full:
			return taken, false, nil
		case outgoing.Busy:
			wait = busyDelay
		case outgoing.Open:
			if c.attempt >= maxChallenges {
				if err := w.refute(ctx, c, errors.New(errOpen)); err != nil {
					return taken, false, err
				}
				continue
			}
			wait = max(wait, w.jobs.Delay(c.attempt+1, 0))
		case outgoing.Admitted:
			wait = challengeLease
		}
		counts := v == outgoing.Admitted || v == outgoing.Open
		won, err := w.schedule(ctx, c, wait, counts)
		if v == outgoing.Admitted && (err != nil || !won) {
			p.Release()
		}
		if err != nil {
			return taken, false, err
		}
		if v == outgoing.Admitted && won {
			c.attempt++
			taken = append(taken, c)
		}
	}
	return taken, len(due) == challengeBatch, nil
}

// schedule stores when a challenge is due again, and whether this is an attempt. won is false if
// the target was changed meanwhile, for example by another worker.
func (w *Worker) schedule(ctx context.Context, c challenge, wait time.Duration, counts bool) (won bool, err error) {
	tag, err := w.cfg.DB.Exec(ctx, `
		UPDATE push_targets
		SET challenge_at = now() + $6::interval, challenge_attempts = challenge_attempts + CASE WHEN $7 THEN 1 ELSE 0 END
		WHERE did = $1 AND device_id = $2 AND address = $3 AND secret = $4 AND challenge_attempts = $5 AND challenge_at <=
			now()`,
		c.target.DID, c.target.DeviceID, c.target.Address, c.target.Secret, c.attempt, wait, counts)
	return tag.RowsAffected() == 1, errs.Wrap(err, "schedule a challenge")
}

// challenge makes one challenge and stores its outcome. If this fails, another worker repeats the
// challenge once challengeLease is over.
func (w *Worker) challenge(ctx context.Context, c challenge) {
	ctx, cancel := context.WithTimeout(ctx, w.pools.challenges.Timeout+databaseTimeout)
	defer cancel()
	cause := w.challengeOnce(ctx, c)
	var err error
	if cause == nil {
		w.cfg.Metrics.PushChallenged("passed", "")
		err = w.activate(ctx, c.target)
	} else {
		w.cfg.Metrics.PushChallenged("failed", reasonOf(cause))
		err = w.refute(ctx, c, cause)
	}
	if err != nil {
		w.cfg.Log.ErrorContext(ctx, "the outcome of a challenge is not stored", "device", c.target.DeviceID, "error", err)
	}
}

func (w *Worker) challengeOnce(ctx context.Context, c challenge) error {
	limited, cancel := context.WithTimeout(ctx, w.pools.challenges.Timeout)
	defer cancel()
	err := w.cfg.Webhooks.challenge(limited, c.target)
	switch {
	case ctx.Err() != nil: // the server is stopping
	case errors.Is(err, errWrongAnswer), err != nil && resultOf(err) != outgoing.Failed:
		c.place.Report(outgoing.Answered)
	case err != nil:
		c.place.Report(outgoing.Failed)
	default:
		c.place.Report(outgoing.Succeeded)
	}
	return err
}

// challenge sends a new challenge to a target. It returns nil if the answer is right.
func (h *Webhooks) challenge(ctx context.Context, t Target) error {
	text := rand.Text()
	body, err := json.Marshal(struct {
		Type      string `json:"type"`
		DeviceID  string `json:"deviceId"`
		Challenge string `json:"challenge"`
	}{"challenge", t.DeviceID, text})
	if err != nil {
		return err
	}
	answer, err := h.post(ctx, t, "mlsd-challenge-"+text, body)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(answer)) != text {
		return errWrongAnswer
	}
	return nil
}

// activate makes a target active that has answered its challenge. If a call of its device was
// missed meanwhile, the device is called now.
func (w *Worker) activate(ctx context.Context, t Target) error {
	_, err := w.cfg.DB.Exec(ctx, `
		WITH old AS (
			SELECT did, device_id, missed FROM push_targets
			WHERE did = $1 AND device_id = $2 AND address = $3 AND secret = $4 AND state = 'pending' FOR UPDATE
		), activated AS (
			UPDATE push_targets t SET state = 'active', challenge_at = NULL, missed = NULL
			FROM old WHERE t.did = old.did AND t.device_id = old.device_id
			RETURNING t.did, t.device_id, old.missed
		)
		INSERT INTO push_jobs (did, id, device_id, reason, next_attempt_at, created_at)
		SELECT did, gen_random_uuid(), device_id, missed, clock_timestamp(), clock_timestamp() FROM activated WHERE missed IS
			NOT NULL
		ON CONFLICT (did, device_id) WHERE state = 'pending' DO NOTHING`, t.DID, t.DeviceID, t.Address, t.Secret)
	return errs.Wrap(err, "activate a target")
}

// refute stores that a challenge was not answered, and when the next challenge is due.
func (w *Worker) refute(ctx context.Context, c challenge, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postponeTimeout)
	defer cancel()
	last := c.attempt >= maxChallenges
	_, err := w.cfg.DB.Exec(ctx, `
		UPDATE push_targets
		SET state = CASE WHEN $6 THEN 'failed' ELSE state END, challenge_at = CASE WHEN NOT $6 THEN now() + $7::interval END
		WHERE did = $1 AND device_id = $2 AND address = $3 AND secret = $4 AND challenge_attempts = $5 AND state = 'pending'`,
		c.target.DID, c.target.DeviceID, c.target.Address, c.target.Secret, c.attempt, last,
		w.jobs.Delay(c.attempt, afterOf(cause)))
	if err != nil {
		return fmt.Errorf("end a challenge: %w", err)
	}
	w.cfg.Log.DebugContext(ctx, "a webhook has not answered its challenge", "attempt", c.attempt, "last", last,
		"error", cause)
	return nil
}

// miss returns the effect that records that a device could not be called, because its target is not
// active. It runs in the transaction that ends the job. The device is called once the target is
// active.
func miss(j Job) effect {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE push_targets SET missed = CASE WHEN missed = 'welcome' THEN missed ELSE $3 END
			WHERE did = $1 AND device_id = $2 AND state <> 'active'`, j.DID, j.DeviceID, j.Reason)
		return errs.Wrap(err, "note a call that was not made")
	}
}
