package node

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"mlsd/api"
	"mlsd/convos"
	"mlsd/convos/disputes"
	"mlsd/events"
	"mlsd/features/attachments"
	"mlsd/features/erasure"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/features/reports"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/serviceauth"
	"mlsd/internal/worker"
	"mlsd/keypackages"
	"mlsd/people/accounts"
	"mlsd/people/quota"
	"mlsd/people/sessions"
	"mlsd/welcome"
)

const (
	sweepInterval   = 30 * time.Second
	sweepTimeout    = 3 * time.Minute // for all sweeps together
	purgeInterval   = time.Minute
	pushInterval    = time.Second
	backlogInterval = time.Minute
	listInterval    = 3 * time.Second
	expiryInterval  = 10 * time.Minute // of messages, whose retention is counted in days
)

// workers returns the functions that run in the background from the server's start to its end. The
// worker of presence ends earlier: see Start.
func (n *Node) workers() []func(context.Context) {
	log := n.log
	all := []func(context.Context){
		n.rounds.Every("schema watch", schemaInterval, log, n.schema.RunOnce, worker.AfterInterval()).Run,
		n.rounds.Every("write watch", writesInterval, log, n.writes.RunOnce, worker.AfterInterval()).Run,
		n.rounds.Every("sweeper", sweepInterval, log, n.sweep, worker.Limit(sweepTimeout)).Run,
		n.rounds.Every("identity key sync", serviceauth.SyncInterval, log, n.identities.Sync,
			worker.AtEnd(n.identities.Sync)).Run,
		n.rounds.Every("session reader", sessions.Interval, log, n.sessions.RunOnce, worker.Wake(n.sessions.Wake, 0)).Run,
		n.rounds.Every("session key rotation", sessions.RotateInterval, log, n.sessions.Rotate).Run,
		n.rounds.Every("log key reader", transparency.KeysInterval, log, n.heads.ReadKeys).Run,
		n.rounds.Every("convo sweeper", purgeInterval, log, n.remover.RunOnce).Run,
		n.rounds.Every("eraser of accounts", erasure.Interval, log, n.eraser.RunOnce, worker.Limit(erasure.RoundTimeout)).Run,
		n.rounds.Every("push backlog", backlogInterval, log, n.push.CountBacklog).Run,
		func(ctx context.Context) { n.push.Run(ctx, n.rounds, pushInterval) },
		func(ctx context.Context) { n.invitations.Run(ctx, n.rounds, pushInterval) },
		func(ctx context.Context) { n.requests.Run(ctx, n.rounds) },
		func(ctx context.Context) { n.quotas.Run(ctx, n.rounds) },
		n.sequencer.Run,
		n.rounds.Every("index of the stream", events.IndexInterval, log, events.NewIndex(n.db.maintenance).RunOnce).Run,
		n.hub.Run,
		n.db.reads.Run,
		n.rounds.Every("account gate", accounts.GateInterval, log, n.gate.RunOnce, worker.Wake(n.gate.Wake, 0)).Run,
		func(ctx context.Context) { events.Listen(ctx, n.hub, n.sequencer) },
		n.signals.Run,
	}
	if n.admitted != nil {
		all = append(all, func(ctx context.Context) { n.followList(ctx) })
	}
	if k := n.serviceKey; k != nil {
		all = append(all, n.rounds.Every("service key reader", serviceKeyInterval, log, k.RunOnce).Run)
	}
	if n.relay != nil {
		all = append(all, n.relay.Run)
	}
	if s := n.attachmentSweeper; s != nil {
		all = append(all, n.rounds.Every("attachment sweeper", attachments.SweepInterval, log, s.RunOnce,
			worker.Limit(attachments.SweepTimeout), worker.Wake(s.Wake, attachments.WakeDelay)).Run)
	}
	if n.messageSweeper != nil {
		all = append(all, n.rounds.Every("message sweeper", expiryInterval, log, withoutResult(n.messageSweeper.RunOnce)).Run)
	}
	return all
}

// followList reads the list of admitted accounts again when its file has changed, and on SIGHUP.
func (n *Node) followList(ctx context.Context) {
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
	n.rounds.Every("reader of the list of admitted accounts", listInterval, n.log, list.RunOnce,
		worker.Wake(list.Wake, 0)).Run(ctx)
}

func withoutResult[T any](runOnce func(context.Context) (T, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := runOnce(ctx)
		return err
	}
}

// sweeps returns the sweeps of the sweeper, in their order.
func (n *Node) sweeps(cfg Config) []worker.Sweep {
	db := n.db.maintenance
	all := slices.Concat(
		welcome.Sweeps(db, cfg.Welcomes), keypackages.Sweeps(db), idem.Sweeps(db, api.RetireKeys), accounts.Sweeps(db),
		reports.Sweeps(db, cfg.Quotas[quota.ReportBytes]), network.Sweeps(db), convos.SweepRoles(db),
		[]worker.Sweep{
			disputes.Sweep(db), serviceauth.SweepTokens(db), serviceauth.SweepKeys(db), sessions.Sweep(db),
			events.SweepTickets(db),
			events.SweepNodes(db), push.Sweep(db), quota.Sweep(db), convos.SweepInvitations(db),
			n.requests.Sweep(),
			erasure.Sweep(db),
		})
	if n.attachments != nil {
		all = append(all, attachments.Sweeps(db, cfg.MessageRetention)...)
	}
	return all
}
