-- Claims a one-time KeyPackage of each device. If it cannot claim one, it reads the device's
-- last-resort KeyPackage.
--
--  $1 DIDs                            $6 most devices of one DID
--  $2 cipher suite, 0 for the lowest  $7 the caller's budget of one device
--  $3 caller                          $8 period of the budget
--  $4 lifetime of a claim             $9 fewer KeyPackages left than this: possibly low
--  $5 most KeyPackages in all         $10 the budget of all outsiders, of one device
--                                     $11 how many of a person's newest convos are looked at
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
	WHERE did = ANY($1) AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
		AND ($2 = 0 OR cipher_suite = $2)
	GROUP BY did, device_id, cipher_suite
), outsider AS MATERIALIZED (
	SELECT d.did
	FROM (SELECT DISTINCT did FROM stock WHERE did <> $3) d
	LEFT JOIN LATERAL (
		SELECT true AS yes
		FROM (
			SELECT convo_id, requested_at FROM members WHERE did = d.did AND left_at IS NULL ORDER BY convo_id DESC LIMIT $11
		) m
		CROSS JOIN LATERAL (
			SELECT FROM members WHERE convo_id = m.convo_id AND did = $3 AND left_at IS NULL LIMIT 1
		) caller
		WHERE m.requested_at IS NULL
		LIMIT 1
	) known ON true
	WHERE known.yes IS NULL
), device AS MATERIALIZED (
	SELECT did, device_id, cipher_suite, available, outsider, (
			SELECT count(*) FROM key_packages
			WHERE did = d.did AND device_id = d.device_id AND claimed_by = $3
				AND claimed_at > statement_timestamp() - $8::interval
		) >= $7 OR outsider AND (
			SELECT count(*) FROM (
				SELECT FROM key_packages
				WHERE did = d.did AND device_id = d.device_id AND claimed_by_outsider
					AND claimed_at > statement_timestamp() - $8::interval
				LIMIT $10
			) claims
		) >= $10 AS limited
	FROM (
		SELECT *, row_number() OVER (PARTITION BY did ORDER BY published_at DESC) AS nth,
			did IN (SELECT did FROM outsider) AS outsider
		FROM (SELECT DISTINCT ON (did, device_id) * FROM stock ORDER BY did, device_id, cipher_suite) lowest_suite
		ORDER BY nth LIMIT $5
	) d
	WHERE nth <= $6
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
	SET state = 'claimed', claimed_by = $3, claimed_by_outsider = pick.outsider, claimed_at = clock_timestamp(),
		claim_expires_at = date_trunc('milliseconds', clock_timestamp() + $4::interval)
	FROM pick WHERE (k.did, k.ref) = (pick.did, pick.ref)
	RETURNING k.did, k.device_id, k.ref, k.cipher_suite, k.body, k.claim_expires_at, pick.available - 1 AS still_available
), last_resort AS (
	SELECT *, row_number() OVER (PARTITION BY did ORDER BY created_at DESC) AS nth
	FROM (
		SELECT DISTINCT ON (did, device_id) did, device_id, ref, cipher_suite, body, created_at
		FROM key_packages k
		WHERE did = ANY($1) AND state = 'available' AND last_resort AND not_after > clock_timestamp()
			AND ($2 = 0 OR cipher_suite = $2)
			AND NOT EXISTS (SELECT FROM claimed c WHERE (c.did, c.device_id) = (k.did, k.device_id))
		ORDER BY did, device_id, cipher_suite, created_at DESC
	) newest
)
SELECT 'one-time', did, device_id, ref, cipher_suite, body, claim_expires_at,
	CASE WHEN still_available < $9 AND NOT EXISTS (
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
WHERE nth <= $6
ORDER BY nth LIMIT $5 - (SELECT count(*) FROM claimed))
