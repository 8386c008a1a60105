-- Reads what the subjects $2 have used on the day $1.
SELECT subject, quota, n FROM quota_counts WHERE day = $1::date AND subject = ANY($2::text[])
