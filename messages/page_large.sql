-- Reads a page of messages of any size. The page ends before the message that would make the bodies
-- larger than bytes in all. If first is true, the first message is in the page even if its body is
-- larger. The other parameters are those of page_small.sql.
--
-- octet_length of a TOASTed value reads only its header, so the statement loads no body that is
-- outside the page.
SELECT least(c.last_seq, me.left_seq), me.left_at IS NOT NULL, (SELECT created_at FROM messages WHERE convo_id = @convo AND seq = @cursor),
	page.seq, page.kind, page.sender_did, page.epoch, page.body, page.embed_type, page.embed_uri, page.created_at, page.more
FROM members me
JOIN convos c ON c.id = me.convo_id
LEFT JOIN LATERAL (
	SELECT seq, kind, sender_did, epoch, body, embed_type, embed_uri, created_at, lead(true) OVER so_far IS NOT NULL AS more,
		sum(octet_length(body)) OVER so_far AS total, row_number() OVER so_far AS nth
	FROM messages
	WHERE convo_id = @convo AND (me.left_at IS NULL OR @former)
		AND seq BETWEEN greatest(me.joined_seq, @after::bigint + 1) AND least(c.last_seq, me.left_seq, @upto) AND (kind < 3 OR @commits)
	WINDOW so_far AS (ORDER BY seq ROWS UNBOUNDED PRECEDING)
	ORDER BY seq LIMIT @limit
) page ON page.total <= @bytes OR (page.nth = 1 AND @first)
WHERE me.convo_id = @convo AND me.did = @reader
