package bench

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// tokenLife is how long the tokens of the load are valid. A server accepts an hour at most.
const tokenLife = 55 * time.Minute

// tokens are service-auth tokens of one account for one procedure. Each is used once. They are
// signed before the load begins. If that is not enough, take signs more.
type tokens struct {
	account  *xrpc.Account
	audience string
	method   syntax.NSID

	session string // if not "", it is sent in the place of each token
	signed  []string
	next    atomic.Int64 // of signed
	late    atomic.Int64 // signed under load
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
	return t.account.TokenFor(t.audience, t.method, tokenLife)
}

// sign adds tokens until n are ready. take must not run meanwhile.
func (t *tokens) sign(n int) error {
	left := t.signed[min(t.next.Load(), int64(len(t.signed))):]
	t.signed = append(make([]string, 0, max(n, len(left))), left...)
	t.next.Store(0)
	for len(t.signed) < n {
		token, err := t.account.TokenFor(t.audience, t.method, tokenLife)
		if err != nil {
			return err
		}
		t.signed = append(t.signed, token)
	}
	return nil
}

// each calls do for 0 … n-1, on all processors, until one fails.
func each(n int, do func(i int) error) error { return eachOf(runtime.GOMAXPROCS(0), n, do) }

// eachOf is each with a given number of goroutines.
func eachOf(lanes, n int, do func(i int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	var once sync.Once
	var failed error
	for range min(lanes, n) {
		all.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					once.Do(func() { failed = err })
					next.Store(int64(n))
					return
				}
			}
		})
	}
	all.Wait()
	return failed
}
