package erasure

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

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
	// tries is how often a service is asked that cannot be reached, and triesPause the time between.
	tries      = 3
	triesPause = time.Minute
)

// tellServices asks the services where the person has accepted invitations to erase it too. A service
// that cannot be reached does not keep the person here: the job says which one it was. The position is
// the number of failed rounds.
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
		j.tell(ctx, more)
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

// tell asks services, all at a time.
func (j *job) tell(ctx context.Context, services []syntax.DID) {
	var all sync.WaitGroup
	outcomes := make([]string, len(services))
	for i, to := range services {
		all.Go(func() {
			refused, err := j.w.cfg.Tell(ctx, to, j.person.DID)
			switch {
			case err == nil:
				outcomes[i] = Told
			case refused:
				outcomes[i] = Refused
			default:
				outcomes[i] = NotReached
			}
			if err != nil {
				j.w.cfg.Log.WarnContext(ctx, "a service did not take an erasure", "erasure", j.id, "service", to, "error", err)
			}
		})
	}
	all.Wait()
	for i, to := range services {
		j.services[to] = outcomes[i]
	}
}
