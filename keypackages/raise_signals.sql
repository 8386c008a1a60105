-- Raises signals, and inserts an event for each signal that was not raised before.
--
-- $1 DIDs, $2 devices, $3 cipher suites, $4 kinds, in parallel
-- $5 Threshold
--
-- The transaction holds the owners' locks, so that a signal agrees with its stock.
WITH raised AS (
	INSERT INTO key_package_signals (did, device_id, cipher_suite, kind, count, raised_at)
	SELECT did, device_id, cipher_suite, kind, available, clock_timestamp()
	FROM (
		SELECT s.*, (
			SELECT count(*) FROM key_packages
			WHERE did = s.did AND device_id = s.device_id AND cipher_suite = s.cipher_suite
				AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
		) AS available
		FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[]) AS s (did, device_id, cipher_suite, kind)
	) counted
	WHERE kind = 'last_resort' OR available < $5
	ORDER BY did, device_id, cipher_suite, kind
	ON CONFLICT DO NOTHING
	RETURNING did, device_id, cipher_suite, kind, count AS available
)
INSERT INTO outbox (kind, did, detail, created_at)
SELECT 6, did,
	jsonb_build_object('change', kind, 'deviceId', device_id, 'cipherSuite', cipher_suite, 'available', available),
	clock_timestamp()
FROM raised
