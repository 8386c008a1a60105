package attack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// H6: webhooks that hang hold the places of everybody's pushes, and one message makes many calls to
// a host of somebody else.
func webhooks() []Attack {
	return []Attack{
		{"webhooks", "H6", "two DIDs with up to 100 webhooks each that do not answer", webhooksOf(2, 100, 1, never)},
		{"webhooks-many", "H6", "20 DIDs with up to 10 webhooks each at hosts of their own that do not answer",
			webhooksOf(20, 10, 20, never)},
		{"webhooks-slow", "H6", "two DIDs with up to 100 webhooks each that answer after 2.5 seconds",
			webhooksOf(2, 100, 1, answersLate)},
		{"webhooks-broken", "H6", "two DIDs with up to 100 webhooks each that answer 500",
			webhooksOf(2, 100, 1, answersBroken)},
		{"webhooks-flood", "H6", "two DIDs with up to 100 webhooks each at one host, which did not ask for the calls",
			webhooksOf(2, 100, 1, answersAtOnce)},
	}
}

// Ways in which the attacker's webhooks handle a call, other than answering a challenge.
func never(_ http.ResponseWriter, r *http.Request)     { <-r.Context().Done() }
func answersAtOnce(http.ResponseWriter, *http.Request) {}
func answersBroken(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusInternalServerError)
}
func answersLate(_ http.ResponseWriter, r *http.Request) {
	xrpc.Sleep(r.Context(), 2500*time.Millisecond)
}

// The attacker's messages per second, and the most calls that one message may cause: about ten
// targets for each of two DIDs, and some retries.
const (
	pushedPerSecond = 1
	callsPerMessage = 40
)

// webhooksOf registers webhooks of several DIDs at several hosts, as many as the server permits. It
// sends messages to all of them.
func webhooksOf(dids, each, hosts int, answer http.HandlerFunc) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids + 1)
		var calls, messages atomic.Int64
		var running atomic.Bool // before the attack, the webhooks answer at once
		sites := make([]string, hosts)
		for i := range sites {
			sites[i] = t.host(i, func(w http.ResponseWriter, r *http.Request) {
				if !answerChallenge(w, r) && running.Load() {
					calls.Add(1)
					answer(w, r)
				}
			})
		}
		c := t.client(0)
		sender := accounts[dids]
		id, group := Must2(t.convo(ctx, c, append([]*xrpc.Account{sender}, accounts[:dids]...)))
		for i, who := range accounts[:dids] {
			// By sending a message, the member accepts the invitation.
			Must(c.Do(ctx, who,
				xrpc.SendCall(id, who.DID, 1, mlsclient.FakeMessage(group, 1, smallMessage), xrpc.NewKey())))
			for k := range each {
				call := xrpc.RegisterCall(fmt.Sprintf("device-%d", k), fmt.Sprintf("%s/%d/%d", sites[i%hosts], i, k), xrpc.NewKey())
				if _, err := c.Do(ctx, who, call); err != nil {
					if k == 0 {
						Fail("register a webhook: %w", err)
					}
					break // no more are permitted
				}
			}
		}
		return &Prepared{
			Run: func(ctx context.Context) {
				running.Store(true)
				pace(ctx, pushedPerSecond, 8, func(ctx context.Context, _ int) {
					call := xrpc.SendCall(id, sender.DID, 1, mlsclient.FakeMessage(group, 1, smallMessage), xrpc.NewKey())
					if _, err := t.once(ctx, c, sender, call); err == nil {
						messages.Add(1)
					}
				})
			},
			Judge: func(context.Context, Effects) []Claim {
				return []Claim{{"calls of the attacker's webhooks per message", float64(calls.Load() / max(1, messages.Load())),
					callsPerMessage}}
			},
		}
	}
}

// host serves handler at the attacker's n-th address until the measurement ends, and returns the
// URL.
func (t *Target) host(n int, handler http.HandlerFunc) string {
	s := Must(serve(t.address(n), handler))
	t.atEnd(s.Close)
	return s.URL
}

func serve(ip net.IP, handler http.HandlerFunc) (*xrpc.Site, error) {
	return xrpc.Serve(net.JoinHostPort(ip.String(), "0"), handler)
}
