-- Ends sessions of accounts whose keys were forgotten or replaced in the last $1. A session stays
-- if it was bought later or with the present key. The version of the key alone does not show this:
-- the first session with a new key is stored before the key.
--
-- The clock is locked before the sessions, as everywhere. If several nodes find the same sessions,
-- one node ends them.
WITH replaced AS MATERIALIZED (
	SELECT s.id
	FROM identity_keys k
	CROSS JOIN LATERAL (
		SELECT id FROM sessions
		WHERE did = k.did AND key_version <> k.version AND account_key IS DISTINCT FROM k.key AND ended_version IS NULL
	) s
	WHERE k.forgotten_at > now() - $1::interval
), clock AS (
	UPDATE session_clock SET version = version + 1 WHERE EXISTS (SELECT FROM replaced) RETURNING version
)
UPDATE sessions SET ended_version = clock.version
FROM clock WHERE id IN (SELECT id FROM replaced) AND ended_version IS NULL
