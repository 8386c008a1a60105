-- Appends a message if judge would append it, in a convo that the statement lockAlone has locked.
-- If it returns no row, nothing is written: judge then says why.
--
-- If the token was used up already, the statement fails (usedTokensKey).
--
-- $1 convo
-- $2 sender
-- $3 idempotency key
-- $4 request hash
-- $5 kind
-- $6 epoch
-- $7 group id
-- $8 how many epochs a message may be behind its convo
-- $9 body
-- $10, $11 type and URI of the embed
-- $12 token, or NULL
-- $13 when the token expires
-- $14 until when the token can be used
WITH entry AS (
	INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, embed_type,
		embed_uri, created_at)
	SELECT c.id, c.last_seq + 1, $5, m.did, $6, $9, $3, $4, $10, $11, date_trunc('milliseconds', clock_timestamp())
	FROM convos c JOIN members m ON m.convo_id = c.id
	WHERE c.id = $1 AND m.did = $2
		AND c.xmax = pg_current_xact_id_if_assigned()::xid -- this transaction has the lock
		AND m.left_at IS NULL AND m.requested_at IS NULL
		AND c.closed_at IS NULL AND c.group_id = $7 AND $6 BETWEEN c.epoch - $8 AND c.epoch
		AND ($12::uuid IS NULL OR clock_timestamp() <= $14)
	ON CONFLICT DO NOTHING
	RETURNING seq, created_at
), advanced AS (
	UPDATE convos SET last_seq = entry.seq, last_message_at = entry.created_at FROM entry WHERE id = $1
), used AS (
	INSERT INTO used_tokens (token, expires_at) SELECT $12, $13 FROM entry WHERE $12 IS NOT NULL
), pushed AS (
	INSERT INTO push_convos (convo_id, sender_did, created_at)
	SELECT $1, $2, now() FROM entry WHERE $5 = 1 AND EXISTS (SELECT FROM push_targets)
	ON CONFLICT (convo_id, sender_did) DO UPDATE SET sender_did = excluded.sender_did WHERE false
)
SELECT seq, created_at FROM entry
