package messages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
)

// boundLocks limits how long the statements of a batch that convos share wait for any lock.
const boundLocks = `SELECT set_config('lock_timeout', $1, true)`

// waitForConvos locks the convos whose members the senders are. It waits for transactions that have
// locked them. It is a statement of its own, because a statement keeps the snapshot that it began
// with: the next statement sees what the other transactions committed.
const waitForConvos = `
	SELECT FROM convos
	WHERE id = ANY (ARRAY(
		SELECT m.convo_id
		FROM unnest($1::uuid[], $2::text[]) AS d (convo_id, sender_did)
		CROSS JOIN LATERAL (
			SELECT convo_id FROM members WHERE convo_id = d.convo_id AND did = d.sender_did AND left_at IS NULL LIMIT 1
		) m))
	ORDER BY id FOR NO KEY UPDATE`

// lockAndUseTokens locks the convos that no other transaction has locked, and then uses up tokens.
// It returns the locked convos, and the tokens that no request had used before.
//
// $1 the convo of each draft, $2 its sender, $3 its token, $4 when the token expires,
// $5 serviceauth.LateUse.
//
// Only the convos of members are locked. So a stranger cannot delay a convo, and cannot learn from
// a wait that it exists. Convos are locked in the order of their ids, and then tokens are used in
// the order of their ids, so that transactions cannot deadlock: one that waits for a token has its
// convos already. The token of a member whose convo is not locked stays unused: another transaction
// judges that draft.
//
// A lateral join with LIMIT, here and below, makes the planner use an index, even if it has no
// statistics of the table.
const lockAndUseTokens = `
	WITH draft AS MATERIALIZED (
		SELECT d.*, m.convo_id IS NOT NULL AS by_member
		FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::timestamptz[])
			WITH ORDINALITY AS d (convo_id, sender_did, token, expires_at, ord)
		LEFT JOIN LATERAL (
			SELECT convo_id FROM members WHERE convo_id = d.convo_id AND did = d.sender_did AND left_at IS NULL LIMIT 1
		) m ON true
	), locked AS MATERIALIZED (
		SELECT id FROM convos
		WHERE id = ANY (ARRAY(SELECT convo_id FROM draft WHERE by_member))
		ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
	), fresh AS (
		INSERT INTO used_tokens (token, expires_at)
		SELECT token, expires_at FROM draft
		WHERE expires_at > clock_timestamp() - $5::interval AND (NOT by_member OR convo_id IN (SELECT id FROM locked))
		ORDER BY token
		ON CONFLICT DO NOTHING
		RETURNING token
	)
	SELECT ARRAY(SELECT id FROM locked), ARRAY(SELECT token FROM fresh),
		ARRAY(SELECT ord FROM draft WHERE by_member AND convo_id NOT IN (SELECT id FROM locked))`

// readFacts reads what decides about each draft, in the order of the drafts: see judge.go.
//
// $1 convo, $2 sender, $3 key and $4 request hash of each draft.
//
// The columns that show how two requests under one key differ are NULL if the requests are equal.
const readFacts = `
	WITH moment AS MATERIALIZED (
		SELECT date_trunc('milliseconds', clock_timestamp()) AS now
	)
	SELECT moment.now, c.group_id, c.epoch, c.last_seq, m.is_former,
		r.seq, r.created_at, r.request_hash,
		CASE WHEN r.request_hash <> d.hash THEN r.epoch END,
		CASE WHEN r.request_hash <> d.hash THEN sha256(r.body) END,
		CASE WHEN r.request_hash <> d.hash THEN r.embed_type END,
		CASE WHEN r.request_hash <> d.hash THEN r.embed_uri END
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[]) WITH ORDINALITY AS d (convo_id, sender_did, key, hash, ord)
	CROSS JOIN moment
	LEFT JOIN LATERAL (SELECT group_id, epoch, last_seq FROM convos WHERE id = d.convo_id LIMIT 1) c ON true
	LEFT JOIN LATERAL (
		SELECT left_at IS NOT NULL AS is_former FROM members WHERE convo_id = d.convo_id AND did = d.sender_did LIMIT 1
	) m ON true
	LEFT JOIN LATERAL (
		SELECT seq, created_at, request_hash, epoch, body, embed_type, embed_uri FROM messages
		WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
	) r ON true
	ORDER BY d.ord`

// appendEntries writes the entries of one transaction to the log. It also writes an event for each
// entry, and a row of push_convos for each convo and sender of application messages.
//
// $1 to $10 are the columns of each entry, in the order of seq. $11 is created_at of all.
//
// The transaction has locked the convos, so no other one advances their logs. A row of push_convos
// that exists already is locked and not written. The lock keeps the fan-out from taking the row
// before this commit.
const appendEntries = `
	WITH appended AS (
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, embed_type, embed_uri, created_at)
		SELECT e.*, $11
		FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bytea[], $7::text[], $8::bytea[], $9::text[],
			$10::text[]) e
		RETURNING convo_id, seq, kind, sender_did, octet_length(body) AS size
	), outboxed AS (
		INSERT INTO outbox (kind, convo_id, seq, size, created_at)
		SELECT kind, convo_id, seq, size, $11 FROM appended
	), advanced AS (
		UPDATE convos c SET last_seq = log.last_seq, last_message_at = $11
		FROM (SELECT convo_id, max(seq) AS last_seq FROM appended GROUP BY convo_id) log
		WHERE c.id = log.convo_id
	)
	INSERT INTO push_convos (convo_id, sender_did, created_at)
	SELECT DISTINCT convo_id, sender_did, now() FROM appended WHERE kind = 1 AND EXISTS (SELECT FROM push_targets)
	ORDER BY convo_id, sender_did
	ON CONFLICT (convo_id, sender_did) DO UPDATE SET sender_did = excluded.sender_did WHERE false`

// columns are the columns of drafts, as array parameters.
type columns struct {
	convos     pgpool.Array[pgpool.UUID]
	senders    pgpool.Array[pgpool.Text]
	keys       pgpool.Array[pgpool.Text]
	hashes     pgpool.Array[pgpool.Bytes]
	tokens     pgpool.Array[pgpool.UUID] // zero: the draft has none
	expiration pgpool.Array[pgpool.Time] // of the tokens
}

func columnsOf(drafts []Draft) columns {
	n := len(drafts)
	c := columns{
		convos: make(pgpool.Array[pgpool.UUID], n), senders: make(pgpool.Array[pgpool.Text], n), keys: make(pgpool.Array[pgpool.Text], n),
		hashes: make(pgpool.Array[pgpool.Bytes], n), tokens: make(pgpool.Array[pgpool.UUID], n), expiration: make(pgpool.Array[pgpool.Time], n),
	}
	for i := range drafts {
		d := &drafts[i]
		c.convos[i], c.senders[i], c.keys[i], c.hashes[i] = pgpool.UUID(d.ConvoID), pgpool.Text(d.Sender), pgpool.Text(d.Key), d.Hash[:]
		if d.Token != nil {
			c.tokens[i], c.expiration[i] = pgpool.UUID(d.Token.ID()), pgpool.Time(d.Token.Expires())
		}
	}
	return c
}

// prepare locks the convos of drafts, uses up the drafts' tokens and reads the facts of each draft,
// in one round trip.
func (l *Log) prepare(ctx context.Context, tx pgx.Tx, drafts []Draft, wait bool) (j *judge, all []facts, err error) {
	c := columnsOf(drafts)
	batch := &pgx.Batch{}
	if wait {
		batch.Queue(waitForConvos, c.convos, c.senders)
	}
	batch.Queue(lockAndUseTokens, c.convos, c.senders, c.tokens, c.expiration, serviceauth.LateUse)
	batch.Queue(readFacts, c.convos, c.senders, c.keys, c.hashes)
	results := tx.SendBatch(ctx, batch)
	defer func() {
		if closeErr := results.Close(); err == nil {
			err = closeErr // after a failed statement Close returns the same error again
		}
	}()
	if wait {
		if _, err := results.Exec(); err != nil {
			return nil, nil, fmt.Errorf("wait for the convos: %w", err)
		}
	}
	var locked []uuid.UUID
	var fresh []serviceauth.TokenID
	var skipped []int // ordinals of the drafts whose senders were members, and whose convos are not locked
	if err := results.QueryRow().Scan(&locked, &fresh, &skipped); err != nil {
		return nil, nil, fmt.Errorf("lock the convos: %w", err)
	}
	j = newJudge(l.window, locked, fresh)
	rows, err := results.Query()
	if err != nil {
		return nil, nil, fmt.Errorf("read the facts: %w", err)
	}
	if all, err = collectFacts(rows, &j.at, len(drafts)); err != nil {
		return nil, nil, fmt.Errorf("read the facts: %w", err)
	}
	for i := range all {
		f := &all[i]
		f.token = serviceauth.TokenID(c.tokens[i])
		// Where the convo is not locked, the use of the token depends on the membership that the
		// first statement saw, and the judgement on the one that the second saw.
		isMember, wasMember := f.membership == current, slices.Contains(skipped, i+1)
		if !j.locked[drafts[i].ConvoID] && (isMember != wasMember || wait && isMember) {
			return nil, nil, errMembershipChanged
		}
	}
	return j, all, nil
}

// Columns of readFacts. The time and the columns of a recorded message are scanned as usual. The
// others are read from the connection's buffer: they are what every message costs.
const (
	columnGroup = iota + 1
	columnEpoch
	columnLastSeq
	columnIsFormer
	columnRecordedSeq
)

// collectFacts reads the n rows of readFacts, and the time that they all carry.
func collectFacts(rows pgx.Rows, at *time.Time, n int) ([]facts, error) {
	defer rows.Close()
	all := make([]facts, 0, n)
	for rows.Next() {
		raw := rows.RawValues()
		f := facts{epoch: bigint(raw[columnEpoch]), lastSeq: bigint(raw[columnLastSeq])}
		if i := len(all); i > 0 && bytes.Equal(all[i-1].groupID, raw[columnGroup]) {
			f.groupID = all[i-1].groupID
		} else {
			f.groupID = bytes.Clone(raw[columnGroup])
		}
		if isFormer := raw[columnIsFormer]; len(isFormer) == 1 { // NULL: never a member
			f.membership = current
			if isFormer[0] != 0 {
				f.membership = former
			}
		}
		if len(all) == 0 || raw[columnRecordedSeq] != nil {
			var err error
			if f.recorded, err = scanRecorded(rows, at); err != nil {
				return nil, err
			}
		}
		all = append(all, f)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(all) != n {
		return nil, fmt.Errorf("%d rows for %d drafts", len(all), n)
	}
	return all, nil
}

// bigint decodes a bigint in the binary format, which is the driver's for results. NULL is 0.
func bigint(raw []byte) int64 {
	if len(raw) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(raw))
}

// scanRecorded reads the time of a row of readFacts, and the message that the row has, if any.
func scanRecorded(rows pgx.Rows, at *time.Time) (*recorded, error) {
	var (
		seq, epoch          pgtype.Int8
		recordedAt          pgtype.Timestamptz
		hash, bodyHash      []byte
		embedType, embedURI *string
	)
	err := rows.Scan(at, nil, nil, nil, nil, &seq, &recordedAt, &hash, &epoch, &bodyHash, &embedType, &embedURI)
	if err != nil || !seq.Valid {
		return nil, err
	}
	return &recorded{
		seq: seq.Int64, at: recordedAt.Time, hash: hash, epoch: epoch.Int64, embedType: embedType, embedURI: embedURI,
		sameBody: func(other []byte) bool { return [sha256.Size]byte(bodyHash) == sha256.Sum256(other) },
	}, nil
}

// entryParams returns the parameters of appendEntries.
func entryParams(entries []entry, at time.Time) []any {
	n := len(entries)
	var (
		convos                = make(pgpool.Array[pgpool.UUID], n)
		senders, keys         = make(pgpool.Array[pgpool.Text], n), make(pgpool.Array[pgpool.Text], n)
		seqs, kinds, epochs   = make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n)
		bodies, hashes        = make(pgpool.Array[pgpool.Bytes], n), make(pgpool.Array[pgpool.Bytes], n)
		embedTypes, embedURIs = make(pgpool.Array[pgpool.OptionalText], n), make(pgpool.Array[pgpool.OptionalText], n)
	)
	for i, e := range entries {
		convos[i], seqs[i], kinds[i], epochs[i] = pgpool.UUID(e.ConvoID), pgpool.Int(e.seq), pgpool.Int(e.Kind), pgpool.Int(e.Epoch)
		senders[i], keys[i], bodies[i], hashes[i] = pgpool.Text(e.Sender), pgpool.Text(e.Key), e.Body, e.Hash[:]
		embedTypes[i], embedURIs[i] = pgpool.Optional(e.EmbedType), pgpool.Optional(e.EmbedURI)
	}
	return []any{convos, seqs, kinds, senders, epochs, bodies, keys, hashes, embedTypes, embedURIs, at}
}
