-- Reads convos as a member sees them, newest first.
--
-- $1 member, $2 and $3 the least and the greatest id, $4 the largest number of convos
-- $5 whether the member has accepted them: all, accepted, requests
-- $6 up to how many unread messages are counted, $7 how many entries of a log are read for that
--
-- A roster is sorted once and returned as two values: one row for each of up to 1,000 members would
-- cost more. The count of unread messages goes on where an earlier one has ended, if it began
-- behind the same entry. Entries up to the floor of the log have expired.
SELECT c.id, c.group_id, c.creator_did, c.cipher_suite, c.epoch, c.created_at, c.commit_level, c.last_message_at, c.name, c.description,
    c.last_seq, c.closed_at, c.successor_group_id, c.successor_id, c.predecessor_id, me.request, nullif(me.invited_by, $1), roster.dids, roster.joined, roster.admins, me.admin, me.more,
    start.seq, known.seq, coalesce(ahead.last, 0), known.n + ahead.n
FROM (
    SELECT convo_id, greatest(cursor_seq, joined_seq) AS seen_seq, counted_from, counted_to, counted, requested_at IS NOT NULL AS request,
        invited_by, role <> 'member' AS admin, lead(true) OVER (ORDER BY convo_id DESC) IS NOT NULL AS more
    FROM members
    WHERE did = $1 AND left_at IS NULL AND convo_id BETWEEN $2 AND $3
        AND ($5 = 'all' OR (requested_at IS NOT NULL) = ($5 = 'requests'))
    ORDER BY convo_id DESC LIMIT $4
) me
JOIN convos c ON c.id = me.convo_id
LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = me.convo_id LIMIT 1) floor ON true
CROSS JOIN LATERAL (SELECT greatest(me.seen_seq, floor.seq) AS seq) start
CROSS JOIN LATERAL (
    SELECT CASE WHEN same THEN me.counted_to ELSE start.seq END AS seq, CASE WHEN same THEN me.counted ELSE 0 END AS n
    FROM (SELECT me.counted_from IS NOT DISTINCT FROM start.seq AS same) earlier
) known
CROSS JOIN LATERAL (
    SELECT count(*) AS n, max(seq) AS last FROM (
        SELECT seq FROM messages
        WHERE convo_id = me.convo_id AND seq > known.seq AND seq <= known.seq + $7 AND kind = 1 AND sender_did <> $1
        ORDER BY seq LIMIT greatest($6 - known.n, 0)
    ) unread
) ahead
CROSS JOIN LATERAL (
    SELECT string_agg(did, ' ') AS dids, array_agg(joined_at) AS joined, array_agg(admin) AS admins FROM (
        SELECT did, joined_at, role <> 'member' AS admin FROM members WHERE convo_id = me.convo_id AND left_at IS NULL
        ORDER BY joined_seq, did <> c.creator_did, did
    ) present
) roster
ORDER BY me.convo_id DESC
