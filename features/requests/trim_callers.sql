-- Gives up the rows of the hour $1 that are not among the first $2 of their kind. Their counts move
-- into the row of all others.
WITH ranked AS (
    SELECT kind, caller_did, nsid, row_number() OVER (PARTITION BY kind ORDER BY weight DESC, caller_did, nsid) AS place
    FROM caller_counts WHERE hour = $1 AND caller_did <> ''
), given_up AS (
    DELETE FROM caller_counts c USING ranked r
    WHERE r.place > $2 AND (c.hour, c.kind, c.caller_did, c.nsid) = ($1, r.kind, r.caller_did, r.nsid)
    RETURNING c.kind, c.nsid, c.n, c.seconds, c.weight
)
INSERT INTO caller_counts AS c (hour, kind, caller_did, nsid, n, seconds, weight)
SELECT $1, kind, '', nsid, sum(n), sum(seconds), max(weight) FROM given_up GROUP BY kind, nsid
ON CONFLICT (hour, kind, caller_did, nsid) DO UPDATE
SET n = c.n + excluded.n, seconds = c.seconds + excluded.seconds, weight = greatest(c.weight, excluded.weight)
