package network

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
	"mlsd/welcome"
)

// How long rows are kept. Rows of accepted invitations stay, because they say where a person has
// convos.
const (
	keepSent     = welcome.KeepUnfetched // from the job's end, because the Welcome can still be withdrawn
	keepReceived = 90 * day              // if declined or without an answer: as long as a Welcome
	keepBudget   = 90 * day              // since the budget last counted something
)

// Sweeps give up jobs that could not be delivered for a week, and delete rows that are no longer
// needed.
func Sweeps(db *pgxpool.Pool) []worker.Sweep {
	return []worker.Sweep{
		worker.Statement(db, "sent_invitations_given_up", `
			UPDATE sent_invitations SET state = 'dead', ended_at = clock_timestamp(), version = version + 1
			WHERE id IN (
				SELECT id FROM sent_invitations
				WHERE state IN ('pending', 'sending') AND queued_at <= now() - $2::interval
				ORDER BY queued_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, triedFor),
		worker.Statement(db, "sent_invitations", `
			DELETE FROM sent_invitations WHERE id IN (
				SELECT id FROM sent_invitations WHERE ended_at <= now() - $2::interval
				ORDER BY ended_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepSent),
		worker.Statement(db, "received_invitations", `
			DELETE FROM received_invitations WHERE (did, id) IN (
				SELECT did, id FROM received_invitations
				WHERE state <> 'accepted' AND coalesce(answered_at, created_at) <= now() - $2::interval
				ORDER BY coalesce(answered_at, created_at) LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepReceived),
		worker.Statement(db, "invitation_budgets", `
			DELETE FROM invitation_budgets WHERE subject IN (
				SELECT subject FROM invitation_budgets WHERE counted_at <= now() - $2::interval
				ORDER BY counted_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepBudget),
	}
}

// Erase deletes up to limit invitations that a person has got or made. It returns how many it
// deleted; 0 means that none is left. Invitations that others have got from the person keep a
// tombstone of the inviter. So do invitations whose homes have yet to learn of their end.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		WITH sent AS (
			DELETE FROM sent_invitations WHERE id IN (
				(SELECT id FROM sent_invitations WHERE did = $1 LIMIT $2)
				UNION ALL
				(SELECT id FROM sent_invitations
				WHERE inviter = $1 AND (kind = 'invited' OR ended_at IS NOT NULL) LIMIT $2))
			RETURNING did
		), ending AS (
			UPDATE sent_invitations SET inviter = $3 WHERE id IN (
				SELECT id FROM sent_invitations
				WHERE inviter = $1 AND did <> $1 AND kind <> 'invited' AND ended_at IS NULL LIMIT $2)
			RETURNING did
		), received AS (
			DELETE FROM received_invitations
			WHERE (did, id) IN (SELECT did, id FROM received_invitations WHERE did = $1 LIMIT $2) RETURNING did
		), made AS (
			UPDATE received_invitations SET inviter = $3
			WHERE (did, id) IN (SELECT did, id FROM received_invitations WHERE inviter = $1 AND did <> $1 LIMIT $2) RETURNING did
		)
		SELECT (SELECT count(*) FROM sent) + (SELECT count(*) FROM ending) + (SELECT count(*) FROM received)
			+ (SELECT count(*) FROM made)`,
		p.DID, limit, p.Anywhere()).Scan(&n)
	return n, errs.Wrap(err, "erase invitations between services")
}

// triedFor is how long a job is tried. A KeyPackage's home forgets the KeyPackage a month after its
// claim.
const triedFor = 7 * day
