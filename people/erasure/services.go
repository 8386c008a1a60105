package erasure

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/errs"
	"mlsd/internal/network"
)

// What has become of the request to another service.
const (
	Told       = "told"
	Refused    = "refused"
	NotReached = "not reached"
)

const (
	// servicesAtOnce is how many services one batch asks. A batch lasts as long as one call.
	servicesAtOnce = 16
	// askingMost is how many jobs of a node ask at a time.
	askingMost = 16
	// tries is how often a service is asked that cannot be reached, and triesPause the time between.
	tries      = 3
	triesPause = time.Minute
	// askLease is longer than the calls last. If the node ends meanwhile, another one asks again.
	askLease = time.Minute
)

// tellServices chooses the services that tell asks to erase the person too: those where it has
// accepted invitations. A service that cannot be reached does not keep the person here: the job says
// which one it was. The position is the number of failed rounds.
func tellServices(ctx context.Context, j *job) (done bool, err error) {
	if j.pass > 1 { // the invitations are gone
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

// tell asks the services, all at a time, and stores the outcomes. No transaction is open during the
// calls. If another node has taken the job meanwhile, that one asks too, which changes nothing there,
// and these outcomes are dropped.
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
