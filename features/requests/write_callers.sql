-- Adds counts to the hour $1. The columns $2 to $6 are kind, caller_did, nsid, n and seconds.
-- A caller that gets a row inherits the highest weight of the rows that were given up. The row of
-- all others has that weight.
INSERT INTO caller_counts AS c (hour, kind, caller_did, nsid, n, seconds, weight)
SELECT $1, u.kind, u.caller_did, u.nsid, u.n, u.seconds, CASE u.caller_did WHEN '' THEN 0 ELSE u.n + coalesce(given_up.weight, 0) END
FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::float8[]) AS u (kind, caller_did, nsid, n, seconds)
LEFT JOIN (
    SELECT kind, max(weight) AS weight FROM caller_counts WHERE hour = $1 AND caller_did = '' GROUP BY kind
) given_up ON given_up.kind = u.kind
ON CONFLICT (hour, kind, caller_did, nsid) DO UPDATE
SET n = c.n + excluded.n, seconds = c.seconds + excluded.seconds,
    weight = c.weight + CASE c.caller_did WHEN '' THEN 0 ELSE excluded.n END
