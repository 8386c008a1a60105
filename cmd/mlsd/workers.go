package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"mlsd/accounts"
	"mlsd/api"
	"mlsd/attachments"
	"mlsd/erasure"
	"mlsd/events"
	"mlsd/internal/serviceauth"
	"mlsd/internal/sessions"
	"mlsd/internal/worker"
	"mlsd/transparency"
)

const (
	reapInterval   = 30 * time.Second
	sweepInterval  = time.Minute
	usageInterval  = 10 * time.Second
	pushInterval   = time.Second
	listInterval   = 3 * time.Second
	expiryInterval = 10 * time.Minute // of messages, whose retention is counted in days
)

// workers returns the functions that run in the background from the server's start to its end. The
// worker of presence ends earlier: see lifecycle.
func (n *node) workers(log *slog.Logger) []func(context.Context) {
	tokens, tickets := serviceauth.NewUsedTokens(n.db.maintenance), events.NewTickets(n.db.maintenance)
	all := []func(context.Context){
		n.rounds.Every("schema watch", schemaInterval, log, n.schema.RunOnce, worker.AfterInterval()).Run,
		n.rounds.Every("Welcome reaper", reapInterval, log, reaper(n, api.ReaperWelcomes, n.welcomes.RunOnce)).Run,
		n.rounds.Every("KeyPackage reaper", reapInterval, log, reaper(n, api.ReaperKeyPackages, n.keyPackages.RunOnce)).Run,
		n.rounds.Every("dispute reaper", reapInterval, log, reaper(n, api.ReaperDisputes, n.disputes.RunOnce)).Run,
		n.rounds.Every("idempotency record cleaner", sweepInterval, log, reaper(n, api.ReaperRecords, n.cleaner.RunOnce)).Run,
		n.rounds.Every("used token sweep", sweepInterval, log, sweepAll(tokens.Sweep)).Run,
		n.rounds.Every("identity key sync", serviceauth.SyncInterval, log, n.identities.Sync, worker.AtEnd(n.identities.Sync)).Run,
		n.rounds.Every("identity key sweep", sweepInterval, log, sweepAll(n.identities.Sweep)).Run,
		n.rounds.Every("session reader", sessions.Interval, log, n.sessions.RunOnce, worker.Wake(n.sessions.Woken(), 0)).Run,
		n.rounds.Every("session key rotation", sessions.SweepInterval, log, n.sessions.Rotate).Run,
		n.rounds.Every("session sweep", sessions.SweepInterval, log, n.sessions.Sweep).Run,
		n.rounds.Every("log key reader", transparency.KeysInterval, log, n.heads.ReadKeys).Run,
		n.rounds.Every("log head signer", transparency.Interval, log, n.heads.RunOnce).Run,
		n.rounds.Every("ticket sweep", sweepInterval, log, tickets.Sweep).Run,
		n.rounds.Every("convo remover", sweepInterval, log, n.remover.RunOnce).Run,
		n.rounds.Every("eraser of accounts", erasure.Interval, log, n.eraser.RunOnce, worker.Limit(erasure.RoundTimeout)).Run,
		n.rounds.Every("sweep of reports", sweepInterval, log, n.reports.RunOnce).Run,
		n.rounds.Every("push job sweep", sweepInterval, log, n.push.Sweep).Run,
		func(ctx context.Context) { n.push.Run(ctx, pushInterval) },
		func(ctx context.Context) { n.usage.Run(ctx, usageInterval) },
		n.requests.Run,
		n.rounds.Every("sweep of requests", sweepInterval, log, n.requests.Sweep).Run,
		n.quotas.Run,
		n.sequencer.Run,
		n.rounds.Every("index of the stream", events.IndexInterval, log, events.NewIndex(n.db.maintenance).RunOnce).Run,
		n.hub.Run,
		n.db.reads.Run,
		n.rounds.Every("account gate", accounts.GateInterval, log, n.gate.RunOnce, worker.Wake(n.gate.Woken(), 0)).Run,
		func(ctx context.Context) { n.hub.Listen(ctx, n.sequencer) },
		n.signals.Run,
	}
	if n.admitted != nil {
		all = append(all, func(ctx context.Context) { n.followList(ctx, log) })
	}
	if n.relay != nil {
		all = append(all, n.relay.Run)
	}
	if s := n.attachmentSweeper; s != nil {
		all = append(all, n.rounds.Every("attachment sweeper", attachments.SweepInterval, log, s.RunOnce,
			worker.Limit(attachments.SweepTimeout), worker.Wake(s.Woken(), attachments.WakeDelay)).Run)
	}
	if n.expirer != nil {
		all = append(all, n.rounds.Every("message expirer", expiryInterval, log, withoutResult(n.expirer.RunOnce)).Run)
	}
	return all
}

// followList reads the list of admitted accounts again when its file has changed, and on SIGHUP.
func (n *node) followList(ctx context.Context, log *slog.Logger) {
	list := n.admitted
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	go func() {
		for {
			select {
			case <-hangup:
				list.Again()
			case <-ctx.Done():
				return
			}
		}
	}()
	n.rounds.Every("reader of the list of admitted accounts", listInterval, log, list.RunOnce, worker.Wake(list.Woken(), 0)).Run(ctx)
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

// sweepAll calls sweep until it deletes less than a batch.
func sweepAll(sweep func(context.Context) (int64, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			swept, err := sweep(ctx)
			if err != nil || swept < serviceauth.SweepBatch {
				return err
			}
		}
	}
}
