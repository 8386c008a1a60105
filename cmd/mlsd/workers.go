package main

import (
	"context"
	"log/slog"
	"time"

	"mlsd/events"
	"mlsd/internal/serviceauth"
	"mlsd/internal/worker"
)

const (
	reapInterval     = 30 * time.Second
	sweepInterval    = time.Minute
	conflictInterval = 10 * time.Second
	pushInterval     = time.Second
	expiryInterval   = 10 * time.Minute // of messages, whose retention is counted in days
)

// workers returns the functions that run in the background from the server's start to its end. The
// worker of presence ends earlier: see lifecycle.
func (n *node) workers(log *slog.Logger) []func(context.Context) {
	tokens, tickets := serviceauth.NewUsedTokens(n.db.maintenance), events.NewTickets(n.db.maintenance)
	all := []func(context.Context){
		worker.Every("Welcome reaper", reapInterval, log, withoutResult(n.welcomes.RunOnce)).Run,
		worker.Every("KeyPackage reaper", reapInterval, log, withoutResult(n.keyPackages.RunOnce)).Run,
		worker.Every("idempotency record cleaner", sweepInterval, log, withoutResult(n.cleaner.RunOnce)).Run,
		worker.Every("used token sweep", sweepInterval, log, sweepTokens(tokens)).Run,
		worker.Every("ticket sweep", sweepInterval, log, tickets.Sweep).Run,
		worker.Every("push job sweep", sweepInterval, log, n.push.Sweep).Run,
		func(ctx context.Context) { n.push.Run(ctx, pushInterval) },
		func(ctx context.Context) { n.conflicts.Run(ctx, conflictInterval) },
		n.sequencer.Run,
		n.hub.Run,
		func(ctx context.Context) { n.hub.Listen(ctx, n.sequencer) },
	}
	if n.expirer != nil {
		all = append(all, worker.Every("message expirer", expiryInterval, log, withoutResult(n.expirer.RunOnce)).Run)
	}
	return all
}

func withoutResult[T any](runOnce func(context.Context) (T, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := runOnce(ctx)
		return err
	}
}

// sweepTokens deletes used tokens that have expired, in batches.
func sweepTokens(tokens *serviceauth.UsedTokens) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			swept, err := tokens.Sweep(ctx)
			if err != nil || swept < serviceauth.SweepBatch {
				return err
			}
		}
	}
}
