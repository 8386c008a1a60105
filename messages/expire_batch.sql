-- Deletes old application messages from the beginnings of logs, and raises the floors of these
-- logs. Returns how many messages it deleted, and the convos that have more old messages.
--
-- $1 convos, $2 the time before which a message is old
-- $3 the largest number of entries in one convo
-- $4 whether to delete only entries whose leaves are in log_tiles
--
-- The floor passes an entry only if all entries before it are old too. If the clock was set back, a
-- log has a younger entry before an older entry. The floor then stays before the younger entry
-- until both are old.
WITH old AS MATERIALIZED (
	SELECT c.id AS convo_id, coalesce(f.seq, 0) AS floor, entry.seq
	FROM unnest($1::uuid[]) AS c (id)
	LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = c.id LIMIT 1) f ON true
	CROSS JOIN LATERAL (
		SELECT seq FROM (
			SELECT seq, bool_and(created_at < $2) OVER (ORDER BY seq) AS old
			FROM messages
			WHERE convo_id = c.id AND seq > coalesce(f.seq, 0) AND (NOT $4 OR seq <= (
				SELECT n * 256 + octet_length(hashes) / 32 FROM log_tiles WHERE convo_id = c.id AND level = 0 ORDER BY n DESC LIMIT 1
			))
			ORDER BY seq LIMIT $3
		) entries WHERE old
	) entry
), passed AS MATERIALIZED (
	SELECT convo_id, floor, max(seq) AS upto FROM old GROUP BY convo_id, floor
), gone AS (
	DELETE FROM messages m USING passed p
	WHERE m.convo_id = p.convo_id AND m.seq > p.floor AND m.seq <= p.upto AND m.kind = 1
	RETURNING m.seq
), raised AS (
	INSERT INTO log_floors (convo_id, seq) SELECT convo_id, upto FROM passed
	ON CONFLICT (convo_id) DO UPDATE SET seq = excluded.seq WHERE log_floors.seq < excluded.seq
)
SELECT (SELECT count(*) FROM gone), ARRAY(
	SELECT p.convo_id FROM passed p CROSS JOIN LATERAL (
		SELECT created_at FROM messages WHERE convo_id = p.convo_id AND seq > p.upto ORDER BY seq LIMIT 1
	) next
	WHERE next.created_at < $2
	ORDER BY p.convo_id)
