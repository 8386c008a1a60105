-- Reads due jobs, and as many rows with any number of homes: an index leads to each home. A home is
-- the domain of the host that is called. We look at the homes of the $5 newest jobs that were never
-- tried, at the homes $3 that have answered, and at $6 others, drawn from the lot $7 on. So no
-- backlog of silent homes keeps a new invitation waiting.
--
-- At most $1 jobs of each home except the homes $2; $4 jobs of homes that have answered, and as many
-- of all other homes: the first job of each home before the second of any, fewer attempts first, and
-- of homes that have not answered the newest first.
WITH RECURSIVE drawn AS (
    SELECT 0 AS nth, $7::float8 AS lot, NULL::text COLLATE "C" AS home
    UNION ALL
    SELECT nth + 1, next.lot, next.home FROM drawn CROSS JOIN LATERAL (
        (SELECT s.lot, coalesce(domain, service) AS home FROM sent_invitations s
            WHERE state IN ('pending', 'sending') AND s.lot > drawn.lot ORDER BY s.lot LIMIT 1)
        UNION ALL -- after the last lot, the first one
        (SELECT s.lot, coalesce(domain, service) FROM sent_invitations s
            WHERE state IN ('pending', 'sending') ORDER BY s.lot LIMIT 1)
        LIMIT 1
    ) next WHERE nth < $6
), homes AS (
    SELECT home FROM drawn WHERE home IS NOT NULL
    UNION
    SELECT unnest($3::text[]) COLLATE "C"
    UNION
    (SELECT coalesce(domain, service) FROM sent_invitations
        WHERE state = 'pending' AND attempts = 0 AND next_attempt_at <= now() ORDER BY next_attempt_at DESC LIMIT $5)
)
SELECT id, kind, did, ref, service, home, device_id, cipher_suite, convo_id, inviter, epoch, created_at, attempts, version
FROM (
    SELECT due.*, row_number() OVER (PARTITION BY answered
        ORDER BY nth, attempts, CASE WHEN answered THEN random() END, next_attempt_at DESC) AS place
    FROM (SELECT home, home = ANY ($3) AS answered FROM homes WHERE home <> ALL ($2::text[])) h CROSS JOIN LATERAL (
        SELECT *, row_number() OVER (ORDER BY next_attempt_at) AS nth FROM (
            SELECT s.*, h.home FROM sent_invitations s
            WHERE coalesce(s.domain, s.service) = h.home AND s.state IN ('pending', 'sending')
                AND s.next_attempt_at <= now()
            ORDER BY s.next_attempt_at LIMIT $1
        ) first
    ) due
) chosen
WHERE place <= $4 ORDER BY place
