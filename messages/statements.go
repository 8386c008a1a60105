package messages

// A transaction that appends messages has two round trips. The first locks convos. A second
// statement of that round trip then reads what judge needs, in a snapshot that is newer than the
// locks. The second round trip writes and commits.
//
// All transactions lock in the same order, so that they cannot deadlock: convos and tokens by their
// ids, rows of push_convos by their keys.

// waitLonger sets the lock_timeout of the transaction of a busy convo. Batches that several convos
// share have a shorter timeout (pgpool.OpenReserved).
const waitLonger = `SELECT set_config('lock_timeout', $1, true)`

// lockFreeConvos locks the convos whose members have sent the drafts, except convos that another
// transaction has locked. So a caller who is not a member cannot delay a convo, or learn from a
// wait that it exists. The returned rows are as they were when they were locked.
//
// A lateral join with LIMIT makes the planner use an index, even if it has no statistics.
const lockFreeConvos = `
	SELECT id, group_id, epoch, last_seq, closed_at IS NOT NULL, successor_id FROM convos
	WHERE id = ANY (ARRAY(
		SELECT m.convo_id
		FROM unnest($1::uuid[], $2::text[]) AS d (convo_id, sender_did)
		CROSS JOIN LATERAL (
			SELECT convo_id FROM members WHERE convo_id = d.convo_id AND did = d.sender_did AND left_at IS NULL LIMIT 1
		) m))
	ORDER BY id FOR NO KEY UPDATE SKIP LOCKED`

// lockConvos is lockFreeConvos, but it waits for other transactions.
const lockConvos = `
	SELECT id, group_id, epoch, last_seq, closed_at IS NOT NULL, successor_id FROM convos
	WHERE id = ANY (ARRAY(
		SELECT m.convo_id
		FROM unnest($1::uuid[], $2::text[]) AS d (convo_id, sender_did)
		CROSS JOIN LATERAL (
			SELECT convo_id FROM members WHERE convo_id = d.convo_id AND did = d.sender_did AND left_at IS NULL LIMIT 1
		) m))
	ORDER BY id FOR NO KEY UPDATE`

// lockConvo locks one convo.
const lockConvo = `
	SELECT id, group_id, epoch, last_seq, closed_at IS NOT NULL, successor_id FROM convos WHERE id = $1 FOR NO KEY UPDATE`

// readStates reads, for each draft, the membership of its sender and the message under its key. It
// computes the hash of the stored body only for a conflict.
const readStates = `
	SELECT d.ord, m.left_at IS NULL AND m.did IS NOT NULL, m.left_at IS NOT NULL, m.requested_at IS NOT NULL,
		clock_timestamp(), EXISTS (SELECT FROM push_targets),
		r.seq, r.created_at, r.request_hash, r.epoch, r.embed_type, r.embed_uri,
		CASE WHEN r.request_hash <> d.hash THEN sha256(r.body) END
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[])
		WITH ORDINALITY AS d (convo_id, sender_did, key, hash, ord)
	LEFT JOIN LATERAL (
		SELECT did, left_at, requested_at FROM members WHERE convo_id = d.convo_id AND did = d.sender_did LIMIT 1
	) m ON true
	LEFT JOIN LATERAL (
		SELECT seq, created_at, request_hash, epoch, body, embed_type, embed_uri FROM messages
		WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
	) r ON true`

// readUsedTokens returns the tokens that are used up.
const readUsedTokens = `SELECT token FROM used_tokens WHERE token = ANY ($1::uuid[])`

// useTokens uses tokens up. If another transaction has used a token meanwhile, the statement fails
// (usedTokensKey), and the transaction with it.
const useTokens = `INSERT INTO used_tokens (token, expires_at) SELECT * FROM unnest($1::uuid[], $2::timestamptz[])`

const usedTokensKey = "used_tokens_pkey"

// insertMessages appends the log entries. It is the only statement that appends messages.
const insertMessages = `
	INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, embed_type,
		embed_uri, created_at)
	SELECT e.*, $11 FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bytea[],
		$7::text[],
		$8::bytea[], $9::text[], $10::text[]) AS e`

// advanceConvos records the newest entry of each log.
const advanceConvos = `
	UPDATE convos SET last_seq = log.last_seq, last_message_at = $3
	FROM unnest($1::uuid[], $2::bigint[]) AS log (convo_id, last_seq) WHERE id = log.convo_id`

// acceptConvos accepts the requests of senders: a person who sends into a convo accepts it.
const acceptConvos = `
	UPDATE members SET requested_at = NULL
	FROM unnest($1::uuid[], $2::text[]) AS s (convo_id, sender_did) WHERE members.convo_id = s.convo_id AND did =
		s.sender_did`

// queuePushes adds a row for each convo and sender. It only locks a row that exists already. The
// lock keeps the fan-out from taking the row before this transaction has committed.
const queuePushes = `
	INSERT INTO push_convos (convo_id, sender_did, created_at)
	SELECT s.*, now() FROM unnest($1::uuid[], $2::text[]) AS s
	ON CONFLICT (convo_id, sender_did) DO UPDATE SET sender_did = excluded.sender_did WHERE false`
