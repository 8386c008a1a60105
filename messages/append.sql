-- Judges the drafts of one transaction, uses up their tokens, and appends those that may be appended:
-- the log entries, an event for each, and a row of push_convos for each convo and sender. Who sends
-- into a convo accepts it.
--
-- $1 the convo of each draft, $2 its sender, $3 its key, $4 its request hash, $5 the group and $6 the
-- epoch of its ciphertext, $7 its token, $8 when the token expires, $9 its kind, $10 its body,
-- $11 embed_type, $12 embed_uri. Places in the batch, from 1: $13 the first draft with the same
-- token, 0 if the draft has none; $14 the first draft with the same key.
-- $15 serviceauth.LateUse, $16 how many epochs behind the convo's a message may be, $17 true if the
-- caller has decided that the senders may send without being members, $18 the drafts for which the
-- sender or the convo has no quota left.
--
-- Only the convos of members are locked. So a stranger cannot delay a convo, and cannot learn from
-- a wait that it exists. Convos are locked in the order of their ids, and then tokens are used in
-- the order of their ids, so that transactions cannot deadlock: one that waits for a token has its
-- convos already. The token of a member whose convo is not locked stays unused: another transaction
-- judges that draft. A row of push_convos that exists already is locked and not written. The lock
-- keeps the fan-out from taking the row before this commit.
--
-- The statement reads from a snapshot that is older than its locks. Every transaction that appends
-- to a convo's log or changes its roster also updates the convo's row, which moves it to another
-- ctid. A convo counts as locked only if the locked version of the row is the one in the snapshot:
-- then all that was read of the convo is still true.
--
-- A lateral join with LIMIT makes the planner use an index, even if it has no statistics of the
-- table.
WITH draft AS MATERIALIZED (
	SELECT d.ord, d.convo_id, d.sender_did, d.epoch, d.token, d.expires_at, d.token_first, d.key_first,
		m.is_former AND NOT $17 AS is_former, m.is_request,
		c.version, c.last_seq, c.convo_epoch, c.is_closed, c.group_id = d.group_id AS same_group,
		r.recorded_seq, r.recorded_at, r.request_hash = d.hash AS same_request
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bigint[], $7::uuid[], $8::timestamptz[], $13::bigint[], $14::bigint[])
		WITH ORDINALITY AS d (convo_id, sender_did, key, hash, group_id, epoch, token, expires_at, token_first, key_first, ord)
	LEFT JOIN LATERAL (
		SELECT left_at IS NOT NULL AS is_former, requested_at IS NOT NULL AS is_request FROM members WHERE convo_id = d.convo_id AND did = d.sender_did LIMIT 1
	) m ON true
	LEFT JOIN LATERAL (
		SELECT ctid AS version, group_id, epoch AS convo_epoch, last_seq, closed_at IS NOT NULL AS is_closed FROM convos WHERE id = d.convo_id LIMIT 1
	) c ON true
	LEFT JOIN LATERAL (
		SELECT seq AS recorded_seq, created_at AS recorded_at, request_hash FROM messages
		WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
	) r ON true
), locked AS MATERIALIZED (
	SELECT ctid AS version FROM convos
	WHERE id = ANY (ARRAY(SELECT convo_id FROM draft WHERE NOT is_former))
	ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), fresh AS (
	INSERT INTO used_tokens (token, expires_at)
	SELECT token, expires_at FROM draft
	WHERE token_first = ord AND expires_at > clock_timestamp() - $15::interval
		AND (is_former IS NOT FALSE OR version IN (SELECT version FROM locked))
	ORDER BY token
	ON CONFLICT DO NOTHING
	RETURNING token
), alone AS MATERIALIZED (
	-- What each draft would get if it had no other draft beside it. The order of the questions is
	-- part of the contract: the token comes first, and the key comes before the membership and the
	-- epoch, so that a retry gets its first answer even if these have changed, or the convo was
	-- closed. The quota comes last: a stranger does not learn from the convo's that it exists.
	SELECT *, CASE
		WHEN NOT is_former AND version IS NOT NULL AND version NOT IN (SELECT version FROM locked) THEN 'busy'
		WHEN token_first <> 0 AND (token_first <> ord OR token NOT IN (SELECT token FROM fresh)) THEN 'token used'
		WHEN same_request THEN 'repeated'
		WHEN NOT same_request THEN 'conflict'
		WHEN is_former IS NULL OR version IS NULL THEN 'no convo'
		WHEN is_former THEN 'not member'
		WHEN is_closed THEN 'closed'
		WHEN NOT same_group THEN 'wrong group'
		WHEN epoch > convo_epoch OR epoch < convo_epoch - $16 THEN 'wrong epoch'
		WHEN ($18::boolean[])[ord] THEN 'over quota'
		ELSE 'append'
	END AS own_verdict
	FROM draft
), judged AS MATERIALIZED (
	-- A draft repeats, or conflicts with, an earlier draft of the batch that has its key and is
	-- appended.
	SELECT ord, convo_id, sender_did, is_request, epoch, convo_epoch, recorded_seq, recorded_at, verdict,
		last_seq + count(*) FILTER (WHERE verdict = 'append') OVER (PARTITION BY convo_id ORDER BY ord ROWS UNBOUNDED PRECEDING) AS seq,
		date_trunc('milliseconds', clock_timestamp()) AS at
	FROM (
		SELECT *, CASE
			WHEN key_first < ord AND own_verdict NOT IN ('busy', 'token used') AND EXISTS (
				SELECT FROM alone a WHERE a.key_first = d.key_first AND a.ord < d.ord AND a.own_verdict = 'append'
			) THEN 'second'
			ELSE own_verdict
		END AS verdict
		FROM alone d
		OFFSET 0 -- so that each is decided once
	) d
), appended AS (
	INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, embed_type, embed_uri, created_at)
	SELECT convo_id, seq, ($9::smallint[])[ord], sender_did, epoch, ($10::bytea[])[ord], ($3::text[])[ord], ($4::bytea[])[ord],
		($11::text[])[ord], ($12::text[])[ord], at
	FROM judged WHERE verdict = 'append'
	RETURNING convo_id, seq, kind, sender_did, octet_length(body) AS size, created_at
), outboxed AS (
	-- Several application messages share a row. A proposal among them has its place in the order of
	-- its convo, so that all get rows of their own.
	INSERT INTO outbox (kind, convo_id, seq, size, convo_ids, seqs, sizes, created_at)
	SELECT kind, CASE WHEN n = 1 THEN convo_ids[1] END, CASE WHEN n = 1 THEN seqs[1] END, CASE WHEN n = 1 THEN sizes[1] ELSE 0 END,
		CASE WHEN n > 1 THEN convo_ids END, CASE WHEN n > 1 THEN seqs END, CASE WHEN n > 1 THEN sizes END, at
	FROM (
		SELECT kind, count(*) AS n, array_agg(convo_id ORDER BY seq) AS convo_ids, array_agg(seq ORDER BY seq) AS seqs,
			array_agg(size ORDER BY seq) AS sizes, min(created_at) AS at
		FROM appended
		GROUP BY kind, CASE WHEN EXISTS (SELECT FROM appended WHERE kind <> 1) THEN (convo_id, seq) END
	) rows
	ORDER BY seqs[1]
), advanced AS (
	UPDATE convos c SET last_seq = log.last_seq, last_message_at = log.at
	FROM (SELECT convo_id, max(seq) AS last_seq, max(created_at) AS at FROM appended GROUP BY convo_id) log
	WHERE c.id = log.convo_id
), accepted AS (
	UPDATE members m SET requested_at = NULL
	FROM judged j
	WHERE j.is_request AND j.verdict = 'append' AND m.convo_id = j.convo_id AND m.did = j.sender_did
), pushed AS (
	INSERT INTO push_convos (convo_id, sender_did, created_at)
	SELECT DISTINCT convo_id, sender_did, now() FROM appended WHERE kind = 1 AND EXISTS (SELECT FROM push_targets)
	ORDER BY convo_id, sender_did
	ON CONFLICT (convo_id, sender_did) DO UPDATE SET sender_did = excluded.sender_did WHERE false
)
SELECT j.ord, j.verdict, j.seq, j.at, j.convo_epoch, j.recorded_seq, j.recorded_at,
	r.request_hash, r.epoch, sha256(r.body), r.embed_type, r.embed_uri
FROM judged j
LEFT JOIN LATERAL (
	SELECT request_hash, epoch, body, embed_type, embed_uri FROM messages
	WHERE j.verdict = 'conflict' AND convo_id = j.convo_id AND seq = j.recorded_seq LIMIT 1
) r ON true
