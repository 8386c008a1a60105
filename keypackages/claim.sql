-- Claims a one-time KeyPackage of each device. If it cannot claim one, it reads the device's
-- last-resort KeyPackage.
--
-- suite 0 means the lowest suite of each device. lifetime is that of a claim. most bounds the
-- KeyPackages in all, devices those of one DID. budget is the caller's for one device, in a period;
-- outsiders is that of all outsiders. Fewer than few KeyPackages left are possibly low. newest is how
-- many of a person's newest convos are searched.
--
-- The caller is an outsider to a person who has accepted no convo with the caller. Outsiders are
-- counted without a lock, so each concurrent claim can exceed the budget by one.
--
-- The statement skips a one-time KeyPackage that another claim has locked, so that claims of one
-- device do not wait for each other.
WITH stock AS (
	SELECT did, device_id, cipher_suite, count(*) AS available,
		max(max(created_at)) OVER (PARTITION BY did, device_id) AS published_at
	FROM key_packages
	WHERE did = ANY(@dids) AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
		AND (@suite = 0 OR cipher_suite = @suite)
	GROUP BY did, device_id, cipher_suite
), outsider AS MATERIALIZED (
	SELECT d.did
	FROM (SELECT DISTINCT did FROM stock WHERE did <> @caller) d
	LEFT JOIN LATERAL (
		SELECT true AS yes
		FROM (
			SELECT convo_id, requested_at FROM members WHERE did = d.did AND left_at IS NULL ORDER BY convo_id DESC LIMIT @newest
		) m
		CROSS JOIN LATERAL (
			SELECT FROM members WHERE convo_id = m.convo_id AND did = @caller AND left_at IS NULL LIMIT 1
		) caller
		WHERE m.requested_at IS NULL
		LIMIT 1
	) known ON true
	WHERE known.yes IS NULL
), device AS MATERIALIZED (
	SELECT did, device_id, cipher_suite, available, outsider, (
			SELECT count(*) FROM key_packages
			WHERE did = d.did AND device_id = d.device_id AND claimed_by = @caller
				AND claimed_at > statement_timestamp() - @period::interval
		) >= @budget OR outsider AND (
			SELECT count(*) FROM (
				SELECT FROM key_packages
				WHERE did = d.did AND device_id = d.device_id AND claimed_by_outsider
					AND claimed_at > statement_timestamp() - @period::interval
				LIMIT @outsiders
			) claims
		) >= @outsiders AS limited
	FROM (
		SELECT *, row_number() OVER (PARTITION BY did ORDER BY published_at DESC) AS nth,
			did IN (SELECT did FROM outsider) AS outsider
		FROM (SELECT DISTINCT ON (did, device_id) * FROM stock ORDER BY did, device_id, cipher_suite) lowest_suite
		ORDER BY nth LIMIT @most
	) d
	WHERE nth <= @devices
), pick AS MATERIALIZED (
	SELECT k.did, k.ref, d.available, d.outsider
	FROM (SELECT * FROM device WHERE NOT limited) d CROSS JOIN LATERAL (
		SELECT did, ref FROM key_packages
		WHERE did = d.did AND device_id = d.device_id AND cipher_suite = d.cipher_suite
			AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
		ORDER BY created_at LIMIT 1
		FOR UPDATE SKIP LOCKED
	) k
), claimed AS (
	UPDATE key_packages k
	SET state = 'claimed', claimed_by = @caller, claimed_by_outsider = pick.outsider, claimed_at = clock_timestamp(),
		claim_expires_at = date_trunc('milliseconds', clock_timestamp() + @lifetime::interval)
	FROM pick WHERE (k.did, k.ref) = (pick.did, pick.ref)
	RETURNING k.did, k.device_id, k.ref, k.cipher_suite, k.body, k.claim_expires_at, pick.available - 1 AS still_available
), last_resort AS (
	SELECT *, row_number() OVER (PARTITION BY did ORDER BY created_at DESC) AS nth
	FROM (
		SELECT DISTINCT ON (did, device_id) did, device_id, ref, cipher_suite, body, created_at
		FROM key_packages k
		WHERE did = ANY(@dids) AND state = 'available' AND last_resort AND not_after > clock_timestamp()
			AND (@suite = 0 OR cipher_suite = @suite)
			AND NOT EXISTS (SELECT FROM claimed c WHERE (c.did, c.device_id) = (k.did, k.device_id))
		ORDER BY did, device_id, cipher_suite, created_at DESC
	) newest
)
SELECT 'one-time', did, device_id, ref, cipher_suite, body, claim_expires_at,
	CASE WHEN still_available < @few AND NOT EXISTS (
		SELECT FROM key_package_signals s
		WHERE (s.did, s.device_id, s.cipher_suite, s.kind) = (claimed.did, claimed.device_id, claimed.cipher_suite, 'low')
	) THEN 'low' ELSE '' END AS signal
FROM claimed
UNION ALL
SELECT 'limited', did, device_id, NULL, cipher_suite, NULL, NULL, '' FROM device WHERE limited
UNION ALL
(SELECT 'last-resort', did, device_id, ref, cipher_suite, body, NULL,
	CASE WHEN NOT EXISTS (
		SELECT FROM key_package_signals s
		WHERE (s.did, s.device_id, s.cipher_suite, s.kind) = (l.did, l.device_id, l.cipher_suite, 'last_resort')
	) THEN 'last_resort' ELSE '' END
FROM last_resort l
WHERE nth <= @devices
ORDER BY nth LIMIT @most - (SELECT count(*) FROM claimed))
