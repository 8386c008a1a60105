package transparency

import (
	"context"
	"crypto/rand"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

const saltSize = 16

// Sender is what a client needs to compute the leaves of a sender's entries.
type Sender struct {
	DID  string
	Salt []byte // nil if the account was erased and only the tag is left
	Tag  verifier.Hash
}

// makeTags gives tags to the senders without tags.
func makeTags(ctx context.Context, conn pgpool.DB, convo uuid.UUID, dids []string) error {
	if len(dids) == 0 {
		return nil
	}
	var salts, tags [][]byte
	for _, did := range dids {
		salt := newSalt()
		tag := verifier.TagOf(salt, did)
		salts, tags = append(salts, salt), append(tags, tag[:])
	}
	// An account that is erased meanwhile has no entries any more.
	_, err := conn.Exec(ctx, `
		INSERT INTO log_senders (convo_id, did, salt, tag)
		SELECT c.id, s.did, s.salt, s.tag
		FROM (SELECT id FROM convos WHERE id = $1 FOR KEY SHARE) c
		CROSS JOIN unnest($2::text[], $3::bytea[], $4::bytea[]) AS s (did, salt, tag)
		WHERE EXISTS (SELECT FROM messages WHERE convo_id = c.id AND sender_did = s.did)
		ORDER BY s.did
		ON CONFLICT (convo_id, did) DO NOTHING`, convo, dids, salts, tags)
	return errs.Wrap(err, "make tags of senders")
}

func newSalt() []byte {
	salt := make([]byte, saltSize)
	rand.Read(salt) // never fails
	return salt
}

// Senders returns what the reader, a member, needs for the entries of the given accounts. It
// returns nothing for an account that had left before the reader joined.
func (s *Service) Senders(ctx context.Context, convo uuid.UUID, reader string, dids []string) ([]Sender, error) {
	rows := pgpool.Rows(ctx, s.cfg.DB, `
		SELECT s.did, s.salt, s.tag
		FROM log_senders s
		JOIN members me ON me.convo_id = s.convo_id AND me.did = $2
		LEFT JOIN members m ON m.convo_id = s.convo_id AND m.did = s.did
		WHERE s.convo_id = $1 AND s.did = ANY ($3) AND (m.left_seq IS NULL OR m.left_seq >= me.joined_seq)
		ORDER BY s.did`, convo, reader, dids)
	var found []Sender
	var one Sender
	var tag []byte
	_, err := pgx.ForEachRow(rows, []any{&one.DID, &one.Salt, &tag}, func() error {
		one.Tag = verifier.Hash(tag)
		found = append(found, one)
		one.Salt = nil // so that the next row gets its own memory
		return nil
	})
	return found, errs.Wrap(err, "read tags of senders")
}

// EraseSender gives the tag of a person in a convo to the person's tombstone. It runs in the
// transaction that puts the tombstone into the log, before this is done. The leaves stay as they
// are.
//
// The row exists while entries have the DID, even if nobody has requested a head yet. Otherwise a
// head that is computed between two batches would make one tag for the DID and another tag for its
// tombstone.
func EraseSender(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID) error {
	salt := newSalt()
	tag := verifier.TagOf(salt, p.DID.String())
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO log_senders (convo_id, did, salt, tag)
		SELECT $1, $2, $3, $4 WHERE EXISTS (SELECT FROM messages WHERE convo_id = $1 AND sender_did = $2)
		ON CONFLICT (convo_id, did) DO NOTHING`, convo, p.DID, salt, tag[:])
	batch.Queue(`
		INSERT INTO log_senders (convo_id, did, tag) SELECT $1, $3, tag FROM log_senders WHERE convo_id = $1 AND did = $2
		ON CONFLICT (convo_id, did) DO NOTHING`, convo, p.DID, p.In(convo))
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "keep the tag of a sender")
}

// ForgetSender deletes the row of a person in a convo, once no entry has the person's DID.
func ForgetSender(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM log_senders WHERE convo_id = $1 AND did = $2`, convo, p.DID)
	return tag.RowsAffected(), errs.Wrap(err, "forget the salt of a sender")
}

// Purge deletes the stored data about the log of a deleted convo, up to limit rows of each table,
// and returns how many rows it deleted.
func Purge(ctx context.Context, tx pgx.Tx, convo uuid.UUID, limit int) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		WITH tiles AS (
			DELETE FROM log_tiles WHERE (convo_id, level, n) IN (SELECT convo_id, level, n FROM log_tiles WHERE convo_id = $1
				LIMIT $2) RETURNING n
		), senders AS (
			DELETE FROM log_senders WHERE (convo_id, did) IN (SELECT convo_id, did FROM log_senders WHERE convo_id = $1 LIMIT $2)
				RETURNING did
		)
		SELECT (SELECT count(*) FROM tiles) + (SELECT count(*) FROM senders)`, convo, limit).Scan(&n)
	return n, errs.Wrap(err, "delete the log's tree")
}
