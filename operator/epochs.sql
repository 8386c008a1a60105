-- Up to $3 epochs of the convo $1 that are smaller than $2, the newest first. Each has its number,
-- the commit's seq, sender, time and size, the size of its Welcome, and how many entries follow up
-- to the next commit or the end of the log $4. It also has up to $5 of the people who joined with
-- the commit, and up to $5 who left during the epoch.
WITH commits AS (
    SELECT epoch, seq, sender_did, created_at, octet_length(body) AS bytes FROM messages
    WHERE convo_id = $1 AND kind = 3 AND epoch < $2 ORDER BY epoch DESC LIMIT $3
), bounded AS (
    SELECT c.*, coalesce((
        SELECT n.seq FROM messages n WHERE n.convo_id = $1 AND n.kind = 3 AND n.epoch > c.epoch ORDER BY n.epoch LIMIT 1
    ), $4::bigint + 1) AS next_seq
    FROM commits c
), roster AS (
    SELECT did, joined_seq, left_seq FROM members
    WHERE convo_id = $1 AND (joined_seq BETWEEN (SELECT min(seq) FROM bounded) AND (SELECT max(next_seq) FROM bounded)
        OR left_seq BETWEEN (SELECT min(seq) FROM bounded) AND (SELECT max(next_seq) FROM bounded))
)
SELECT b.epoch, b.seq, b.sender_did, b.created_at, b.bytes,
    coalesce((SELECT octet_length(body) FROM welcome_bodies w WHERE w.convo_id = $1 AND w.epoch = b.epoch), 0),
    b.next_seq - b.seq - 1,
    ARRAY(SELECT did FROM roster WHERE joined_seq = b.seq ORDER BY did LIMIT $5),
    ARRAY(SELECT did FROM roster WHERE left_seq >= b.seq AND left_seq < b.next_seq ORDER BY did LIMIT $5)
FROM bounded b
ORDER BY b.epoch DESC
