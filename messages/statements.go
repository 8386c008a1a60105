package messages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

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

// lockAndRead locks the convos that no other transaction has locked, uses up tokens, and reads what
// decides about each draft: see judge.go. The first column is the draft's place, from 1.
//
// $1 the convo of each draft, $2 its sender, $3 its key, $4 its request hash, $5 its token, $6 when
// the token expires, $7 serviceauth.LateUse.
//
// Only the convos of members are locked. So a stranger cannot delay a convo, and cannot learn from
// a wait that it exists. Convos are locked in the order of their ids, and then tokens are used in
// the order of their ids, so that transactions cannot deadlock: one that waits for a token has its
// convos already. The token of a member whose convo is not locked stays unused: another transaction
// judges that draft.
//
// The statement reads from a snapshot that is older than its locks. Every transaction that appends
// to a convo's log or changes its roster also updates the convo's row, which moves it to another
// ctid. A convo counts as locked only if the locked version of the row is the one in the snapshot:
// then all that was read of the convo is still true.
//
// A lateral join with LIMIT makes the planner use an index, even if it has no statistics of the
// table. The columns that show how two requests under one key differ are NULL if the requests are
// equal.
const lockAndRead = `
	WITH draft AS MATERIALIZED (
		SELECT d.*, m.is_former, c.version, c.group_id, c.epoch, c.last_seq, c.closed
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::uuid[], $6::timestamptz[])
			WITH ORDINALITY AS d (convo_id, sender_did, key, hash, token, expires_at, ord)
		LEFT JOIN LATERAL (
			SELECT left_at IS NOT NULL AS is_former FROM members WHERE convo_id = d.convo_id AND did = d.sender_did LIMIT 1
		) m ON true
		LEFT JOIN LATERAL (
			SELECT ctid AS version, group_id, epoch, last_seq, closed_at IS NOT NULL AS closed FROM convos WHERE id = d.convo_id LIMIT 1
		) c ON true
	), locked AS MATERIALIZED (
		SELECT ctid AS version FROM convos
		WHERE id = ANY (ARRAY(SELECT convo_id FROM draft WHERE NOT is_former))
		ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
	), fresh AS (
		INSERT INTO used_tokens (token, expires_at)
		SELECT token, expires_at FROM draft
		WHERE expires_at > clock_timestamp() - $7::interval
			AND (is_former IS NOT FALSE OR version IN (SELECT version FROM locked))
		ORDER BY token
		ON CONFLICT DO NOTHING
		RETURNING token
	)
	SELECT d.ord, date_trunc('milliseconds', clock_timestamp()), d.group_id, d.epoch, d.last_seq, d.closed, d.is_former,
		d.version IN (SELECT version FROM locked), d.token IN (SELECT token FROM fresh),
		r.seq, r.created_at, r.request_hash,
		CASE WHEN r.request_hash <> d.hash THEN r.epoch END,
		CASE WHEN r.request_hash <> d.hash THEN sha256(r.body) END,
		CASE WHEN r.request_hash <> d.hash THEN r.embed_type END,
		CASE WHEN r.request_hash <> d.hash THEN r.embed_uri END
	FROM draft d
	LEFT JOIN LATERAL (
		SELECT seq, created_at, request_hash, epoch, body, embed_type, embed_uri FROM messages
		WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
	) r ON true`

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

// errJoined fails a transaction of a busy convo whose sender joined after waitForConvos looked.
var errJoined = errors.New("a sender joined meanwhile")

// prepare locks the convos of drafts, uses up the drafts' tokens and reads the facts of each draft,
// in one round trip. It also returns the time for the entries.
func (l *Log) prepare(ctx context.Context, tx pgx.Tx, drafts []Draft, wait bool) (all []facts, at time.Time, err error) {
	c := columnsOf(drafts)
	batch := &pgx.Batch{}
	if wait {
		batch.Queue(waitForConvos, c.convos, c.senders)
	}
	batch.Queue(lockAndRead, c.convos, c.senders, c.keys, c.hashes, c.tokens, c.expiration, serviceauth.LateUse)
	results := tx.SendBatch(ctx, batch)
	defer func() {
		if closeErr := results.Close(); err == nil {
			err = closeErr // after a failed statement Close returns the same error again
		}
	}()
	if wait {
		if _, err := results.Exec(); err != nil {
			return nil, at, fmt.Errorf("wait for the convos: %w", err)
		}
	}
	rows, err := results.Query()
	if err != nil {
		return nil, at, fmt.Errorf("read the facts: %w", err)
	}
	if all, at, err = collectFacts(rows, len(drafts)); err != nil {
		return nil, at, fmt.Errorf("read the facts: %w", err)
	}
	for i := range all {
		all[i].token = serviceauth.TokenID(c.tokens[i])
		if wait && all[i].busy() {
			return nil, at, errJoined
		}
	}
	return all, at, nil
}

// Columns of lockAndRead. The time and the columns of a recorded message are scanned as usual. The
// others are read from the connection's buffer: they are what every message costs.
const (
	columnPlace = iota
	columnTime
	columnGroup
	columnEpoch
	columnLastSeq
	columnClosed
	columnIsFormer
	columnLocked
	columnFresh
	columnRecordedSeq
)

// collectFacts reads the n rows of lockAndRead, and the time of one of them.
func collectFacts(rows pgx.Rows, n int) (all []facts, at time.Time, err error) {
	defer rows.Close()
	all = make([]facts, n)
	var group []byte
	read := 0
	for ; rows.Next(); read++ {
		raw := rows.RawValues()
		f := &all[bigint(raw[columnPlace])-1]
		f.epoch, f.lastSeq = bigint(raw[columnEpoch]), bigint(raw[columnLastSeq])
		f.closed = boolean(raw[columnClosed])
		f.locked, f.fresh = boolean(raw[columnLocked]), boolean(raw[columnFresh])
		if !bytes.Equal(group, raw[columnGroup]) {
			group = bytes.Clone(raw[columnGroup])
		}
		f.groupID = group
		switch isFormer := raw[columnIsFormer]; {
		case isFormer == nil:
			f.membership = never
		case boolean(isFormer):
			f.membership = former
		default:
			f.membership = current
		}
		if read == 0 || raw[columnRecordedSeq] != nil {
			if f.recorded, err = scanRecorded(rows, &at); err != nil {
				return nil, at, err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return nil, at, err
	}
	if read != n {
		return nil, at, fmt.Errorf("%d rows for %d drafts", read, n)
	}
	return all, at, nil
}

// bigint decodes a bigint in the binary format, which is the driver's for results. NULL is 0.
func bigint(raw []byte) int64 {
	if len(raw) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(raw))
}

// boolean decodes a boolean in the binary format. NULL is false.
func boolean(raw []byte) bool { return len(raw) == 1 && raw[0] != 0 }

// scanRecorded reads the time of a row of lockAndRead, and the message that the row has, if any.
func scanRecorded(rows pgx.Rows, at *time.Time) (*recorded, error) {
	var (
		seq, epoch          pgtype.Int8
		recordedAt          pgtype.Timestamptz
		hash, bodyHash      []byte
		embedType, embedURI *string
	)
	err := rows.Scan(nil, at, nil, nil, nil, nil, nil, nil, nil, &seq, &recordedAt, &hash, &epoch, &bodyHash, &embedType, &embedURI)
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
