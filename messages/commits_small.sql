-- Reads a page of small commits. See page_small.sql, which explains the parameters.
--
-- Commits have an index of their own, by epoch. To use that index, the statement turns the first
-- seq of the page into an epoch: a commit at this seq or later creates at least the epoch of the
-- entry at this seq.
SELECT least(c.last_seq, me.left_seq), me.left_at IS NOT NULL, (SELECT created_at FROM messages WHERE convo_id = @convo AND seq = @cursor),
	page.seq, page.kind, page.sender_did, page.epoch, page.body, page.embed_type, page.embed_uri, page.created_at, false AS more
FROM members me
JOIN convos c ON c.id = me.convo_id
LEFT JOIN LATERAL (
	SELECT seq, kind, sender_did, epoch, CASE WHEN octet_length(body) <= @bytes THEN body END AS body, embed_type, embed_uri, created_at
	FROM messages
	WHERE convo_id = @convo AND (me.left_at IS NULL OR @former)
		AND seq BETWEEN greatest(me.joined_seq, @after::bigint + 1) AND least(c.last_seq, me.left_seq, @upto) AND kind = 3 AND epoch >= (
			SELECT epoch FROM messages WHERE convo_id = @convo AND seq >= greatest(me.joined_seq, @after::bigint + 1) ORDER BY seq LIMIT 1)
	ORDER BY epoch LIMIT @limit
) page ON true
WHERE me.convo_id = @convo AND me.did = @reader
