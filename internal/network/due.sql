-- Reads due jobs: $1 of each service but those of $2, and $3 in all. Each service's first job comes
-- before any service's second one, in another order each time. So no backlog keeps others waiting.
--
-- The recursion goes from service to service by the index.
WITH RECURSIVE homes AS (
    (SELECT service FROM sent_invitations WHERE state IN ('pending', 'sending') ORDER BY service LIMIT 1)
    UNION ALL
    SELECT (SELECT n.service FROM sent_invitations n
        WHERE n.state IN ('pending', 'sending') AND n.service > homes.service ORDER BY n.service LIMIT 1)
    FROM homes WHERE homes.service IS NOT NULL
)
SELECT due.id, due.kind, due.did, due.ref, homes.service, due.device_id, due.cipher_suite, due.convo_id, due.inviter, due.epoch,
    due.created_at, due.attempts, due.version
FROM homes CROSS JOIN LATERAL (
    SELECT *, row_number() OVER (ORDER BY next_attempt_at) AS nth
    FROM (
        SELECT * FROM sent_invitations s
        WHERE s.service = homes.service AND s.state IN ('pending', 'sending') AND s.next_attempt_at <= now()
        ORDER BY s.next_attempt_at LIMIT $1
    ) first
) due
WHERE homes.service <> ALL ($2::text[])
ORDER BY due.nth, random() LIMIT $3
