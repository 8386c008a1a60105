-- Rows for the check of the console.

-- Push jobs that wait, that are called again and again, and that are dead. No worker takes them
-- before tomorrow.
INSERT INTO push_targets (did, device_id, kind, address, secret, created_at, registration)
SELECT 'did:plc:aaaaaaaaaaaaaaaaaaaaaa' || chr(96 + n) || 'z', 'phone-' || n, CASE WHEN n % 2 = 0 THEN 'apns' ELSE 'webhook' END,
	'https://push.example/<script>alert(1)</script>', 'secret', now() - interval '30 days', gen_random_uuid()
FROM generate_series(1, 8) AS n;

INSERT INTO push_jobs (did, id, device_id, state, reason, attempts, next_attempt_at, last_error, created_at, ended_at)
SELECT did, gen_random_uuid(), device_id, state, CASE WHEN n % 3 = 0 THEN 'welcome' ELSE 'message' END, attempts,
	now() + interval '1 day' + n * interval '7 min', last_error, now() - n * interval '83 min',
	CASE WHEN state = 'dead' THEN now() - n * interval '17 min' END
FROM (
	SELECT row_number() OVER (ORDER BY did) AS n, did, device_id FROM push_targets WHERE did LIKE 'did:plc:aaaaaaaaaaaaaaaaaaaaaa%'
) device
CROSS JOIN (VALUES
	('pending', 0, NULL), ('dead', 10, 'status 502'), ('dead', 1, 'refused: <script>alert(1)</script> of did:plc:ewvi7nxzyoun6zhxrhs64oiz'),
	('sending', 4, 'its host does not answer, and was not called')
) AS job (state, attempts, last_error);
