-- Reads the next entries of logs, with hashes of their bodies. Before these, it reads the last
-- entry that the reader has. It hashes this entry only if its row has another version than the
-- reader knows.
--
-- $1 convos, $2 the seq of the last entry that the reader has of each convo, $3 the version of that
-- entry's row or ''
-- $4 the largest number of entries of a convo
-- $5 the largest number of hashed bytes of a convo, $6 of all convos
--
-- The first entry of a convo, and the first convo, are read even if they are larger. A convo that
-- exceeds $6 is cut: none of its entries are read.
--
-- A version is the transaction that wrote the row, and created_at. The transaction alone is not
-- enough, because a database that has gone back can give the same number again.
WITH asked AS MATERIALIZED (
	SELECT w.convo_id, w.size, w.version, c.last_seq, e.upto,
		coalesce(sum(e.bytes) OVER (ORDER BY w.ord) > greatest($6::bigint, e.bytes), false) AS cut
	FROM unnest($1::uuid[], $2::bigint[], $3::text[]) WITH ORDINALITY AS w (convo_id, size, version, ord)
	JOIN convos c ON c.id = w.convo_id
	CROSS JOIN LATERAL (
		SELECT max(seq) AS upto, max(total) AS bytes FROM (
			SELECT seq, bytes, sum(bytes) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM (
				SELECT seq, CASE WHEN seq = w.size AND xmin || ' ' || extract(epoch FROM created_at) = w.version THEN 0 ELSE octet_length(body) END AS bytes
				FROM messages WHERE convo_id = w.convo_id AND seq >= w.size AND seq <= c.last_seq
				ORDER BY seq LIMIT $4
			) m
		) m
		WHERE total <= greatest($5, bytes)
	) e
)
SELECT w.convo_id, w.last_seq, coalesce(f.seq, 0) AS floor, coalesce(t.size, 0) AS stored, w.cut,
	e.seq, e.kind, e.epoch, e.created_at, e.sender_did, e.version, octet_length(e.body),
	CASE WHEN e.seq > w.size OR e.version <> w.version THEN sha256(e.body) END
FROM asked w
LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = w.convo_id LIMIT 1) f ON true
LEFT JOIN LATERAL (
	SELECT n * 256 + octet_length(hashes) / 32 AS size FROM log_tiles WHERE convo_id = w.convo_id AND level = 0 ORDER BY n DESC LIMIT 1
) t ON true
LEFT JOIN LATERAL (
	SELECT seq, kind, epoch, created_at, sender_did, body, xmin || ' ' || extract(epoch FROM created_at) AS version
	FROM messages WHERE convo_id = w.convo_id AND seq BETWEEN w.size AND w.upto
	ORDER BY seq
) e ON NOT w.cut
ORDER BY w.convo_id, e.seq
