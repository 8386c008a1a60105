-- Tells the stream of a message that its transaction has just appended, alone, to a convo.
--
-- If no event waits in the outbox, the message gets the next place of the stream at once. Earlier
-- events of the convo have their places then: their transactions ended before this one got the lock
-- of the convo, so this statement sees what they left in the outbox. The lock of the row of stream
-- is held until the COMMIT, so the stream has no gap. In all other cases the message gets a row of
-- the outbox, and the sequencer gives the place.
--
-- Only the sequencer begins a day, and a generation after a failover or a restore. So there are no
-- places before it has adopted this server and table, after midnight before its first step, if the
-- stream ends before a place that this node has seen, or while a build runs whose sequencer believes
-- that it alone gives places.
--
-- $1 convo
-- $2 kind
-- $3 bytes of the body
-- $4 this node
-- $5 the newest place that this node knows
-- $6 the oldest schema version whose builds know places
-- $7 channel that tells other nodes how far the stream goes
WITH entry AS (
	-- This transaction has written this version of the row, so it has appended the message.
	SELECT last_seq AS seq, last_message_at AS created_at FROM convos
	WHERE id = $1 AND xmin = pg_current_xact_id_if_assigned()::xid
), free AS (
	SELECT FROM stream
	WHERE head >= $5 AND adopted_start = pg_postmaster_start_time() AND adopted_table = tableoid
		AND day = (clock_timestamp() AT TIME ZONE 'UTC')::date
		AND EXISTS (SELECT FROM entry) AND NOT EXISTS (SELECT FROM outbox WHERE id > stream.floor)
		AND NOT EXISTS (SELECT FROM nodes WHERE schema_version < $6)
	FOR NO KEY UPDATE SKIP LOCKED
), place AS (
	UPDATE stream SET head = head + 1 FROM free RETURNING head, day
), event AS (
	INSERT INTO events (stream_seq, day, kind, convo_id, seq, size, created_at)
	SELECT place.head, place.day, $2, $1, entry.seq, $3, entry.created_at FROM place, entry
), waits AS (
	INSERT INTO outbox (kind, convo_id, seq, size, created_at)
	SELECT $2, $1, entry.seq, $3, entry.created_at FROM entry WHERE NOT EXISTS (SELECT FROM place)
)
SELECT head, CASE WHEN EXISTS (SELECT FROM nodes WHERE id <> $4) THEN pg_notify($7, head::text) END FROM place
