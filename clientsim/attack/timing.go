package attack

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
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
	// deviations is how far a comparison may differ from an even result, in standard deviations of
	// an even result.
	deviations = 4
)

// comparison is a pair of calls that an outsider must not be able to tell apart.
type comparison struct {
	what   string
	hidden func(who *xrpc.Account) xrpc.Call // about something that exists
	absent func(who *xrpc.Account) xrpc.Call

	mu            sync.Mutex // guards the fields below
	pairs, slower int        // slower counts pairs whose answer to hidden took longer
	differ        int        // pairs whose answers differ
}

// measureAnswers compares the times of answers, pair by pair and in random order. If an outsider
// can learn nothing, the answer about something that exists is slower in half of the pairs.
func measureAnswers(ctx context.Context, t *Target) *Prepared {
	askers := t.accounts(measurers)
	others := t.accounts(3)
	blocker, empty := others[0], others[1]
	large := t.largeGroup(ctx, others[2])
	c := t.client(0)
	publishFat(ctx, c, blocker)
	for _, who := range askers {
		Must(c.Do(ctx, blocker, xrpc.BlockCall(who.DID, xrpc.NewKey())))
	}
	known := t.honest.convos[0]
	made := honestConvo{id: uuid.Must(uuid.NewV7()).String(), group: mlsclient.RandomBytes(len(known.group))}
	all := []*comparison{
		convoCalls("getConvo", known, made, func(_ *xrpc.Account, c honestConvo) xrpc.Call { return xrpc.ConvoCall(c.id) }),
		convoCalls("getMessages", known, made, func(_ *xrpc.Account, c honestConvo) xrpc.Call {
			return xrpc.MessagesCall(c.id, mlsapi.GetMessagesParamsMessageTypeAll, 0, 50)
		}),
		convoCalls("getGroupInfo", known, made,
			func(_ *xrpc.Account, c honestConvo) xrpc.Call { return xrpc.GroupInfoCall(c.id) }),
		convoCalls("getWelcome", known, made,
			func(_ *xrpc.Account, c honestConvo) xrpc.Call { return xrpc.WelcomeCall(c.id, "") }),
		convoCalls("sendMessage", known, made, func(who *xrpc.Account, c honestConvo) xrpc.Call {
			return xrpc.SendCall(c.id, who.DID, 1, mlsclient.FakeMessage(c.group, 1, smallMessage), xrpc.NewKey())
		}),
		convoCalls("an external proposal", large, honestConvo{id: made.id, group: large.group},
			func(who *xrpc.Account, c honestConvo) xrpc.Call {
				return xrpc.SendCall(c.id, who.DID, 2, externalProposal(c.group), "")
			}),
		{
			what:   "getKeyPackages",
			hidden: func(*xrpc.Account) xrpc.Call { return claimOf(blocker.DID) },
			absent: func(*xrpc.Account) xrpc.Call { return claimOf(empty.DID) },
		},
	}
	web := t.web(0)
	return &Prepared{
		Run: func(ctx context.Context) {
			pace(ctx, pairsPerSec, measureLanes, func(ctx context.Context, i int) {
				all[i%len(all)].measure(ctx, t, web, askers[i/len(all)%len(askers)])
			})
		},
		Judge: func(context.Context, Effects) (claims []Claim) {
			for _, one := range all {
				claims = append(claims, one.claims()...)
			}
			return claims
		},
	}
}

func convoCalls(what string, known, made honestConvo, call func(*xrpc.Account, honestConvo) xrpc.Call) *comparison {
	return &comparison{
		what:   what,
		hidden: func(who *xrpc.Account) xrpc.Call { return call(who, known) },
		absent: func(who *xrpc.Account) xrpc.Call { return call(who, made) },
	}
}

// measure makes one pair of calls. A pair does not count if an answer is missing, or is about a
// rate limit.
func (c *comparison) measure(ctx context.Context, t *Target, web *http.Client, who *xrpc.Account) {
	calls := []xrpc.Call{c.hidden(who), c.absent(who)}
	tokens := make([]string, len(calls))
	for i, call := range calls {
		var err error
		if tokens[i], err = who.TokenFor(t.Audience, call.Method, tokenLife); err != nil {
			return
		}
	}
	took, status := make([]time.Duration, len(calls)), make([]int, len(calls))
	first := rand.IntN(len(calls))
	for _, i := range []int{first, 1 - first} {
		took[i], status[i] = t.timed(ctx, web, calls[i], tokens[i])
	}
	for _, s := range status {
		if s == 0 || s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable {
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

// timed makes a call and returns how long it took until the answer's last byte.
func (t *Target) timed(ctx context.Context, web *http.Client, call xrpc.Call, token string) (time.Duration, int) {
	verb, url := http.MethodPost, path(string(call.Method))
	if call.Query != nil {
		verb, url = http.MethodGet, url+"?"+call.Query.Encode()
	}
	begun := time.Now()
	status, _ := t.send(ctx, web, verb, url, token, call.Body)
	return time.Since(begun), status
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
