-- Reads due jobs: $1 jobs of each service except the services $2. $3 jobs are of services that have
-- answered ($4), and as many of all other services. The first job of each service comes before the
-- second job of any service, and the order of services changes each time. So neither a backlog nor
-- any number of silent services keeps other services waiting.
--
-- The recursion uses the index to go from service to service.
WITH RECURSIVE homes AS (
    (SELECT service FROM sent_invitations WHERE state IN ('pending', 'sending') ORDER BY service LIMIT 1)
    UNION ALL
    SELECT (SELECT n.service FROM sent_invitations n
        WHERE n.state IN ('pending', 'sending') AND n.service > homes.service ORDER BY n.service LIMIT 1)
    FROM homes WHERE homes.service IS NOT NULL
)
SELECT id, kind, did, ref, service, device_id, cipher_suite, convo_id, inviter, epoch, created_at, attempts, version
FROM (
    SELECT due.*, row_number() OVER (PARTITION BY homes.service = ANY ($4::text[]) ORDER BY due.nth, random()) AS place
    FROM homes CROSS JOIN LATERAL (
        SELECT *, row_number() OVER (ORDER BY next_attempt_at) AS nth
        FROM (
            SELECT * FROM sent_invitations s
            WHERE s.service = homes.service AND s.state IN ('pending', 'sending') AND s.next_attempt_at <= now()
            ORDER BY s.next_attempt_at LIMIT $1
        ) first
    ) due
    WHERE homes.service <> ALL ($2::text[])
) chosen
WHERE place <= $3 ORDER BY place
