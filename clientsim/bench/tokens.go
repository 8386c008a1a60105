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

// sender is an account that sends. It has service-auth tokens for sendMessage, which are signed
// before the load begins. Each is used once. If all are used, token signs more.
type sender struct {
	*xrpc.Account
	reader  string // a token for getMessages, which may be used several times
	session string // "" until the sender buys one
	signed  []string
	next    atomic.Int64 // index in signed
	late    atomic.Int64 // tokens signed under load
}

// token returns the session, or an unused token.
func (s *sender) token(auth string) (string, error) {
	if auth == AuthSession {
		return s.session, nil
	}
	if i := s.next.Add(1) - 1; i < int64(len(s.signed)) {
		return s.signed[i], nil
	}
	s.late.Add(1)
	return tokenOf(s.Account, mlsapi.NSIDSendMessage)
}

// sign adds tokens until n are ready. token must not run at the same time.
func (s *sender) sign(n int) {
	left := s.signed[min(s.next.Load(), int64(len(s.signed))):]
	s.signed = append(make([]string, 0, max(n, len(left))), left...)
	s.next.Store(0)
	for len(s.signed) < n {
		s.signed = append(s.signed, Must(tokenOf(s.Account, mlsapi.NSIDSendMessage)))
	}
}

// signAll signs a token of each account for a method.
func signAll(accounts []*xrpc.Account, method string) []string {
	signed := make([]string, len(accounts))
	Each(runtime.GOMAXPROCS(0), len(accounts), func(i int) { signed[i] = Must(tokenOf(accounts[i], method)) })
	return signed
}

// authenticate gives the senders what a phase needs: a session each, or tokens.
func (b *bench) authenticate(ctx context.Context, s *phase) {
	switch {
	case s.auth == AuthSession:
		Each(setupLanes, len(b.senders), func(i int) {
			if b.senders[i].session == "" {
				b.senders[i].session = b.buySession(ctx, i)
			}
		})
	case s.ask != nil: // the question has its token
	default:
		each := b.expected(s) / float64(len(b.drafts))
		drafts := map[*sender]int{}
		for _, d := range b.drafts {
			drafts[d.sender]++
		}
		const spare = 20 // for repetitions
		Each(runtime.GOMAXPROCS(0), len(b.senders), func(i int) {
			if n := drafts[b.senders[i]]; n > 0 {
				b.senders[i].sign(int(each*float64(n)) + spare)
			}
		})
	}
}

// expected returns how many tokens a phase may need.
func (b *bench) expected(s *phase) float64 {
	const reserve, most, ofStorm = 1.4, 1e6, 5 * time.Second
	if s.messages > 0 {
		return min(float64(s.messages)*reserve, most)
	}
	rate, span := s.rate, b.c.Warm+b.c.For
	if rate == 0 {
		// Before the first phase has shown a rate, guess the most requests, or bytes, that are possible.
		if rate = b.fastest; rate == 0 {
			rate = min(20_000, 200e6/float64(b.c.Body))
		}
	}
	if s.prepare != nil {
		span = b.c.Warm + ofStorm
	}
	return min(rate*span.Seconds()*reserve, most)
}

// buySession buys a session for a sender, from the sender's address. The device is made up, because
// no request of the load names a device.
func (b *bench) buySession(ctx context.Context, sender int) string {
	device := sha256.Sum256([]byte(b.senders[sender].DID))
	call := xrpc.Procedure(mlsapi.NSIDCreateSession, "", "",
		&mlsapi.CreateSessionInput{DeviceID: hex.EncodeToString(device[:])})
	web := &http.Transport{DialContext: dialer{from: home(sender % addresses)}.dial, DisableKeepAlives: true}
	client := xrpc.NewClient(b.env.Nodes[0].URL(), xrpc.DefaultServiceDID, web, &xrpc.Stats{})
	return Must(xrpc.Ask[mlsapi.CreateSessionOutput](ctx, client, b.senders[sender].Account, call)).Session
}
