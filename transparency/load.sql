-- Reads the next entries of logs, with hashes of their bodies.
--
-- $1 convos, $2 the seq behind which each is read
-- $3 the largest number of entries of a convo, $4 of bytes of their bodies; the first entry is read
-- even if it is larger
SELECT w.convo_id, c.last_seq, coalesce(f.seq, 0) AS floor, coalesce(t.size, 0) AS stored,
	e.seq, e.kind, e.epoch, e.created_at, e.sender_did, sha256(e.body)
FROM unnest($1::uuid[], $2::bigint[]) AS w (convo_id, after)
JOIN convos c ON c.id = w.convo_id
LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = w.convo_id LIMIT 1) f ON true
LEFT JOIN LATERAL (
	SELECT n * 256 + octet_length(hashes) / 32 AS size FROM log_tiles WHERE convo_id = w.convo_id AND level = 0 ORDER BY n DESC LIMIT 1
) t ON true
LEFT JOIN LATERAL (
	SELECT * FROM (
		SELECT seq, kind, epoch, created_at, sender_did, body, sum(octet_length(body)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total
		FROM messages WHERE convo_id = w.convo_id AND seq > w.after AND seq <= c.last_seq
		ORDER BY seq LIMIT $3
	) m
	WHERE total <= greatest($4, octet_length(body))
) e ON true
ORDER BY w.convo_id, e.seq
