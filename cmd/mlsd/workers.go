package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"mlsd/api"
	"mlsd/events"
	"mlsd/internal/serviceauth"
	"mlsd/internal/worker"
)

const (
	reapInterval   = 30 * time.Second
	sweepInterval  = time.Minute
	usageInterval  = 10 * time.Second
	pushInterval   = time.Second
	expiryInterval = 10 * time.Minute // of messages, whose retention is counted in days
)

// workers returns the functions that run in the background from the server's start to its end. The
// worker of presence ends earlier: see lifecycle.
func (n *node) workers(log *slog.Logger) []func(context.Context) {
	tokens, tickets := serviceauth.NewUsedTokens(n.db.maintenance), events.NewTickets(n.db.maintenance)
	all := []func(context.Context){
		worker.Every("Welcome reaper", reapInterval, log, reaper(n, api.ReaperWelcomes, n.welcomes.RunOnce)).Run,
		worker.Every("KeyPackage reaper", reapInterval, log, reaper(n, api.ReaperKeyPackages, n.keyPackages.RunOnce)).Run,
		worker.Every("idempotency record cleaner", sweepInterval, log, reaper(n, api.ReaperRecords, n.cleaner.RunOnce)).Run,
		worker.Every("used token sweep", sweepInterval, log, sweepTokens(tokens)).Run,
		worker.Every("ticket sweep", sweepInterval, log, tickets.Sweep).Run,
		worker.Every("push job sweep", sweepInterval, log, n.push.Sweep).Run,
		func(ctx context.Context) { n.push.Run(ctx, pushInterval) },
		func(ctx context.Context) { n.usage.Run(ctx, usageInterval) },
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

// reaper is withoutResult that counts the rounds that fail. A round that the end of the server cuts
// off does not count.
func reaper[T any](n *node, name string, runOnce func(context.Context) (T, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := runOnce(ctx)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			n.reaperFailed(name)
		}
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
