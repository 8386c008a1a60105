package invariants

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
)

// lookBack bounds what ClientFaults reads: the newest events, or the newest entries of one convo.
const lookBack = 10000

// repeatedMessages finds application messages that their sender had sent to the convo before, among
// the newest $2 events, or among the newest $2 entries of the convo $1.
//
// An MLS client encrypts each message with a key and a nonce of its own, so the bytes of two
// messages are never the same (RFC 9420 §6.3). Equal bytes are a retry whose client has lost its
// idempotency key.
//
// Messages are equal if sender, epoch, length and the last 32 bytes are: an authentication tag ends
// a PrivateMessage. So PostgreSQL reads the end of a long body only.
const repeatedMessages = `
	WITH newest AS (
		SELECT convo_id, seq FROM (
			SELECT kind, convo_id, seq FROM single_events WHERE $1::uuid IS NULL AND row_seq > (SELECT head FROM stream) - $2
		) e WHERE kind = 1
		UNION ALL
		SELECT convo_id, seq FROM (
			SELECT kind, convo_id, seq FROM messages WHERE convo_id = $1 ORDER BY seq DESC LIMIT $2
		) m WHERE kind = 1
	)
	SELECT format('convo %s: a client has lost its keys: entries %s have the same bytes', n.convo_id,
		string_agg(n.seq::text, ', ' ORDER BY n.seq))
	FROM newest n JOIN messages m ON m.convo_id = n.convo_id AND m.seq = n.seq
	GROUP BY n.convo_id, m.sender_did, m.epoch, octet_length(m.body), substring(m.body FROM greatest(octet_length(m.body) -
		31, 1))
	HAVING count(*) > 1
	ORDER BY n.convo_id, min(n.seq)`

// ClientFaults returns what clients have done wrong, as texts. The server has kept its promises, so
// Check does not list them. It looks at the newest 10,000 events, or if id is not nil, at the
// newest 10,000 entries of that convo. So its cost does not grow with the stored data.
func ClientFaults(ctx context.Context, db *pgxpool.Pool, id *uuid.UUID) (faults []string, err error) {
	err = read(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		var found findings
		var text string
		err := each(ctx, tx, repeatedMessages, []any{id, lookBack}, []any{&text}, func() { found.add("%s", text) })
		faults = found.list("clients that have lost their keys")
		return err
	})
	return faults, errs.Wrap(err, "faults of clients")
}
