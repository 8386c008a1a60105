-- Of the invited $2, those who share no convo with the inviter $1: how many open invitations each has,
-- counted up to $3. A convo is shared if the invited has accepted it: otherwise a first invitation
-- would make everybody known who did not ask for it. An invitation is open until it is accepted.
--
-- It reads the $4 newest convos of each of the invited, and of each one row by key. Lateral joins with
-- LIMIT keep the planner from another order, which would read the whole rosters of the inviter's
-- convos.
SELECT open.n
FROM unnest($2::text[]) AS i (did)
LEFT JOIN LATERAL (
    SELECT true AS found
    FROM (
        SELECT convo_id, requested_at FROM members WHERE did = i.did AND left_at IS NULL ORDER BY convo_id DESC LIMIT $4
    ) m
    CROSS JOIN LATERAL (
        SELECT FROM members inviter
        WHERE inviter.convo_id = m.convo_id AND inviter.did = $1 AND inviter.left_at IS NULL
        LIMIT 1
    ) shared
    WHERE m.requested_at IS NULL
    LIMIT 1
) known ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM (
        SELECT FROM members m
        WHERE known.found IS NULL AND m.did = i.did AND m.left_at IS NULL AND m.requested_at IS NOT NULL
        LIMIT $3
    ) requests
) open
WHERE known.found IS NULL
