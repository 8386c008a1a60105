package main

import (
	"log/slog"

	"mlsd/operator"
	"mlsd/operator/console"
)

// console makes the operator's console.
func (n *node) console(cfg Config, access *operator.Access, log *slog.Logger) (*console.Console, error) {
	return console.New(console.Config{
		Access: access, Operator: n.operator, DB: n.db.maintenance, Log: log, Version: version(),
		Node: n.reg, Stored: n.stored, NodeID: n.presence.Node, Checks: n.checks, Rounds: n.rounds,
		Lifetimes: cfg.Lifetimes, Quotas: cfg.Quotas,
	})
}
