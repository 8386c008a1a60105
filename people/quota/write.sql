-- Adds counts to their rows, and returns the sums. The columns $1 to $4 are day, subject, quota and
-- n, in the order of the key, so that two nodes lock rows in the same order.
INSERT INTO quota_counts AS q (day, subject, quota, n)
SELECT * FROM unnest($1::date[], $2::text[], $3::text[], $4::bigint[])
ON CONFLICT (day, subject, quota) DO UPDATE SET n = greatest(q.n + excluded.n, 0)
RETURNING subject, quota, n
