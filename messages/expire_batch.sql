-- Deletes old application messages from the beginnings of logs, and raises the floors of these
-- logs. Returns how many messages it deleted, and the convos that may have more old messages.
-- Convos that the statement did not reach come first.
--
-- $1 convos, $2 the time before which a message is old
-- $3 the largest number of entries in one transaction, $4 the largest number in one convo
-- $5 whether to delete only entries whose leaves are in log_tiles
--
-- The floor passes an entry only if all entries before it are old too. If the clock was set back, a
-- log has a younger entry before an older entry. The floor then stays before the younger entry
-- until both are old.
WITH old AS MATERIALIZED (
	SELECT c.id AS convo_id, c.ord, coalesce(f.seq, 0) AS floor, entry.seq
	FROM unnest($1::uuid[]) WITH ORDINALITY AS c (id, ord)
	LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = c.id LIMIT 1) f ON true
	CROSS JOIN LATERAL (
		SELECT seq FROM (
			SELECT seq, bool_and(created_at < $2) OVER (ORDER BY seq) AS old
			FROM messages
			WHERE convo_id = c.id AND seq > coalesce(f.seq, 0) AND (NOT $5 OR seq <= (
				SELECT n * 256 + octet_length(hashes) / 32 FROM log_tiles WHERE convo_id = c.id AND level = 0 ORDER BY n DESC LIMIT 1
			))
			ORDER BY seq LIMIT $4
		) entries WHERE old
	) entry
	LIMIT $3
), passed AS MATERIALIZED (
	SELECT convo_id, ord, floor, max(seq) AS upto, count(*) AS n FROM old GROUP BY convo_id, ord, floor
), total AS MATERIALIZED (
	SELECT sum(n) AS n, max(ord) AS last FROM passed
), gone AS (
	DELETE FROM messages m USING passed p
	WHERE m.convo_id = p.convo_id AND m.seq > p.floor AND m.seq <= p.upto AND m.kind = 1
	RETURNING m.seq
), raised AS (
	INSERT INTO log_floors (convo_id, seq) SELECT convo_id, upto FROM passed
	ON CONFLICT (convo_id) DO UPDATE SET seq = excluded.seq WHERE log_floors.seq < excluded.seq
)
SELECT (SELECT count(*) FROM gone), ARRAY(
	SELECT c.id FROM total, unnest($1::uuid[]) WITH ORDINALITY AS c (id, ord) LEFT JOIN passed p USING (ord)
	WHERE p.n = $4 OR (total.n = $3 AND c.ord >= total.last)
	ORDER BY p.n IS NOT NULL, c.ord)
