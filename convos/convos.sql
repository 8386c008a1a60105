-- Reads convos as a member sees them, newest first.
--
-- $1 member, $2 and $3 the least and the greatest id, $4 the largest number of convos
-- $5 whether the member has accepted them: all, accepted, requests
--
-- A roster is sorted once and returned as two values: one row for each of up to 1,000 members would
-- cost more. Unread messages are counted up to 100, among the next 1,000 entries, so that the cost
-- does not grow with the log.
SELECT c.id, c.group_id, c.creator_did, c.cipher_suite, c.epoch, c.created_at, c.commit_level, c.last_message_at, c.name, c.description,
    c.last_seq, c.closed_at, c.successor_group_id, c.successor_id, c.predecessor_id, unread.n, me.request, nullif(me.invited_by, $1), roster.dids, roster.joined, roster.admins, me.admin, me.more
FROM (
    SELECT convo_id, cursor_seq, joined_seq, requested_at IS NOT NULL AS request, invited_by, role <> 'member' AS admin,
        lead(true) OVER (ORDER BY convo_id DESC) IS NOT NULL AS more
    FROM members
    WHERE did = $1 AND left_at IS NULL AND convo_id BETWEEN $2 AND $3
        AND ($5 = 'all' OR (requested_at IS NOT NULL) = ($5 = 'requests'))
    ORDER BY convo_id DESC LIMIT $4
) me
JOIN convos c ON c.id = me.convo_id
CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM (
        SELECT FROM (
            SELECT kind, sender_did FROM messages m
            WHERE m.convo_id = me.convo_id AND m.seq > greatest(me.cursor_seq, me.joined_seq)
            ORDER BY m.seq LIMIT 1000
        ) ahead
        WHERE kind = 1 AND sender_did <> $1 LIMIT 100
    ) counted
) unread
CROSS JOIN LATERAL (
    SELECT string_agg(did, ' ') AS dids, array_agg(joined_at) AS joined, array_agg(admin) AS admins FROM (
        SELECT did, joined_at, role <> 'member' AS admin FROM members WHERE convo_id = me.convo_id AND left_at IS NULL
        ORDER BY joined_seq, did <> c.creator_did, did
    ) present
) roster
ORDER BY me.convo_id DESC
