-- Ends up to $1 lapsed claims, and makes their KeyPackages orphaned. Raises the signal orphaned for
-- each stock with such a KeyPackage, and inserts an event for the stock. Returns one row for each
-- claim.
WITH lapsed AS (
	UPDATE key_packages SET state = 'orphaned'
	WHERE (did, ref) IN (
		SELECT did, ref FROM key_packages
		WHERE state = 'claimed' AND claim_expires_at <= now()
		ORDER BY claim_expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)
	RETURNING did, device_id, cipher_suite
), raised AS (
	INSERT INTO key_package_signals AS s (did, device_id, cipher_suite, kind, count, raised_at)
	SELECT did, device_id, cipher_suite, 'orphaned', count(*), clock_timestamp() FROM lapsed
	GROUP BY did, device_id, cipher_suite ORDER BY did, device_id, cipher_suite
	ON CONFLICT (did, device_id, cipher_suite, kind) DO UPDATE SET count = s.count + excluded.count
	RETURNING did, device_id, cipher_suite, kind
), outboxed AS (
	INSERT INTO outbox (kind, did, detail, created_at)
	SELECT 6, did,
		jsonb_build_object('change', kind, 'deviceId', device_id, 'cipherSuite', cipher_suite, 'available', (
			SELECT count(*) FROM key_packages
			WHERE did = raised.did AND device_id = raised.device_id AND cipher_suite = raised.cipher_suite
				AND state = 'available' AND NOT last_resort AND not_after > now()
		)),
		clock_timestamp()
	FROM raised
)
SELECT FROM lapsed
