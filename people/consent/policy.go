package consent

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// Policy says who may invite a person and claim its KeyPackages.
type Policy string

// The policies.
const (
	Everyone Policy = "everyone" // the default
	Shared   Policy = "shared"   // members of a convo that the person is in and has accepted
	Nobody   Policy = "nobody"
)

// SetPolicy sets the policy of did. It holds for invitations that begin later. Error besides the
// database's: ErrUnknownPolicy.
func SetPolicy(ctx context.Context, tx pgx.Tx, did syntax.DID, p Policy) error {
	if p != Everyone && p != Shared && p != Nobody {
		return ErrUnknownPolicy
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO policies (did, invitations) VALUES ($1, $2)
		ON CONFLICT (did) DO UPDATE SET invitations = excluded.invitations`, did, p)
	return errs.Wrap(err, "set the invitation policy")
}

// PolicyOf returns the policy of did.
func PolicyOf(ctx context.Context, q pgpool.Queryer, did syntax.DID) (p Policy, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce((SELECT invitations FROM policies WHERE did = $1), 'everyone')`, did).Scan(&p)
	return p, errs.Wrap(err, "read the invitation policy")
}
