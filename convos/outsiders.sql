-- Of the invited people $2, selects those who share no convo with the inviter $1. Returns how many
-- open invitations each of them has, counted up to $3, and how many invitations of the inviter and
-- of its address $5 the person has not accepted. A convo is shared only if the invited person has
-- accepted it: otherwise a first invitation would make the inviter known to people who did not ask
-- for it. An invitation is open until it is accepted. If a convo was reset, only the invitation
-- into the successor counts. An invitation of the last day counts for its inviter and its address
-- even after it was declined.
-- The statement reads the $4 newest convos and invitations of each invited person. For each of
-- these it reads one row by key. Lateral joins with LIMIT keep the planner from another order,
-- which would read the whole rosters of the inviter's convos.
SELECT i.did, open.n, greatest(open.of_inviter, day.of_inviter), day.of_address
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
    SELECT count(*) AS n, count(*) FILTER (WHERE invited_by = $1) AS of_inviter FROM (
        SELECT invited_by FROM members m
        WHERE known.found IS NULL AND m.did = i.did AND m.left_at IS NULL AND m.requested_at IS NOT NULL
            AND NOT EXISTS (SELECT FROM convos WHERE id = m.convo_id AND successor_id IS NOT NULL)
        LIMIT $3
    ) requests
) open
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE inviter = $1) AS of_inviter, count(*) FILTER (WHERE address = $5) AS of_address FROM (
        SELECT inviter, address, convo_id FROM invitations
        WHERE known.found IS NULL AND did = i.did AND created_at > now() - interval '1 day'
        ORDER BY created_at DESC LIMIT $4
    ) made
    WHERE (inviter = $1 OR address = $5)
        AND NOT EXISTS (SELECT FROM members WHERE convo_id = made.convo_id AND did = i.did AND requested_at IS NULL)
) day
WHERE known.found IS NULL
