-- Adds counts to an hour. The other parameters are parallel.
-- A caller that gets a row inherits the highest weight of the rows that were given up. The row of
-- all others has that weight.
INSERT INTO caller_counts AS c (hour, kind, caller_did, nsid, n, seconds, weight)
SELECT @hour, u.kind, u.caller_did, u.nsid, u.n, u.seconds, CASE u.caller_did WHEN '' THEN 0 ELSE u.n + coalesce(given_up.weight, 0) END
FROM unnest(@kinds::text[], @dids::text[], @nsids::text[], @counts::bigint[], @seconds::float8[]) AS u (kind, caller_did, nsid, n, seconds)
LEFT JOIN (
    SELECT kind, max(weight) AS weight FROM caller_counts WHERE hour = @hour AND caller_did = '' GROUP BY kind
) given_up ON given_up.kind = u.kind
ON CONFLICT (hour, kind, caller_did, nsid) DO UPDATE
SET n = c.n + excluded.n, seconds = c.seconds + excluded.seconds,
    weight = c.weight + CASE c.caller_did WHEN '' THEN 0 ELSE excluded.n END
