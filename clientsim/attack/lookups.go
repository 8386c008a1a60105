package attack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// H4: tokens of unknown accounts make the server look the accounts up.
func forgedTokens() []Attack {
	const forgeries = 300 // per second
	return []Attack{
		{"forged", "H4", "one address forges 300 tokens per second of accounts that do not exist",
			forgers(forgeries, 1, ofNobody, nil)},
		{"forged-known", "H4", "one address forges 300 tokens per second of honest users",
			forgers(forgeries, 1, ofVictims, nil)},
		{"forged-many", "H4", "20 addresses forge 300 tokens per second of accounts that do not exist",
			forgers(forgeries, 20, ofNobody, nil)},
		{"forged-web", "H4", "one address forges 300 tokens per second of did:web accounts at 64 hosts that hang up",
			webHosts(forgeries, hangsUp, nil)},
	}
}

// H9: failed look-ups are not charged, and slow hosts hold the places of other look-ups.
func failedLookups() []Attack {
	return []Attack{
		{"failing", "H9", "one address names did:web accounts at 64 hosts that hang up, 800 times per second",
			webHosts(800, hangsUp, chargedAfterBurst)},
		{"failing-unknown", "H9", "one address names accounts that do not exist, 800 times per second",
			forgers(800, 1, ofNobody, chargedAfterBurst)},
		{"tarpits", "H9", "one address names did:web accounts at 64 hosts that never answer",
			webHosts(64, never, chargedAfterBurst)},
		{"tarpits-slow", "H9", "one address names did:web accounts at 64 hosts that send a byte per second",
			webHosts(64, answersSlowly, chargedAfterBurst)},
	}
}

// issuerOf returns the DID that the i-th forged token names.
type issuerOf func(t *Target, i int) syntax.DID

func ofNobody(*Target, int) syntax.DID      { return unknownDID() }
func ofVictims(t *Target, i int) syntax.DID { return t.Victims[i%len(t.Victims)] }
func lanesFor(rate float64) int             { return max(64, int(rate)) }

// judgeOf returns the Judge of an attack on a target.
type judgeOf func(*Target) func(context.Context, Effects) []Claim

// chargedAfterBurst checks that failed look-ups are charged to the address. It uses the default
// limits of requests without a verified caller: 2,000 at once, and 200 per second, with a tolerance
// of a fifth.
func chargedAfterBurst(t *Target) func(context.Context, Effects) []Claim {
	const burst, perSecond, tolerance = 2000, 200, 1.2
	return func(_ context.Context, e Effects) []Claim {
		t.answers.mu.Lock()
		defer t.answers.mu.Unlock()
		served := int64(0)
		for status, n := range t.answers.byStatus {
			if status != noAnswer && status != fmt.Sprint(http.StatusTooManyRequests) {
				served += n
			}
		}
		return []Claim{{"requests of the address that were not refused by 429", float64(served),
			float64(int((burst + perSecond*e.Seconds) * tolerance))}}
	}
}

// forgers prepares an attack with forged tokens of issuers.
func forgers(rate float64, addresses int, issuer issuerOf, judge judgeOf) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		return t.forgeries(rate, addresses, issuer, judge)
	}
}

// forgeries makes requests with forged tokens.
func (t *Target) forgeries(rate float64, addresses int, issuer issuerOf, judge judgeOf) *Prepared {
	webs := make([]*http.Client, addresses)
	for i := range webs {
		webs[i] = t.web(i)
	}
	p := &Prepared{Run: func(ctx context.Context) {
		pace(ctx, rate, lanesFor(rate), func(ctx context.Context, i int) {
			token := forge(issuer(t, i), t.Audience, mlsapi.NSIDGetConvos)
			t.send(ctx, webs[i%addresses], http.MethodGet, path(mlsapi.NSIDGetConvos), token, nil)
		})
	}}
	if judge != nil {
		p.Judge = judge(t)
	}
	return p
}

// webHosts forges tokens of did:web accounts at hosts of the attacker. Meanwhile honest newcomers
// with a did:web make requests.
func webHosts(rate float64, serves http.HandlerFunc, judge judgeOf) prepare {
	const hosts = 64
	return func(_ context.Context, t *Target) *Prepared {
		var dids []syntax.DID
		for range hosts {
			site := Must(serve(honestAddress, serves))
			t.atEnd(site.Close)
			dids = append(dids, didAt(site))
		}
		t.Bystanders = append(t.Bystanders, Operation{"did:web newcomer", 1, t.honest.webNewcomer})
		return t.forgeries(rate, 1, func(_ *Target, i int) syntax.DID { return dids[i%hosts] }, judge)
	}
}

// didAt returns the did:web of a site on this machine.
func didAt(site *xrpc.Site) syntax.DID {
	return syntax.DID("did:web:localhost%3A" + site.URL[strings.LastIndexByte(site.URL, ':')+1:])
}

// Ways in which the attacker's hosts handle a request. The function never is another way: it does
// not answer.
func hangsUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// answersSlowly sends a byte of an answer per second.
func answersSlowly(w http.ResponseWriter, r *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the host then hangs up
	}
	defer func() { _ = conn.Close() }()
	ctx, stop := context.WithCancel(r.Context())
	defer stop()
	go feed(ctx, conn, "H")
	_, _ = io.Copy(io.Discard, conn)
}
