-- Reads who becomes an admin of the convos $1. A convo needs an heir if it has no admin whom this
-- service serves. The heir is served, if anybody is; then it has accepted the convo, if anybody
-- has; then it is the member who has been there longest. If nobody is served, an admin who is not
-- served stays the only one.
--
-- Whom the network, an operator or an erasure takes away has a row in accounts.
SELECT c.id, c.epoch, heir.did
FROM convos c CROSS JOIN LATERAL (
    SELECT m.did, refused.did IS NULL AS served
    FROM members m
    LEFT JOIN accounts refused ON refused.did = m.did
        AND (refused.status <> 'active' OR refused.blocked_at IS NOT NULL OR refused.erasing_at IS NOT NULL)
    WHERE m.convo_id = c.id AND m.left_at IS NULL
    ORDER BY refused.did IS NOT NULL, m.requested_at IS NOT NULL, m.joined_seq, m.joined_at, m.did LIMIT 1
) heir
WHERE c.id = ANY($1) AND NOT EXISTS (
    SELECT FROM members m
    LEFT JOIN accounts refused ON refused.did = m.did
        AND (refused.status <> 'active' OR refused.blocked_at IS NOT NULL OR refused.erasing_at IS NOT NULL)
    WHERE m.convo_id = c.id AND m.left_at IS NULL AND m.role <> 'member' AND (refused.did IS NULL OR NOT heir.served)
)
ORDER BY c.id
