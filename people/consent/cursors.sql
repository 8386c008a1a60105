-- Returns the cursors of a convo that a member may see: the DID, the last entry that it has read,
-- and the last entry that one of its devices has received.
--
-- $1 convo, $2 viewer
--
-- Both the viewer and the other member share their cursors, have accepted the convo, and have not
-- blocked each other. A lateral join with LIMIT makes the planner use an index, even if it has no
-- statistics of the table.
SELECT m.did, m.cursor_seq, greatest(m.delivered_seq, m.cursor_seq)
FROM members m
CROSS JOIN LATERAL (SELECT FROM policies WHERE did = m.did AND share_cursors LIMIT 1) shares
WHERE m.convo_id = $1 AND m.left_at IS NULL AND m.requested_at IS NULL
    AND EXISTS (SELECT FROM policies WHERE did = $2 AND share_cursors)
    AND EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = $2 AND left_at IS NULL AND requested_at IS NULL)
    AND NOT EXISTS (SELECT FROM blocks WHERE did = $2 AND blocked_did = m.did)
    AND NOT EXISTS (SELECT FROM blocks WHERE did = m.did AND blocked_did = $2)
ORDER BY m.did
LIMIT 1000
