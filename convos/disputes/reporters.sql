-- Reads everybody who is or was on the roster of a convo, and the authenticators of the epoch $2 that
-- they report. $1 is the convo. See people.sql for inviters and admins.
SELECT m.did, CASE WHEN m.joined_seq > 0 OR c.predecessor_id IS NOT NULL THEN coalesce(m.invited_by, '') ELSE '' END,
    m.role <> 'member' OR m.left_at IS NOT NULL AND coalesce(m.demoted_epoch = m.left_epoch, m.did = c.creator_did),
    m.left_at IS NULL, m.left_at IS NULL AND m.requested_at IS NULL, r.hash
FROM convos c JOIN members m ON m.convo_id = c.id
LEFT JOIN epoch_reports r ON r.convo_id = c.id AND r.epoch = $2 AND r.did = m.did
WHERE c.id = $1
