package erasure

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/events"
	"mlsd/features/attachments"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/features/reports"
	"mlsd/features/requests"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/errs"
	"mlsd/internal/serviceauth"
	"mlsd/internal/tombstone"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/people/consent"
	"mlsd/people/quota"
	"mlsd/people/sessions"
	"mlsd/welcome"
)

// step is a part of a job: either run, or a scan. run executes one batch, and reports whether it
// was the last one. It stores its place in position. A repeated batch does no harm.
type step struct {
	name string
	run  func(ctx context.Context, j *job) (done bool, err error)
	scan *scan
}

// steps returns all steps in order.
//
// First the person leaves its convos, and connected members get events that name it. Then the
// person's own data is deleted. Then the person's name is removed from the data of others. Events
// come before rosters, because the rosters say in which convos the person was. At the end a search
// reads every table.
func steps(cfg Config) []step {
	return []step{
		{name: "forget key", run: forgetKey},
		{name: "sessions", run: rows("subscription_tickets",
			func(ctx context.Context, tx pgx.Tx, p tombstone.Person, _ int) (int64, error) {
				return events.EraseSessions(ctx, tx, p)
			})},
		{name: "direct sessions", run: rows("sessions", sessions.Erase)},
		{name: "confirmations", run: once("erasure_confirmations", eraseConfirmations)},
		{name: "leave", run: leave},
		{name: "KeyPackages", run: rows("key_packages", keypackages.Erase)},
		{name: "push", run: rows("push_jobs", push.Erase)},
		{name: "blocks", run: rows("blocks", consent.Erase)},
		{name: "invitations", run: rows("invitations", convos.EraseInvitations)},
		{name: "other services", run: tellServices},
		{name: "invitations between services", run: rows("received_invitations", network.Erase)},
		{name: "reports", run: rows("abuse_reports", reports.Erase)},
		{name: "attachments", run: rows("attachments", attachments.Erase)},
		{name: "log", run: eachConvo(eraseLog)},
		{name: "records", run: rows("idempotency_keys", idem.Erase)},
		{name: "claims", run: rows("key_packages", keypackages.EraseClaims)},
		{name: "others' answers", scan: &scan{"idempotency_keys", idem.EraseAnswers}},
		{name: "rest", run: rest},
		{name: "outbox", run: awaitStream},
		{name: "stream", scan: &scan{"events", events.Erase}},
		{name: "rosters", run: eachConvo(eraseRoster)},
		{name: "audit", scan: &scan{"audit_log", idem.EraseAudit}},
		{name: "usage", run: once("caller_counts", requests.EraseCounts)},
		{name: "quotas", run: once("quota_counts", quota.Erase)},
		{name: "recorded requests", scan: &scan{"requests", requests.Erase}},
		{name: "operators' actions", scan: &scan{"admin_actions", cfg.EraseActions}},
		{name: "key", run: once("identity_keys", serviceauth.Erase)},
		{name: "search", scan: &scan{}},
		{name: "end", run: func(ctx context.Context, j *job) (bool, error) {
			return true, j.w.cfg.Accounts.EndErasure(ctx, j.tx, j.person)
		}},
	}
}

// once makes a step of a single batch.
func once(table string, erase func(ctx context.Context, tx pgx.Tx, p tombstone.Person) (int64, error),
) func(context.Context, *job) (bool, error) {
	return func(ctx context.Context, j *job) (bool, error) {
		n, err := erase(ctx, j.tx, j.person)
		j.add(table, n)
		return true, err
	}
}

// rows makes a step whose batches each delete up to batchRows rows.
func rows(table string, erase func(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64,
	error)) func(context.Context, *job) (bool, error) {
	return func(ctx context.Context, j *job) (bool, error) {
		n, err := erase(ctx, j.tx, j.person, batchRows)
		j.add(table, n)
		return n == 0, err
	}
}

// eachConvo makes a step that calls erase for every convo in which the person is or was a member,
// until erase has nothing more to do there.
func eachConvo(erase func(ctx context.Context, j *job, convo uuid.UUID) (more bool, err error)) func(context.Context,
	*job) (bool, error) {
	return func(ctx context.Context, j *job) (bool, error) {
		after := uuid.Nil
		if j.position != "" {
			var err error
			if after, err = uuid.Parse(j.position); err != nil {
				return false, fmt.Errorf("read the position: %w", err)
			}
		}
		convo, ok, err := convos.NextOf(ctx, j.tx, j.person, after)
		if err != nil || !ok {
			return true, err
		}
		more, err := erase(ctx, j, convo)
		if !more {
			j.position = convo.String()
		}
		return false, err
	}
}

// forgetKey makes every node forget the account's key. That is not part of the transaction, and a
// repetition does no harm.
func forgetKey(ctx context.Context, j *job) (bool, error) {
	return true, j.w.cfg.Forget(ctx, j.person.DID)
}

func leave(ctx context.Context, j *job) (bool, error) {
	left, err := j.w.cfg.Remover.EraseMembership(ctx, j.tx, j.person)
	return !left, err
}

// eraseLog deletes the records of the person's writes on a convo, and removes the person's name
// from the log. Records are locked before their convo, as in every write.
func eraseLog(ctx context.Context, j *job, convo uuid.UUID) (bool, error) {
	records, err := idem.Forget(ctx, j.tx, []syntax.DID{j.person.DID}, convo.String())
	if err != nil {
		return false, err
	}
	j.add("idempotency_keys", records)
	if err := transparency.EraseSender(ctx, j.tx, j.person, convo); err != nil {
		return false, err
	}
	entries, more, err := messages.EraseSender(ctx, j.tx, j.person, convo, batchRows)
	j.add("messages", entries)
	if err != nil || more {
		return more, err
	}
	senders, err := transparency.ForgetSender(ctx, j.tx, j.person, convo)
	j.add("log_senders", senders)
	return false, err
}

// rest waits until every node has read that the account's key is forgotten, and until connected
// members have got the events of the person's departure.
func rest(_ context.Context, j *job) (bool, error) {
	const rested = "rested"
	if j.position == rested {
		return true, nil
	}
	j.position, j.wait = rested, j.w.cfg.KeyRest
	return false, nil
}

// sequencerDelay is how long it usually takes, at most, until an event of the outbox is in the
// stream.
const sequencerDelay = 500 * time.Millisecond

// awaitStream waits until every event that names the person is in the stream.
func awaitStream(ctx context.Context, j *job) (bool, error) {
	waiting, err := events.Waiting(ctx, j.tx, j.person)
	if waiting > 0 {
		j.wait = sequencerDelay
	}
	return waiting == 0, err
}

// eraseRoster removes the person's name from a convo, its Welcomes and its waiting pushes. The
// convo is locked before its Welcomes, as in every write. The roster is erased after the last
// Welcomes, because it says that the person was in the convo.
func eraseRoster(ctx context.Context, j *job, convo uuid.UUID) (more bool, err error) {
	if err := convos.Lock(ctx, j.tx, convo); err != nil {
		return false, err
	}
	welcomes, more, err := welcome.Erase(ctx, j.tx, j.person, convo, batchRows)
	j.add("welcomes", welcomes)
	if err != nil || more {
		return more, err
	}
	roster, err := convos.Erase(ctx, j.tx, j.person, convo)
	if err != nil {
		return false, err
	}
	j.add("members", roster)
	pushes, err := push.EraseSender(ctx, j.tx, j.person, convo)
	j.add("push_convos", pushes)
	return false, err
}

// Results of the request to another service.
const (
	Told       = "told"
	Refused    = "refused"
	NotReached = "not reached"
)

const (
	// servicesAtOnce is how many services one batch asks. A batch lasts as long as one call.
	servicesAtOnce = 16
	// askingMost is how many jobs of a node ask services at one time.
	askingMost = 16
	// An unreachable service is asked tries times, with a pause of triesPause.
	tries      = 3
	triesPause = time.Minute
	// askLease is longer than the calls can last. If the node ends meanwhile, another node asks
	// again.
	askLease = time.Minute
)

// tellServices chooses the services that tell asks to erase the person too: the services where the
// person has accepted invitations. If a service cannot be reached, the erasure here goes on, and
// the job names the service. The position is the number of failed rounds.
func tellServices(ctx context.Context, j *job) (done bool, err error) {
	if j.pass > 1 { // the invitations were deleted in the first pass
		return true, nil
	}
	asked := slices.Collect(maps.Keys(j.services))
	more, err := network.Joined(ctx, j.tx, j.person.DID, asked, servicesAtOnce)
	if err != nil {
		return false, err
	}
	if len(more) > 0 {
		j.asks, j.wait = more, askLease
		return false, nil
	}
	failed, err := strconv.Atoi(j.position)
	if err != nil {
		failed = 0
	}
	if failed++; failed == tries || !slices.Contains(slices.Collect(maps.Values(j.services)), NotReached) {
		return true, nil
	}
	maps.DeleteFunc(j.services, func(_ syntax.DID, outcome string) bool { return outcome == NotReached })
	j.position, j.wait = strconv.Itoa(failed), triesPause
	return false, nil
}

// tell asks all services at the same time, and stores the outcomes. No transaction is open during
// the calls. If another node has taken the job meanwhile, that node asks too, which changes nothing
// at the services, and the outcomes of this node are dropped.
func (w *Worker) tell(ctx context.Context, j *job) error {
	var all sync.WaitGroup
	outcomes := make([]string, len(j.asks))
	for i, to := range j.asks {
		all.Go(func() {
			refused, err := w.cfg.Tell(ctx, to, j.person.DID)
			switch {
			case err == nil:
				outcomes[i] = Told
			case refused:
				outcomes[i] = Refused
			default:
				outcomes[i] = NotReached
			}
			if err != nil {
				w.cfg.Log.WarnContext(ctx, "a service did not take an erasure", "erasure", j.id, "service", to, "error", err)
			}
		})
	}
	all.Wait()
	for i, to := range j.asks {
		j.services[to] = outcomes[i]
	}
	_, err := w.cfg.DB.Exec(ctx, `
		UPDATE erasures SET services = $3, not_before = clock_timestamp(), moved_at = clock_timestamp()
		WHERE id = $1 AND moved_at = $2 AND state = 'running'`, j.id, j.moved, j.services)
	return errs.Wrap(err, "store what services have answered")
}
