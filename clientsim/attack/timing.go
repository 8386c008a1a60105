package attack

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// timings belongs to promise 8: a person outside a convo learns nothing about it, not even from the
// time of an answer.
func timings() []Attack {
	return []Attack{{"timing", "P8",
		"accounts outside of a convo measure whether a convo exists, and whether somebody has blocked them", measureAnswers}}
}

// The accounts that measure. All of them stay below their rate limits.
const (
	measurers    = 60
	pairsPerSec  = 120 // pairs of requests
	measureLanes = 2
	devices      = 10 // of the person who has blocked them
	// deviations is how far a comparison may differ from an even result, in standard deviations of
	// an even result.
	deviations = 4
)

// comparison is a pair of calls that an outsider must not be able to tell apart.
type comparison struct {
	what   string
	hidden func(who syntax.DID) xrpc.Call // about something that exists
	absent func(who syntax.DID) xrpc.Call

	mu            sync.Mutex // guards the fields below
	pairs, slower int        // slower counts pairs whose answer to hidden took longer
	differ        int        // pairs whose answers differ
}

// measureAnswers compares the times of answers, pair by pair and in random order. If an outsider
// can learn nothing, the answer about something that exists is slower in half of the pairs.
func measureAnswers(ctx context.Context, t *Target) *Prepared {
	askers, others, c := t.accounts(measurers), t.accounts(2), t.client(0)
	blocker, empty := others[0], others[1]
	for range devices {
		Must(testbed.Publish(ctx, c, blocker, 0, true))
	}
	for _, who := range askers {
		Must(c.Do(ctx, blocker, xrpc.BlockCall(who.DID, xrpc.NewKey())))
	}
	known := t.honest.convos[0]
	made := honestConvo{id: uuid.Must(uuid.NewV7()).String(), group: mlsclient.RandomBytes(len(known.group))}
	all := []*comparison{{what: mlsapi.NSIDGetKeyPackages,
		hidden: func(syntax.DID) xrpc.Call { return claimOf(blocker.DID) },
		absent: func(syntax.DID) xrpc.Call { return claimOf(empty.DID) }}}
	for _, call := range []func(honestConvo, syntax.DID) xrpc.Call{
		func(c honestConvo, _ syntax.DID) xrpc.Call { return xrpc.ConvoCall(c.id) },
		func(c honestConvo, _ syntax.DID) xrpc.Call { return xrpc.MessagesCall(c.id, "all", 0, 50) },
		func(c honestConvo, _ syntax.DID) xrpc.Call { return xrpc.GroupInfoCall(c.id) },
		func(c honestConvo, _ syntax.DID) xrpc.Call { return xrpc.WelcomeCall(c.id, "") },
		func(c honestConvo, who syntax.DID) xrpc.Call {
			return xrpc.SendCall(c.id, who, 1, mlsclient.FakeMessage(c.group, 1, smallMessage), xrpc.NewKey())
		},
	} {
		all = append(all, &comparison{what: call(known, "").Method.String(),
			hidden: func(who syntax.DID) xrpc.Call { return call(known, who) },
			absent: func(who syntax.DID) xrpc.Call { return call(made, who) }})
	}
	return &Prepared{
		Run: func(ctx context.Context) {
			pace(ctx, pairsPerSec, measureLanes, func(ctx context.Context, i int) {
				all[i%len(all)].measure(ctx, t, c, askers[i/len(all)%len(askers)])
			})
		},
		Judge: func() (claims []Claim) {
			for _, one := range all {
				claims = append(claims, one.claims()...)
			}
			return claims
		},
	}
}

// measure makes one pair of calls. A pair does not count if an answer is missing, or is about a
// rate limit.
func (c *comparison) measure(ctx context.Context, t *Target, client *xrpc.Client, who *xrpc.Account) {
	calls := []xrpc.Call{c.hidden(who.DID), c.absent(who.DID)}
	took, status := make([]time.Duration, len(calls)), make([]int, len(calls))
	first := rand.IntN(len(calls))
	for _, i := range []int{first, 1 - first} {
		begun := time.Now()
		status[i], _ = t.once(ctx, client, who, calls[i]) // a refusal is an answer
		took[i] = time.Since(begun)
		if s := status[i]; s == 0 || s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable {
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pairs++
	if took[0] > took[1] {
		c.slower++
	}
	if status[0] != status[1] {
		c.differ++
	}
}

// claims returns how uneven the comparison is.
func (c *comparison) claims() []Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	share, deviation := math.NaN(), math.NaN()
	if c.pairs > 0 {
		share = 100 * float64(c.slower) / float64(c.pairs)
		deviation = 100 * 0.5 / math.Sqrt(float64(c.pairs))
	}
	return []Claim{
		{fmt.Sprintf("%s: per cent from half, of %d pairs, in which the answer about what exists is slower", c.what, c.pairs),
			tenths(math.Abs(share - 50)), tenths(deviations * deviation)},
		{c.what + ": answers with another status", float64(c.differ), 0},
	}
}

func tenths(x float64) float64 { return math.Round(10*x) / 10 }
