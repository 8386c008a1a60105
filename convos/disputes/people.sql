-- Reads everybody who is or was on the roster of a convo, and which of them report a commit.
--
-- $1 the convo, $2 the epoch that the commit created, $3 the commit's seq
--
-- A founder has no inviter here: an admin has chosen it, who may be none now. A reset does the same
-- to the rows of its successor. An admin who left has demoted_epoch, unless an older server wrote it.
SELECT m.did, CASE WHEN m.joined_seq > 0 OR c.predecessor_id IS NOT NULL THEN coalesce(m.invited_by, '') ELSE '' END,
    m.role <> 'member' OR m.left_at IS NOT NULL AND coalesce(m.demoted_epoch = m.left_epoch, m.did = c.creator_did),
    m.left_at IS NULL AND m.requested_at IS NULL AND m.joined_seq < $3,
    r.did IS NOT NULL AND r.settled_at IS NULL
FROM convos c JOIN members m ON m.convo_id = c.id
LEFT JOIN commit_reports r ON r.convo_id = m.convo_id AND r.epoch = $2 AND r.did = m.did
WHERE c.id = $1
