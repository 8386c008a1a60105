package events

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// Release is the binary that a node runs.
type Release struct {
	Build  string // the revision that the binary was built from; "" if the node does not say
	Schema uint   // the newest migration that the binary knows; 0 if the node does not say
}

// Node is a node whose lease has not lapsed.
type Node struct {
	ID uuid.UUID
	Release
	RenewedAt time.Time // when the node renewed its lease
}

// LiveNodes returns the nodes that run on a database, or none if the database has no schema. A node
// that was killed counts for up to 15 s.
func LiveNodes(ctx context.Context, db pgpool.Queryer) ([]Node, error) {
	var kept bool
	if err := db.QueryRow(ctx, `SELECT to_regclass('nodes') IS NOT NULL`).Scan(&kept); err != nil {
		return nil, fmt.Errorf("list the live nodes: %w", err)
	}
	if !kept {
		return nil, nil
	}
	rows := pgpool.Rows(ctx, db, `
		SELECT id, build, schema_version, lease_expires_at - $1::interval FROM nodes WHERE lease_expires_at >
			clock_timestamp() ORDER BY id`, nodeLease)
	nodes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n Node, err error) {
		return n, row.Scan(&n.ID, &n.Build, &n.Schema, &n.RenewedAt)
	})
	return nodes, errs.Wrap(err, "list the live nodes")
}
