-- $1 DIDs, $2 their keys, $3 the versions of their rows when the look-ups began, $4 microseconds
-- since the keys were fetched.
--
-- The row is locked before the condition is checked, so a look-up that began before a change of
-- version never undoes it. If the key is another one, other nodes drop theirs: the version changes.
INSERT INTO identity_keys AS k (did, key, version, fetched_at, verified_at)
SELECT u.did, u.key, u.version, clock_timestamp() - u.age * interval '1 microsecond', clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS u (did, key, version, age)
ORDER BY u.did
ON CONFLICT (did) DO UPDATE SET
    key = excluded.key,
    fetched_at = excluded.fetched_at,
    verified_at = excluded.verified_at,
    version = k.version + CASE WHEN k.key <> excluded.key THEN 1 ELSE 0 END,
    forgotten_at = CASE WHEN k.key <> excluded.key THEN clock_timestamp() ELSE k.forgotten_at END
WHERE k.version = excluded.version AND (k.key IS NULL OR k.fetched_at < excluded.fetched_at)
