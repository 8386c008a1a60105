-- Stores a session. Ends the account's sessions that were bought with another key. If the account
-- has too many sessions, ends its oldest.
--
-- $1 id   $2 DID   $3 device   $4 the account's key   $5 its version   $6 the key that signs
-- $7 life of a bearer   $8 life of the session   $9 how many sessions an account has
WITH surplus AS MATERIALIZED (
	SELECT id FROM sessions WHERE did = $2 AND ended_version IS NULL AND account_key <> $4
	UNION (
		SELECT id FROM sessions
		WHERE did = $2 AND ended_version IS NULL AND expires_at > clock_timestamp()
		ORDER BY issued_at DESC OFFSET $9::bigint - 1
	)
), clock AS (
	UPDATE session_clock SET version = version + 1 WHERE EXISTS (SELECT FROM surplus) RETURNING version
), ended AS (
	UPDATE sessions SET ended_version = clock.version
	FROM clock WHERE id IN (SELECT id FROM surplus) AND ended_version IS NULL
)
INSERT INTO sessions (id, did, device_id, account_key, key_version, signed_with, issued_at, expires_at, ends_at)
SELECT $1, $2, $3, $4, $5, $6, at, at + $7::interval, at + $8::interval
FROM date_trunc('second', clock_timestamp()) AS of (at)
RETURNING issued_at, expires_at, ends_at
