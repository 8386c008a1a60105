-- Reads everybody who is or was on the roster of a convo, and which of them report a commit.
--
-- $1 the convo, $2 the epoch that the commit created, $3 the commit's seq
SELECT m.did, coalesce(m.invited_by, ''), m.left_at IS NULL AND m.requested_at IS NULL AND m.joined_seq < $3,
    r.did IS NOT NULL AND r.settled_at IS NULL
FROM members m
LEFT JOIN commit_reports r ON r.convo_id = m.convo_id AND r.epoch = $2 AND r.did = m.did
WHERE m.convo_id = $1
