package attack

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// H7 and H8: getKeyPackages stores its answers, and people who share no convo use up a person's
// KeyPackages.
func claims() []Attack {
	return []Attack{
		{"claims-stored", "H7", "one token asks for 1 MB of KeyPackages under a new key each time", storedClaims(true)},
		{"claims-tokens", "H7", "new tokens ask for 1 MB of KeyPackages under a new key each time", storedClaims(false)},
		{"packages", "H8", "5 DIDs that share nothing with a person claim all its KeyPackages", claimAll(5, 1)},
		{"packages-many", "H8", "60 DIDs of 60 addresses claim all KeyPackages of a person", claimAll(60, 60)},
	}
}

// KeyPackages that the attacker publishes and then claims.
const (
	fatDIDs    = 20
	fatDevices = 10
	fatSize    = 3500 // bytes of a KeyPackage's useless extension
)

// storedPerClaim is the most that a server may store for one claim by a request of 1 kB, in bytes.
const storedPerClaim = 32 << 10

// storedClaims claims large KeyPackages of the attacker's own accounts. All of them are of last
// resort, so they never run out.
func storedClaims(sameToken bool) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		accounts := t.accounts(fatDIDs + 1)
		claimer, c := accounts[fatDIDs], t.client(0)
		query := url.Values{"cipherSuite": {mlsclient.SuiteX25519.Name()}}
		for _, who := range accounts[:fatDIDs] {
			publishFat(ctx, c, who)
			query.Add("dids", who.DID.String())
		}
		newToken := func() (string, error) {
			return claimer.TokenFor(t.Audience, syntax.NSID(mlsapi.NSIDGetKeyPackages), tokenLife)
		}
		token := Must(newToken())
		web := t.web(0)
		var claimed atomic.Int64
		return &Prepared{
			Run: func(ctx context.Context) {
				pace(ctx, 10, 4, func(ctx context.Context, _ int) {
					mine := token
					if !sameToken {
						var err error
						if mine, err = newToken(); err != nil {
							return // the attack has one attempt less
						}
					}
					status, _ := t.send(ctx, web, http.MethodGet,
						path(mlsapi.NSIDGetKeyPackages)+"?"+query.Encode()+"&idempotencyKey="+xrpc.NewKey(), mine, nil)
					if status == http.StatusOK {
						claimed.Add(1)
					}
				})
			},
			Judge: func(_ context.Context, e Effects) []Claim {
				own := max(0, float64(e.Stored)-e.CalmStored*e.Seconds)
				return []Claim{{"bytes stored per claim", math.Round(own / float64(max(1, claimed.Load()))), storedPerClaim}}
			},
		}
	}
}

func publishFat(ctx context.Context, c *xrpc.Client, who *xrpc.Account) {
	var packages []mlsclient.KeyPackage
	for range fatDevices {
		device := Must(mlsclient.NewDevice(who.DID.String(), mlsclient.SuiteX25519))
		packages = append(packages, Must(mlsclient.FatLastResort(device, fatSize)))
	}
	Must(c.Do(ctx, who, xrpc.PublishManyCall(packages, mlsclient.SuiteX25519, xrpc.NewKey())))
}

// victimPackages is how many KeyPackages the victim of claims has, besides one of last resort.
const victimPackages = 99

// errOnlyLastResort says that a friend got only the KeyPackage of last resort.
var errOnlyLastResort = errors.New("a friend got only the KeyPackage of last resort")

// claimAll claims the KeyPackages of one victim. Meanwhile honest newcomers must get a KeyPackage
// of any kind. A friend, who shares a convo with the victim, must get a KeyPackage that nobody else
// has.
func claimAll(dids, addresses int) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		claimers := t.accounts(dids)
		h := t.honest
		victim := Must(h.env.Account(p256))
		Must(testbed.Publish(ctx, h.client, victim, victimPackages, true))
		friend := h.people[0]
		id, group := Must2(testbed.NewConvo(ctx, h.client, friend, []syntax.DID{victim.DID}, nil))
		Must(h.client.Do(ctx, victim,
			xrpc.SendCall(id, victim.DID, 1, mlsclient.FakeMessage(group, 1, smallMessage), xrpc.NewKey())))
		t.Bystanders = append(t.Bystanders,
			Operation{"claim by another", 1, func(context.Context, int) (time.Duration, error) {
				_, err := h.claim(victim.DID)
				return 0, err
			}},
			Operation{"friend's claim", 0.5, func(ctx context.Context, _ int) (time.Duration, error) {
				answer, err := h.client.Once(ctx, friend, claimOf(victim.DID))
				if err == nil && oneTime(answer) == 0 {
					err = errOnlyLastResort
				}
				return 0, err
			}})
		var taken atomic.Int64
		clients := make([]*xrpc.Client, addresses)
		for i := range clients {
			clients[i] = t.client(i)
		}
		return &Prepared{
			Run: func(ctx context.Context) {
				pace(ctx, 100, 32, func(ctx context.Context, i int) {
					answer, err := t.once(ctx, clients[i%addresses], claimers[i%dids], claimOf(victim.DID))
					if err == nil {
						taken.Add(int64(oneTime(answer)))
					}
				})
			},
			Judge: func(context.Context, Effects) []Claim {
				return []Claim{{"one-time KeyPackages that the attacker took", float64(taken.Load()), victimPackages / 2}}
			},
		}
	}
}

func claimOf(did syntax.DID) xrpc.Call {
	return xrpc.ClaimCall([]syntax.DID{did}, mlsclient.SuiteX25519, "", xrpc.NewKey())
}

// oneTime counts the claimed KeyPackages that are not of last resort.
func oneTime(answer xrpc.Answer) (n int) {
	out, err := xrpc.Decode[mlsapi.GetKeyPackagesOutput](answer.Body)
	if err != nil {
		return 0
	}
	for _, kp := range out.KeyPackages {
		if kp.LastResort == nil || !*kp.LastResort {
			n++
		}
	}
	return n
}
