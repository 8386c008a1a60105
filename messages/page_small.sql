-- Reads a page of small messages of a log together with the reader's membership, both in one
-- snapshot. So a message that is committed after the membership was read is not in the page. A
-- member gets at least one row, an outsider gets no row, and a former member gets a row without a
-- message.
--
-- $1 convo, $2 reader, $3 the seq before the page, $4 the seq of the cursor, $5 the last seq
-- $6 the number of messages, plus one
-- $7 the bytes of the largest body; a larger body is NULL
-- $8 whether commits are in the page
--
-- $6 and $7 bound the page, so the statement need not add up sizes. The caller asks for one row
-- more than it needs, to see whether the log continues after the page.
SELECT c.last_seq, me.left_at IS NOT NULL, (SELECT created_at FROM messages WHERE convo_id = $1 AND seq = $4),
	page.seq, page.kind, page.sender_did, page.epoch, page.body, page.embed_type, page.embed_uri, page.created_at, false AS more
FROM members me
JOIN convos c ON c.id = me.convo_id
LEFT JOIN LATERAL (
	SELECT seq, kind, sender_did, epoch, CASE WHEN octet_length(body) <= $7 THEN body END AS body, embed_type, embed_uri, created_at
	FROM messages
	WHERE convo_id = $1 AND me.left_at IS NULL
		AND seq BETWEEN greatest(me.joined_seq, $3::bigint + 1) AND least(c.last_seq, $5) AND (kind < 3 OR $8)
	ORDER BY seq LIMIT $6
) page ON true
WHERE me.convo_id = $1 AND me.did = $2
