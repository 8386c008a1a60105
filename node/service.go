package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/migrations"
)

// claimDatabase fails if the database at url belongs to another service. If it belongs to none,
// claimDatabase gives it to this one; if claim is false, it changes nothing.
func (c Config) claimDatabase(ctx context.Context, url string, claim bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	conn, err := pgpool.ConnectFor(ctx, url, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		owner, err := migrations.ReadService(ctx, tx)
		if err != nil {
			return err
		}
		nodes, err := events.LiveNodes(ctx, tx)
		if err != nil {
			return err
		}
		did, err := judgeService(owner, c.ServiceDID, len(nodes))
		if err != nil || !claim || did == owner.DID {
			return err
		}
		return migrations.SetService(ctx, tx, did)
	})
}

// judgeService decides about a service that starts on a database, on which so many nodes run. It
// returns the service that the database belongs to from then on. A service of this machine alone
// has another DID with each port, so it claims nothing. Until somebody knows the DID, a mistake in
// it can be mended.
func judgeService(owner migrations.Service, own syntax.DID, nodes int) (syntax.DID, error) {
	if strings.HasPrefix(own.String(), "did:web:localhost") {
		own = ""
	}
	switch {
	case own == owner.DID, owner.DID == "", !owner.Used && nodes == 0:
		return own, nil
	}
	why := "clients, people's records and other services know this database's service by that DID"
	if !owner.Used {
		why = "a node of that service runs on it; one that was killed counts for 15 s"
	}
	is := "is " + own.String()
	if own == "" {
		is = "is not set, or is a name for this machine alone"
	}
	return "", fmt.Errorf("--service-did (MLSD_SERVICE_DID) %s, and the database belongs to %s: %s. Set "+
		"MLSD_SERVICE_DID=%[2]s, or use another database; docs/OPERATING.md says how to move to another domain",
		is, owner.DID, why)
}
