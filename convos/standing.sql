-- What is known of people since they were put on the roster.
--
-- $1 convo, $2 DIDs
--
-- A Welcome counts if it leads into the epoch of the commit that added the person, or into a later
-- epoch. joined_seq is the seq of the last commit that added the person. No index has a person's
-- entries by seq. So the statement reads all of them, if these are few, and otherwise the entries
-- since joined_seq.
SELECT m.did,
    EXISTS (SELECT FROM welcomes w
        WHERE w.convo_id = $1 AND w.recipient_did = m.did AND w.epoch >= stay.epoch) AS invited,
    EXISTS (SELECT FROM welcomes w
        WHERE w.convo_id = $1 AND w.recipient_did = m.did AND w.epoch >= stay.epoch AND w.state = 'consumed' AND NOT w.silent)
    OR m.cursor_seq > m.joined_seq
    OR (SELECT CASE WHEN count(*) < 1000 THEN coalesce(bool_or(seq > m.joined_seq), false) ELSE EXISTS (
            SELECT FROM (SELECT sender_did, kind FROM messages WHERE convo_id = $1 AND seq > m.joined_seq ORDER BY seq OFFSET 0) since
            WHERE since.sender_did = m.did AND since.kind <> 3) END
        FROM (SELECT seq FROM messages WHERE convo_id = $1 AND sender_did = m.did AND kind <> 3 LIMIT 1000) own)
    OR EXISTS (SELECT FROM messages e
        WHERE e.convo_id = $1 AND e.sender_did = m.did AND e.kind = 3 AND e.epoch > stay.epoch) AS joined,
    (SELECT max(w.grace_expires_at) FROM welcomes w
        WHERE w.convo_id = $1 AND w.recipient_did = m.did AND w.state = 'in_flight' AND w.last_error IS NULL
            AND w.grace_expires_at > clock_timestamp()) AS joining_until
FROM members m
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT e.epoch FROM messages e WHERE e.convo_id = $1 AND e.seq = m.joined_seq), 0) AS epoch
) stay
WHERE m.convo_id = $1 AND m.did = ANY($2) AND m.left_at IS NULL
ORDER BY m.did
