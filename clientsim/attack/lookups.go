package attack

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// H4 and H9: tokens of unknown accounts make the server look the accounts up, and slow hosts hold
// the places of other look-ups.
func lookUps() []Attack {
	const forgeries = 300 // per second
	unknown := func(int) syntax.DID { return unknownDID() }
	return []Attack{
		{"forged", "H4", "one address forges 300 tokens per second of accounts that do not exist",
			func(_ context.Context, t *Target) *Prepared { return t.forgeries(forgeries, 1, unknown) }},
		{"forged-many", "H4", "20 addresses forge 300 tokens per second of accounts that do not exist",
			func(_ context.Context, t *Target) *Prepared { return t.forgeries(forgeries, 20, unknown) }},
		{"tarpits", "H9", "one address names did:web accounts at 64 hosts that never answer",
			func(_ context.Context, t *Target) *Prepared {
				hosts := t.hosts(never)
				t.Bystanders = append(t.Bystanders, Operation{"did:web newcomer", 1, t.honest.webNewcomer})
				return t.forgeries(float64(len(hosts)), 1, func(i int) syntax.DID { return hosts[i%len(hosts)] })
			}},
	}
}

// forgeries makes requests with forged tokens.
func (t *Target) forgeries(rate float64, addresses int, issuer func(i int) syntax.DID) *Prepared {
	clients := t.clients(addresses)
	return &Prepared{Run: func(ctx context.Context) {
		pace(ctx, rate, max(64, int(rate)), func(ctx context.Context, i int) {
			t.get(ctx, clients[i%addresses], mlsapi.NSIDGetConvos, forge(issuer(i), t.Audience, mlsapi.NSIDGetConvos))
		})
	}}
}

// lookUpHomes asks for the services of people at the attacker's hosts. Honest users look people up
// too.
func lookUpHomes(answer http.HandlerFunc) prepare {
	const dids = 20
	return func(_ context.Context, t *Target) *Prepared {
		hosts, c := t.hosts(answer), t.client(0)
		var tokens []string
		for _, who := range t.accounts(dids) { // the token of a query can be used again
			tokens = append(tokens, Must(who.TokenFor(t.Audience, mlsapi.NSIDGetDeliveryService, 30*time.Minute)))
		}
		t.Bystanders = append(t.Bystanders, Operation{"look-up of a home", 1, t.honest.findHome})
		return &Prepared{Run: func(ctx context.Context) {
			pace(ctx, 200, 64, func(ctx context.Context, i int) {
				t.get(ctx, c, mlsapi.NSIDGetDeliveryService+"?did="+url.QueryEscape(hosts[i%len(hosts)].String()), tokens[i%dids])
			})
		}}
	}
}

// hosts starts 64 hosts of the attacker that answer so, and returns their did:webs.
func (t *Target) hosts(answer http.HandlerFunc) (dids []syntax.DID) {
	for range 64 {
		site := Must(serve(honestAddress, answer))
		t.atEnd(site.Close)
		dids = append(dids, didAt(site))
	}
	return dids
}

// didAt returns the did:web of a site on this machine.
func didAt(site *xrpc.Site) syntax.DID {
	return syntax.DID("did:web:localhost%3A" + site.URL[strings.LastIndexByte(site.URL, ':')+1:])
}

// Ways in which the attacker's hosts handle a request: not at all, by a byte of an answer per
// second, or by an answer without end.
func never(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

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

func answersEndlessly(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.Copy(w, rand.Reader) // until the server has enough
}
