package node

import (
	"mlsd/operator"
	"mlsd/operator/console"
)

// console makes the operator's console.
func (n *Node) console(cfg Config, access *operator.Access) (*console.Console, error) {
	return console.New(console.Config{
		Access: access, Operator: n.operator, DB: n.db.maintenance, Log: n.log, Version: Version(),
		Node: n.reg, Stored: n.stored, NodeID: n.presence.Node, Checks: n.checks, Rounds: n.rounds,
		Lifetimes: cfg.Lifetimes, Quotas: cfg.Quotas,
	})
}
