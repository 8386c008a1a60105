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
// claimDatabase gives it to this one; if claim is false, it changes nothing. It writes only if the
// owner changes, and then it waits for the COMMIT as long as a standby takes.
func (c Config) claimDatabase(ctx context.Context, url string, claim bool) (err error) {
	reaching, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	conn, err := pgpool.ConnectFor(reaching, url, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	did, owner, err := c.judgeOwner(reaching, conn, migrations.ReadService)
	if err != nil || !claim || did == owner.DID {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		did, owner, err := c.judgeOwner(ctx, tx, migrations.LockService)
		if err != nil || did == owner.DID {
			return err
		}
		return migrations.SetService(ctx, tx, did)
	})
}

// judgeOwner reads whose database this is, and decides whose it is from now on.
func (c Config) judgeOwner(
	ctx context.Context, db pgpool.Queryer, read func(context.Context, pgpool.Queryer) (migrations.Service, error),
) (syntax.DID, migrations.Service, error) {
	owner, err := read(ctx, db)
	if err != nil || !owner.Kept {
		return "", owner, err
	}
	nodes, err := events.LiveNodes(ctx, db)
	if err != nil {
		return "", owner, err
	}
	did, err := judgeService(owner, c.ServiceDID, len(nodes))
	return did, owner, err
}

// claimed returns the DID by which a service claims its database. A service of this machine alone
// has another DID with each port, so it claims nothing.
func claimed(own syntax.DID) syntax.DID {
	if host, isWeb := strings.CutPrefix(own.String(), "did:web:localhost"); isWeb &&
		(host == "" || strings.HasPrefix(host, "%3A") || strings.HasPrefix(host, ":")) {
		return ""
	}
	return own
}

// judgeService decides about a service that starts on a database, on which so many nodes run. It
// returns the service that the database belongs to from then on. Until somebody knows the DID, a
// mistake in it can be mended.
func judgeService(owner migrations.Service, own syntax.DID, nodes int) (syntax.DID, error) {
	own = claimed(own)
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
