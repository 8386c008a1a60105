-- Stores a session. Ends the account's sessions that were bought with another key. If the account
-- has too many sessions, ends its oldest.
--
-- key_version is that of account_key, signing_key the key that signs the session. most is how many
-- sessions an account has.
WITH surplus AS MATERIALIZED (
	SELECT id FROM sessions WHERE did = @did AND ended_version IS NULL AND account_key <> @account_key
	UNION (
		SELECT id FROM sessions
		WHERE did = @did AND ended_version IS NULL AND expires_at > clock_timestamp()
		ORDER BY issued_at DESC OFFSET @most::bigint - 1
	)
), clock AS (
	UPDATE session_clock SET version = version + 1 WHERE EXISTS (SELECT FROM surplus) RETURNING version
), ended AS (
	UPDATE sessions SET ended_version = clock.version
	FROM clock WHERE id IN (SELECT id FROM surplus) AND ended_version IS NULL
)
INSERT INTO sessions (id, did, device_id, account_key, key_version, signed_with, issued_at, expires_at, ends_at)
SELECT @id, @did, @device, @account_key, @key_version, @signing_key, at, at + @bearer_life::interval, at + @life::interval
FROM date_trunc('second', clock_timestamp()) AS of (at)
RETURNING issued_at, expires_at, ends_at
