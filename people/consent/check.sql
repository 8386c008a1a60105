-- Reads everything that decides whether people accept a caller who invites them, or who claims
-- their KeyPackages.
--
-- $1 caller, $2 DIDs, $3 convo or NULL, $4 whether the caller invites
-- $5 how many of a person's newest convos are searched
--
-- Whether two people share a convo is read only where the answer matters. It costs one look-up for
-- each convo of the other person, up to $5. A caller cannot increase that cost with its own convos,
-- nor with people who are in thousands of convos. A lateral join with LIMIT makes the planner use
-- an index, even if it has no statistics of the table.
WITH company AS MATERIALIZED (
    -- Everybody, besides the caller, whom the invited people would meet.
    SELECT unnest($2::text[]) AS did WHERE $4
    UNION ALL
    SELECT did FROM members WHERE convo_id = $3 AND left_at IS NULL AND $4
)
SELECT d.did, coalesce(policy.is, 'everyone'), here.accepted, own.yes IS TRUE AS blocked_by_caller,
    theirs.yes IS TRUE AS blocks_caller, shared.yes IS TRUE AS shares, avoided.yes IS TRUE AS blocks_company
FROM unnest($2::text[]) AS d (did)
LEFT JOIN LATERAL (SELECT invitations AS is FROM policies WHERE did = d.did LIMIT 1) policy ON true
LEFT JOIN LATERAL (SELECT true AS yes FROM blocks WHERE did = $1 AND blocked_did = d.did LIMIT 1) own ON true
LEFT JOIN LATERAL (SELECT true AS yes FROM blocks WHERE did = d.did AND blocked_did = $1 LIMIT 1) theirs ON true
LEFT JOIN LATERAL (
    SELECT requested_at IS NULL AS accepted FROM members
    WHERE convo_id = $3 AND did = d.did AND left_at IS NULL
        AND EXISTS (SELECT FROM members WHERE convo_id = $3 AND did = $1 AND left_at IS NULL)
    LIMIT 1
) here ON true
LEFT JOIN LATERAL (
    SELECT true AS yes
    FROM (
        SELECT convo_id, requested_at FROM members WHERE did = d.did AND left_at IS NULL ORDER BY convo_id DESC LIMIT $5
    ) m
    CROSS JOIN LATERAL (
        SELECT FROM members WHERE convo_id = m.convo_id AND did = $1 AND left_at IS NULL AND requested_at IS NULL LIMIT 1
    ) caller
    WHERE m.requested_at IS NULL AND ($4 OR policy.is = 'shared')
    LIMIT 1
) shared ON true
LEFT JOIN LATERAL (SELECT true AS yes FROM blocks WHERE did = d.did AND $4 LIMIT 1) blocks_any ON true
LEFT JOIN LATERAL (
    SELECT true AS yes FROM company c
    CROSS JOIN LATERAL (SELECT FROM blocks WHERE did = d.did AND blocked_did = c.did LIMIT 1) b
    WHERE blocks_any.yes
    LIMIT 1
) avoided ON true
