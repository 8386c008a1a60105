package xrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"mlsd/api/mlsapi"
)

// Bounds of the retry rule's waits.
const (
	FirstBackoff = 10 * time.Millisecond
	MaxBackoff   = 500 * time.Millisecond
	maxObeyed    = 2 * time.Second // the longest Retry-After that a client waits for in full
	CallTimeout  = 60 * time.Second
)

// quotaExceeded is no name of the lexicons, because every method can answer with it.
const quotaExceeded = "QuotaExceeded"

// ErrorName returns the XRPC error name of err, or "".
func ErrorName(err error) string {
	var named *CallError
	if errors.As(err, &named) {
		return named.Name
	}
	return ""
}

// Do sends a call until the server has given its verdict. This is the retry
// rule that the README asks of every client: the same bytes and the same key,
// each time with a fresh token,
//
//   - after a network error, because the first may have been stored;
//   - after RequestInProgress, RateLimitExceeded or ServiceUnavailable, when
//     the server's Retry-After is over;
//   - after any other 5xx.
//
// Every other answer is a verdict, and Do returns it. QuotaExceeded is also a verdict, because the
// quota is free again only the next day.
func (c *Client) Do(ctx context.Context, who *Account, call Call) (Answer, error) {
	return Retry(ctx, cmp.Or(c.Limit, CallTimeout), RetryAfter, func(ctx context.Context, again bool) (Answer, error) {
		if again {
			c.Stats.Retried.Add(1)
		}
		return c.Once(ctx, who, call)
	})
}

// Retry makes attempts until one has a verdict, or limit is over. after says whether an error calls
// for another attempt, and how long to wait before it. again is set from the second attempt on.
func Retry(
	ctx context.Context, limit time.Duration, after func(error, time.Duration) (time.Duration, bool),
	attempt func(ctx context.Context, again bool) (Answer, error),
) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	backoff := FirstBackoff
	for again := false; ; again = true {
		answer, err := attempt(ctx, again)
		wait, retry := after(err, backoff)
		if !retry {
			return answer, err
		}
		Sleep(ctx, wait)
		if ctx.Err() != nil {
			return Answer{}, errors.Join(err, ctx.Err())
		}
		backoff = min(2*backoff, MaxBackoff)
	}
}

// RetryAfter reports whether err calls for a retry, and how long to wait before it.
func RetryAfter(err error, backoff time.Duration) (time.Duration, bool) {
	if err == nil {
		return 0, false
	}
	var named *CallError
	if !errors.As(err, &named) {
		return backoff, true
	}
	if named.Name == quotaExceeded {
		return 0, false
	}
	if named.Name != mlsapi.ErrRequestInProgress && named.Status != http.StatusTooManyRequests && named.Status < 500 {
		return 0, false
	}
	if named.Status == http.StatusNotImplemented {
		return 0, false
	}
	seconds, err := strconv.Atoi(named.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return backoff, true
	}
	return min(time.Duration(seconds)*time.Second, maxObeyed), true
}

// Until polls a condition every 50 ms until it is true, fails, or limit is over.
func Until(ctx context.Context, limit time.Duration, cond func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := cond()
		if err != nil || ok {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, ctx.Err())
		}
	}
}

// UntilDone tries something every 50 ms until it succeeds, or limit is over. The error says why the
// last try failed.
func UntilDone(ctx context.Context, limit time.Duration, try func() error) (last error) {
	err := Until(ctx, limit, func() (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// Sleep waits until d is over or ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
