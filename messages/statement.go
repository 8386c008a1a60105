package messages

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/outbox"
	"mlsd/push"
)

// Outcomes that the statement gives a draft.
const (
	statusAppended      = "appended"
	statusRepeated      = "repeated" // the key stands in the log, for the same content
	statusConflict      = "conflict" // the key stands in the log, for other content
	statusConvoNotFound = "convo-not-found"
	statusNotMember     = "not-member"
	statusBusy          = "busy" // the convo is not locked, so nothing can be appended to it
	statusWrongGroup    = "wrong-group"
	statusWrongEpoch    = "wrong-epoch"
	statusTokenUsed     = "token-used" // by an earlier request, or it is too old: this one is not even looked at
)

// outcome is the statement's word on one draft.
type outcome struct {
	status       string
	seq          int64     // of the new row or of the one that holds the key
	at           time.Time // created_at of that row
	currentEpoch int64
	differing    []string // of a conflict: names of the input fields that differ
}

// lockConvos takes the row locks that order all writers of a convo, in one fixed order so that batches cannot deadlock, and notes
// in the transaction which convos it did not lock. It is a statement of its own: what follows must see what the previous holder
// committed, and a statement keeps the snapshot it began with however long it waited.
//
// Only for members: a stranger can neither hold up a convo nor learn from a wait that it exists.
//
// Then it uses up the drafts' tokens, and notes those that were used before. In this order whoever waits for a token, which a
// transaction on another node is using up, waits for nobody who waits for a convo.
const lockConvos = `
	WITH locked AS MATERIALIZED (
		SELECT id FROM convos
		WHERE id = ANY(ARRAY(
			SELECT m.convo_id
			FROM unnest($1::uuid[], $2::text[]) AS d (convo_id, did)
			CROSS JOIN LATERAL (
				SELECT convo_id FROM members WHERE convo_id = d.convo_id AND did = d.did AND left_at IS NULL LIMIT 1
			) m))
		ORDER BY id FOR NO KEY UPDATE
	), uses AS (
		SELECT * FROM unnest($3::uuid[], $4::timestamptz[]) AS u (token, expires_at) WHERE (SELECT count(*) FROM locked) >= 0
	), fresh AS (` + serviceauth.NoteUses + `
	)
	SELECT set_config('mlsd.unlocked', ARRAY(SELECT unnest($1::uuid[]) EXCEPT SELECT id FROM locked)::text, true),
		set_config('mlsd.stale', ARRAY(SELECT unnest($3::uuid[]) EXCEPT SELECT token FROM fresh)::text, true)`

// lockIdleConvos is lockConvos for those who share a batch: it passes over convos that another transaction holds, and nothing else
// that the batch may have to wait for holds it up for long.
var lockIdleConvos = strings.NewReplacer(
	"FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED",
	"SELECT set_config('mlsd.unlocked'", "SELECT set_config('lock_timeout', '250', true), set_config('mlsd.unlocked'",
).Replace(lockConvos)

// appendDrafts judges every draft, numbers the good ones behind the convo's last_seq and inserts them. The laterals with their
// limits are index look-ups whatever the planner believes of a table that it has no statistics of yet; as plain joins they
// became scans of a fresh log, and the cost of a message grew with the log. What is known of a draft stays in its row: a join of
// two of these parts would be a loop in a loop, and the cost of a batch grow with the square of its size.
const appendDrafts = `
	WITH moment AS MATERIALIZED (
		SELECT date_trunc('milliseconds', clock_timestamp()) AS now
	), draft AS (
		SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::text[], $4::text[], $5::bytea[], $6::smallint[], $7::bigint[],
			$8::bytea[], $9::text[], $10::text[], $12::uuid[])
		WITH ORDINALITY AS d (convo_id, group_id, sender_did, key, hash, kind, epoch, body, embed_type, embed_uri, token, ord)
	), unlocked AS MATERIALIZED (
		SELECT current_setting('mlsd.unlocked')::uuid[] AS ids
	), stale AS MATERIALIZED (
		SELECT current_setting('mlsd.stale')::uuid[] AS tokens
	), judged AS (
		SELECT d.*, c.last_seq, c.epoch AS current_epoch, held.seq AS held_seq, held.created_at AS held_at,
			CASE
				WHEN d.token = ANY((SELECT tokens FROM stale)::uuid[]) THEN 'token-used'
				WHEN held.request_hash = d.hash THEN 'repeated'
				WHEN held.seq IS NOT NULL THEN 'conflict'
				WHEN c.id IS NULL OR m.did IS NULL THEN 'convo-not-found'
				WHEN m.left_at IS NOT NULL THEN 'not-member'
				WHEN d.convo_id = ANY((SELECT ids FROM unlocked)::uuid[]) THEN 'busy'
				WHEN c.group_id <> d.group_id THEN 'wrong-group'
				WHEN d.epoch > c.epoch OR d.epoch < c.epoch - $11 THEN 'wrong-epoch'
				ELSE 'appended'
			END AS status,
			CASE WHEN held.request_hash <> d.hash THEN array_remove(ARRAY[
				CASE WHEN held.body <> d.body THEN 'ciphertext' END,
				CASE WHEN held.embed_type IS DISTINCT FROM d.embed_type THEN 'embedType' END,
				CASE WHEN held.embed_uri IS DISTINCT FROM d.embed_uri THEN 'embedUri' END,
				CASE WHEN held.epoch <> d.epoch THEN 'epoch' END], NULL)
			END AS differing
		FROM draft d
		LEFT JOIN LATERAL (SELECT * FROM convos WHERE id = d.convo_id LIMIT 1) c ON true
		LEFT JOIN LATERAL (SELECT * FROM members WHERE convo_id = d.convo_id AND did = d.sender_did LIMIT 1) m ON true
		LEFT JOIN LATERAL (
			SELECT * FROM messages
			WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
		) held ON true
	), numbered AS MATERIALIZED (
		SELECT *, last_seq + count(*) FILTER (WHERE status = 'appended') OVER (PARTITION BY convo_id ORDER BY ord) AS seq
		FROM judged
	), good AS NOT MATERIALIZED (
		SELECT * FROM numbered WHERE status = 'appended'
	), inserted AS (
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, embed_type,
			embed_uri, created_at)
		SELECT convo_id, seq, kind, sender_did, epoch, body, key, hash, embed_type, embed_uri, moment.now
		FROM good, moment
	), advanced AS (
		UPDATE convos c SET last_seq = n.last_seq, last_message_at = moment.now
		FROM (SELECT convo_id, max(seq) AS last_seq FROM good GROUP BY convo_id) n, moment
		WHERE c.id = n.convo_id
	), pushed AS (
		SELECT convo_id, sender_did FROM good WHERE kind = 1
	), told AS (` + push.NoteMessages + `
	), noted AS (
		SELECT convo_id, seq, kind, octet_length(body) AS size, moment.now AS created_at FROM good, moment
	), left_word AS (` + outbox.NoteMessages + `
	)
	SELECT status, CASE WHEN status = 'appended' THEN seq ELSE coalesce(held_seq, 0) END, coalesce(held_at, moment.now),
		coalesce(current_epoch, 0), differing
	FROM numbered, moment
	ORDER BY ord`

// appendOne is lockConvos or lockIdleConvos, and appendDrafts, for a single draft. The function is in migration 000009; what it judges and
// writes is what appendDrafts does.
const appendOne = `
	SELECT status, coalesce(seq, 0), at, coalesce(current_epoch, 0), differing
	FROM append_message($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`

// use is a token that a draft uses up.
type use struct {
	token   serviceauth.TokenID
	expires time.Time
}

// sender is a connection, on which a batch is a transaction of its own, or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// batchOf makes the statements that write drafts, whose keys are all different. Unless they may wait, they pass over convos that
// other transactions hold. The last one returns the outcomes.
func (l *Log) batchOf(drafts []Draft, wait bool) *pgx.Batch {
	batch := &pgx.Batch{}
	if len(drafts) == 1 && l.one != "" {
		d := &drafts[0]
		var token, expires any
		if d.Token != nil {
			token, expires = [16]byte(d.Token.ID()), d.Token.Expires()
		}
		batch.Queue(l.one, [16]byte(d.ConvoID), d.GroupID, d.Sender.String(), d.Key, d.Hash[:], int16(d.Kind), d.Epoch, d.Body,
			d.EmbedType, d.EmbedURI, l.window, wait, token, expires)
		return batch
	}
	n := len(drafts)
	var (
		convos                 = make(pgpool.Array[pgpool.UUID], n)
		groups, hashes, bodies = make(pgpool.Array[pgpool.Bytes], n), make(pgpool.Array[pgpool.Bytes], n), make(pgpool.Array[pgpool.Bytes], n)
		senders, keys          = make(pgpool.Array[pgpool.Text], n), make(pgpool.Array[pgpool.Text], n)
		kinds, epochs          = make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n)
		embedTypes, embedURIs  = make(pgpool.Array[pgpool.OptionalText], n), make(pgpool.Array[pgpool.OptionalText], n)
		tokens                 = make(pgpool.Array[pgpool.UUID], n) // of zeros where there is none
		uses                   = make([]use, 0, n)
	)
	for i := range drafts {
		d := &drafts[i]
		convos[i], groups[i], senders[i], keys[i], hashes[i] = pgpool.UUID(d.ConvoID), d.GroupID, pgpool.Text(d.Sender), pgpool.Text(d.Key), d.Hash[:]
		kinds[i], epochs[i], bodies[i] = pgpool.Int(d.Kind), pgpool.Int(d.Epoch), d.Body
		embedTypes[i], embedURIs[i] = pgpool.Optional(d.EmbedType), pgpool.Optional(d.EmbedURI)
		if d.Token != nil {
			u := use{d.Token.ID(), d.Token.Expires()}
			tokens[i], uses = pgpool.UUID(u.token), append(uses, u)
		}
	}
	slices.SortFunc(uses, func(a, b use) int { return serviceauth.CompareTokens(a.token, b.token) })
	used, expires := make(pgpool.Array[pgpool.UUID], len(uses)), make(pgpool.Array[pgpool.Time], len(uses))
	for i, u := range uses {
		used[i], expires[i] = pgpool.UUID(u.token), pgpool.Time(u.expires)
	}
	lock := lockIdleConvos
	if wait {
		lock = lockConvos
	}
	batch.Queue(lock, convos, senders, used, expires)
	batch.Queue(l.statement, convos, groups, senders, keys, hashes, kinds, epochs, bodies, embedTypes, embedURIs, l.window, tokens)
	return batch
}

// appendBatch writes drafts, whose keys are all different, in one round trip and returns an outcome for each.
func (l *Log) appendBatch(ctx context.Context, to sender, drafts []Draft, wait bool) (outcomes []outcome, err error) {
	batch := l.batchOf(drafts, wait)
	results := to.SendBatch(ctx, batch)
	defer func() {
		// The server commits before it says that the batch is done, and Close is what reads that.
		if closeErr := results.Close(); err == nil {
			err = closeErr // after a failed statement it only says the same again
		}
	}()
	for range batch.Len() - 1 {
		if _, err := results.Exec(); err != nil {
			return nil, fmt.Errorf("lock the convos: %w", err)
		}
	}
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o outcome, err error) {
		err = row.Scan(&o.status, &o.seq, &o.at, &o.currentEpoch, &o.differing)
		return o, err
	})
}
