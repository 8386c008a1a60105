-- Reads the next entries of a log, with hashes of their bodies. Before these, it reads the last
-- entry that the reader has. It hashes this entry only if its row has another version than the
-- reader knows.
--
-- $1 the convo, $2 the seq of the last entry that the reader has, $3 the version of that entry's row
-- or ''
-- $4 the largest number of entries, $5 the largest number of hashed bytes. The first entry is read
-- even if it is larger.
--
-- A version is the transaction that wrote the row, and created_at. The transaction alone is not
-- enough, because a database that has gone back can give the same number again.
WITH asked AS MATERIALIZED (
	SELECT c.last_seq, e.upto
	FROM convos c
	CROSS JOIN LATERAL (
		SELECT max(seq) AS upto FROM (
			SELECT seq, bytes, sum(bytes) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM (
				SELECT seq, CASE WHEN seq = $2 AND xmin || ' ' || extract(epoch FROM created_at) = $3 THEN 0 ELSE octet_length(body) END AS bytes
				FROM messages WHERE convo_id = $1 AND seq >= $2 AND seq <= c.last_seq
				ORDER BY seq LIMIT $4
			) m
		) m
		WHERE total <= greatest($5, bytes)
	) e
	WHERE c.id = $1
)
SELECT w.last_seq, coalesce(f.seq, 0) AS floor, coalesce(t.size, 0) AS stored,
	e.seq, e.kind, e.epoch, e.created_at, e.sender_did, e.version, octet_length(e.body),
	CASE WHEN e.seq > $2 OR e.version <> $3 THEN sha256(e.body) END
FROM asked w
LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = $1 LIMIT 1) f ON true
LEFT JOIN LATERAL (
	SELECT n * 256 + octet_length(hashes) / 32 AS size FROM log_tiles WHERE convo_id = $1 AND level = 0 ORDER BY n DESC LIMIT 1
) t ON true
LEFT JOIN LATERAL (
	SELECT seq, kind, epoch, created_at, sender_did, body, xmin || ' ' || extract(epoch FROM created_at) AS version
	FROM messages WHERE convo_id = $1 AND seq BETWEEN $2 AND w.upto
	ORDER BY seq
) e ON true
ORDER BY e.seq
