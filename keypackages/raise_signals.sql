-- Raises signals, and inserts an event for each signal that was not raised before.
--
-- dids, devices, suites and kinds are parallel.
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
		FROM unnest(@dids::text[], @devices::text[], @suites::integer[], @kinds::text[]) AS s (did, device_id, cipher_suite, kind)
	) counted
	WHERE kind = 'last_resort' OR available < @threshold
	ORDER BY did, device_id, cipher_suite, kind
	ON CONFLICT DO NOTHING
	RETURNING did, device_id, cipher_suite, kind, count AS available
)
INSERT INTO outbox (kind, did, detail, created_at)
SELECT 6, did,
	jsonb_build_object('change', kind, 'deviceId', device_id, 'cipherSuite', cipher_suite, 'available', available),
	clock_timestamp()
FROM raised
