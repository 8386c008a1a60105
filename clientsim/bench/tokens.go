package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// tokenLife is how long the tokens of the load are valid. A server accepts an hour at most.
const tokenLife = 55 * time.Minute

// tokenOf signs a token of the load.
func tokenOf(who *xrpc.Account, method string) (string, error) {
	return who.TokenFor(xrpc.DefaultServiceDID, syntax.NSID(method), tokenLife)
}

// tokens are service-auth tokens of one account for sendMessage. Each token is used once. The
// tokens are signed before the load begins. If all are used, take signs more.
type tokens struct {
	account *xrpc.Account
	session string // if not "", sent instead of each token
	signed  []string
	next    atomic.Int64 // index in signed
	late    atomic.Int64 // tokens signed under load
}

// take returns an unused token, or the session.
func (t *tokens) take() (string, error) {
	if t.session != "" {
		return t.session, nil
	}
	if i := t.next.Add(1) - 1; i < int64(len(t.signed)) {
		return t.signed[i], nil
	}
	t.late.Add(1)
	return tokenOf(t.account, mlsapi.NSIDSendMessage)
}

// sign adds tokens until n are ready. take must not run at the same time.
func (t *tokens) sign(n int) {
	left := t.signed[min(t.next.Load(), int64(len(t.signed))):]
	t.signed = append(make([]string, 0, max(n, len(left))), left...)
	t.next.Store(0)
	for len(t.signed) < n {
		t.signed = append(t.signed, Must(tokenOf(t.account, mlsapi.NSIDSendMessage)))
	}
}

// signAll signs a token of each account for a method.
func signAll(accounts []*xrpc.Account, method string) []string {
	signed := make([]string, len(accounts))
	Each(runtime.GOMAXPROCS(0), len(accounts), func(i int) { signed[i] = Must(tokenOf(accounts[i], method)) })
	return signed
}

// useSessions makes the senders authenticate with sessions, or with tokens again. At the first use,
// each sender buys a session.
func (b *bench) useSessions(ctx context.Context, use bool) {
	if use && b.sessions == nil {
		bought := make([]string, len(b.senders))
		Each(setupLanes, len(bought), func(i int) { bought[i] = b.buySession(ctx, i) })
		b.sessions = bought
	}
	for i, t := range b.sendTokens {
		t.session = ""
		if use {
			t.session = b.sessions[i]
		}
	}
}

// buySession buys a session for a sender, from the sender's address. The device is made up, because
// no request of the load names a device.
func (b *bench) buySession(ctx context.Context, sender int) string {
	device := sha256.Sum256([]byte(b.senders[sender].DID))
	call := xrpc.Procedure(mlsapi.NSIDCreateSession, "", "",
		&mlsapi.CreateSessionInput{DeviceID: hex.EncodeToString(device[:])})
	web := &http.Transport{DialContext: dialer{from: home(sender % addresses)}.dial, DisableKeepAlives: true}
	client := xrpc.NewClient(b.env.servers[0].URL(), xrpc.DefaultServiceDID, web, &xrpc.Stats{})
	return Must(xrpc.Ask[mlsapi.CreateSessionOutput](ctx, client, b.senders[sender], call)).Session
}
