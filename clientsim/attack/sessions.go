package attack

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// S4, S6: accounts that were verified before get sessions. Each session causes a look-up.
func sessions() []Attack {
	return []Attack{
		{"sessions", "S6", "400 accounts of one address buy sessions, 200 per second", manySessions},
		{"sessions-web", "S4", "64 did:web accounts, each of its own domain and address, buy sessions, 64 per second",
			webSessions(64, 64, nil)},
		{"tarpits-known", "S4", "32 did:web accounts that verified before buy sessions while their hosts do not answer",
			webSessions(32, 32, never)},
	}
}

// sessionCall returns the call that gets a session for a new device.
func sessionCall() xrpc.Call {
	device := hex.EncodeToString(mlsclient.RandomBytes(32))
	return xrpc.Procedure(mlsapi.NSIDCreateSession, "", "", &mlsapi.CreateSessionInput{DeviceID: device})
}

// buySessions returns the operation of honest accounts that get two sessions per second.
func (h *honest) buySessions(name string, accounts []*xrpc.Account) Operation {
	return Operation{name, 2, func(_ context.Context, i int) (time.Duration, error) {
		_, err := h.client.Once(context.Background(), accounts[i%len(accounts)], sessionCall())
		return 0, err
	}}
}

// manySessions gets sessions for many accounts. Honest users get sessions too.
func manySessions(_ context.Context, t *Target) *Prepared {
	const accounts, perSecond = 400, 200
	all := t.accounts(accounts)
	t.Bystanders = append(t.Bystanders, t.honest.buySessions("session", t.honest.people))
	client := t.client(0)
	return &Prepared{Run: func(ctx context.Context) {
		pace(ctx, perSecond, lanesFor(perSecond), func(ctx context.Context, i int) {
			_, _ = t.once(ctx, client, all[i%accounts], sessionCall()) // the call is counted
		})
	}}
}

// webSessions gets sessions for did:web accounts at hosts of the attacker. Until the attack begins,
// the hosts serve the accounts' documents. Then during answers instead. Honest did:web accounts get
// sessions too.
func webSessions(hosts int, perSecond float64, during http.HandlerFunc) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		var attacking atomic.Bool
		instead := func() http.HandlerFunc {
			if attacking.Load() {
				return during
			}
			return nil
		}
		theirs, clients := make([]*xrpc.Account, hosts), make([]*xrpc.Client, hosts)
		for i := range theirs {
			theirs[i], clients[i] = t.webAccount(instead), t.client(i)
			Must(clients[i].Once(ctx, theirs[i], xrpc.ConvosCall("", 1)))
		}
		const honest = 8
		ours := make([]*xrpc.Account, honest)
		for i := range ours {
			ours[i] = t.webAccount(nil)
		}
		t.Bystanders = append(t.Bystanders, t.honest.buySessions("did:web session", ours))
		return &Prepared{Run: func(ctx context.Context) {
			attacking.Store(true)
			pace(ctx, perSecond, hosts, func(ctx context.Context, i int) {
				_, _ = t.once(ctx, clients[i%hosts], theirs[i%hosts], sessionCall()) // the call is counted
			})
		}}
	}
}

// webAccount is honest.webAccount with a host that runs until the measurement ends.
func (t *Target) webAccount(instead func() http.HandlerFunc) *xrpc.Account {
	account, site := Must2(t.honest.webAccount(instead))
	t.atEnd(site.Close)
	return account
}

// webAccount makes an account with a did:web, and the host that serves its document. If instead
// returns a handler, the host calls that handler and does not serve the document.
func (h *honest) webAccount(instead func() http.HandlerFunc) (_ *xrpc.Account, _ *xrpc.Site, err error) {
	defer Catch(&err)
	var account *xrpc.Account
	site := Must(serve(honestAddress, func(w http.ResponseWriter, r *http.Request) {
		if instead != nil {
			if other := instead(); other != nil {
				other(w, r)
				return
			}
		}
		serveDocument(w, account)
	}))
	if account, err = xrpc.NewAccountOf(didAt(site), int(h.nth.Add(1))); err != nil {
		return nil, nil, errors.Join(err, site.Close())
	}
	return account, site, nil
}
