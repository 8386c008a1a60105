-- Deletes at most $3 rows that are older than $1. The counts of conflicts move into the row of all
-- others, and are kept until they are older than $2.
WITH over AS (
    DELETE FROM caller_counts
    WHERE (hour, kind, caller_did, nsid) IN (
        SELECT hour, kind, caller_did, nsid FROM caller_counts
        WHERE hour <= now() - $2::interval
            OR hour <= now() - $1::interval AND (caller_did <> '' OR kind IN ('first', 'replay', 'expired', 'other'))
        ORDER BY hour LIMIT $3)
    RETURNING hour, kind, nsid, n, seconds
)
INSERT INTO caller_counts AS c (hour, kind, caller_did, nsid, n, seconds, weight)
SELECT hour, kind, '', nsid, sum(n), sum(seconds), 0 FROM over
WHERE hour > now() - $2::interval AND kind NOT IN ('first', 'replay', 'expired', 'other')
GROUP BY hour, kind, nsid
ON CONFLICT (hour, kind, caller_did, nsid) DO UPDATE SET n = c.n + excluded.n, seconds = c.seconds + excluded.seconds
