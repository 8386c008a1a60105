package traffic

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// caller sends requests to the nodes. It is safe for concurrent use.
type caller struct {
	nodes []*xrpc.Client
	keys  *journal // attempts, by idempotency key
	// acknowledged gets every acknowledged request that has a key, unless it is nil.
	acknowledged func(*xrpc.Account, xrpc.Call)
	answered     func(node int, call xrpc.Call) // see Options
	rough        bool                           // see Options

	attempts, tripled, unknown, refused atomic.Int64

	mu       sync.Mutex // guards failures
	failures map[string]int
}

// verdictTimeout is how long a request without a verdict is retried. The longest outage of a plan
// is much shorter.
const verdictTimeout = 2 * time.Minute

// do sends a request until it has a verdict, each time with the same bytes and key. After each
// failure, it uses the next node. A rough caller sends a third of the attempts to all nodes at
// once, and sometimes hangs up after a moment.
func (c *caller) do(ctx context.Context, rng *rand.Rand, who *xrpc.Account, call xrpc.Call) (xrpc.Answer, error) {
	return c.watch(ctx, rng, who, call, nil)
}

// ask is do, and decodes the output.
func ask[T any](ctx context.Context, c *caller, rng *rand.Rand, who *xrpc.Account, call xrpc.Call) (_ *T, err error) {
	defer Catch(&err)
	answer := Must(c.do(ctx, rng, who, call))
	return xrpc.Decode[T](answer.Body)
}

// attempted gets the start time and the result of an attempt. Concurrent attempts call it at once.
type attempted func(begun int64, answer xrpc.Answer, err error)

// watch is do, and calls seen for each attempt. seen can be nil.
func (c *caller) watch(ctx context.Context, rng *rand.Rand, who *xrpc.Account, call xrpc.Call,
	seen attempted) (xrpc.Answer, error) {
	node := rng.IntN(len(c.nodes))
	answer, err := xrpc.Retry(ctx, verdictTimeout, c.retryAfter,
		func(ctx context.Context, again bool) (xrpc.Answer, error) {
			if again {
				c.nodes[node].Stats.Retried.Add(1)
				node = (node + 1) % len(c.nodes)
			}
			if c.rough {
				return c.attempt(ctx, rng, node, who, call, seen)
			}
			return c.once(ctx, node, who, call, seen)
		})
	var named *xrpc.CallError
	switch {
	case err == nil && call.Key != "" && c.acknowledged != nil:
		c.acknowledged(who, call)
	case errors.As(err, &named) && !errors.Is(err, context.DeadlineExceeded):
		c.refused.Add(1)
	}
	return answer, err
}

// attempt sends a request once to one node, or once to every node at the same time. Of several
// results, it prefers an acknowledgement to an error, and an unknown outcome to a refusal. After an
// unknown outcome, another attempt shows the true one.
func (c *caller) attempt(
	ctx context.Context, rng *rand.Rand, node int, who *xrpc.Account, call xrpc.Call, seen attempted,
) (xrpc.Answer, error) {
	if rng.IntN(4) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Between(rng, time.Millisecond, 100*time.Millisecond))
		defer cancel()
	}
	if rng.IntN(3) > 0 {
		return c.once(ctx, node, who, call, seen)
	}
	c.tripled.Add(1)
	answers, errs := make([]xrpc.Answer, len(c.nodes)), make([]error, len(c.nodes))
	var all sync.WaitGroup
	for i := range c.nodes {
		all.Go(func() { answers[i], errs[i] = c.once(ctx, i, who, call, seen) })
	}
	all.Wait()
	verdict := 0
	for i, err := range errs {
		if err == nil {
			return answers[i], nil
		}
		if _, again := c.retryAfter(err, 0); again {
			verdict = i
		}
	}
	return answers[verdict], errs[verdict]
}

// once sends a request once, and records the result.
func (c *caller) once(ctx context.Context, node int, who *xrpc.Account, call xrpc.Call, seen attempted) (xrpc.Answer,
	error) {
	c.attempts.Add(1)
	begun := c.keys.now()
	answer, err := c.nodes[node].Once(ctx, who, call)
	result, end := keyResult{outcome: refused}, c.keys.now()
	_, again := c.retryAfter(err, 0)
	switch {
	case c.nodes[node].ClockWrong(err): // nothing was done: the transport repeats no request
		c.failed(err)
		return answer, err
	case err == nil && answer.Replayed():
		result = keyResult{outcome: replayed, body: digestOf(answer)}
	case err == nil:
		result = keyResult{outcome: original, body: digestOf(answer)}
	case again:
		c.failed(err)
		c.unknown.Add(1)
		result.outcome, end = unknown, never
	}
	if call.Key != "" {
		c.keys.addUntil(who.DID.String()+" "+call.Method.String()+" "+call.Convo+" "+call.Key, begun, end,
			history.DigestOf(call.Body), result)
	}
	if err == nil && c.answered != nil {
		c.answered(node, call)
	}
	if seen != nil {
		seen(begun, answer, err)
	}
	return answer, err
}

// retryAfter is the retry rule for nodes whose clocks can move.
func (c *caller) retryAfter(err error, backoff time.Duration) (time.Duration, bool) {
	if slices.ContainsFunc(c.nodes, func(n *xrpc.Client) bool { return n.ClockWrong(err) }) {
		return backoff, true
	}
	return xrpc.RetryAfter(err, backoff)
}

// failed counts an attempt without a verdict, by the error's name.
func (c *caller) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures[cmp.Or(xrpc.ErrorName(err), "no answer")]++
}

// digestOf returns a digest of an answer's status and body.
func digestOf(a xrpc.Answer) history.Digest {
	return history.DigestOf(append([]byte{byte(a.Status >> 8), byte(a.Status)}, a.Body...))
}
