package xrpc

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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

// UntilDone tries something every 50 ms until it succeeds, or limit is over. The error says why the last
// try failed.
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
