-- Reads a page of commits of any size. See page_large.sql and commits_small.sql. If first is true, the
-- first commit is in the page even if its body is larger than bytes.
SELECT least(c.last_seq, me.left_seq), me.left_at IS NOT NULL, (SELECT created_at FROM messages WHERE convo_id = @convo AND seq = @cursor),
	page.seq, page.kind, page.sender_did, page.epoch, page.body, page.embed_type, page.embed_uri, page.created_at, page.more
FROM members me
JOIN convos c ON c.id = me.convo_id
LEFT JOIN LATERAL (
	SELECT seq, kind, sender_did, epoch, body, embed_type, embed_uri, created_at, lead(true) OVER so_far IS NOT NULL AS more,
		sum(octet_length(body)) OVER so_far AS total, row_number() OVER so_far AS nth
	FROM messages
	WHERE convo_id = @convo AND (me.left_at IS NULL OR @former)
		AND seq BETWEEN greatest(me.joined_seq, @after::bigint + 1) AND least(c.last_seq, me.left_seq, @upto) AND kind = 3 AND epoch >= (
			SELECT epoch FROM messages WHERE convo_id = @convo AND seq >= greatest(me.joined_seq, @after::bigint + 1) ORDER BY seq LIMIT 1)
	WINDOW so_far AS (ORDER BY epoch ROWS UNBOUNDED PRECEDING)
	ORDER BY epoch LIMIT @limit
) page ON page.total <= @bytes OR (page.nth = 1 AND @first)
WHERE me.convo_id = @convo AND me.did = @reader
