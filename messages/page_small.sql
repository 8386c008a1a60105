-- Reads a page of small messages of a log together with the reader's membership, both in one
-- snapshot. So a message that is committed after the membership was read is not in the page. A
-- member gets at least one row, and an outsider gets no row. A former member gets a row without a
-- message, unless former is true: its log then ends with left_seq.
--
-- The page begins after the seq after, and ends with the seq upto. cursor is the seq of the caller's
-- cursor. commits says whether commits are in the page. A body larger than bytes is NULL.
--
-- limit and bytes bound the page, so the statement need not add up sizes. The caller asks for one row
-- more than it needs, to see whether the log continues after the page.
SELECT least(c.last_seq, me.left_seq), me.left_at IS NOT NULL, (SELECT created_at FROM messages WHERE convo_id = @convo AND seq = @cursor),
	page.seq, page.kind, page.sender_did, page.epoch, page.body, page.embed_type, page.embed_uri, page.created_at, false AS more
FROM members me
JOIN convos c ON c.id = me.convo_id
LEFT JOIN LATERAL (
	SELECT seq, kind, sender_did, epoch, CASE WHEN octet_length(body) <= @bytes THEN body END AS body, embed_type, embed_uri, created_at
	FROM messages
	WHERE convo_id = @convo AND (me.left_at IS NULL OR @former)
		AND seq BETWEEN greatest(me.joined_seq, @after::bigint + 1) AND least(c.last_seq, me.left_seq, @upto) AND (kind < 3 OR @commits)
	ORDER BY seq LIMIT @limit
) page ON true
WHERE me.convo_id = @convo AND me.did = @reader
