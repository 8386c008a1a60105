-- Rows for the check of the console.

-- Push jobs that wait, that are retried again and again, and that are dead. No worker takes them
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

-- Reports of abuse: two open reports about convos with members, one about a deleted convo, and a
-- closed one.
INSERT INTO abuse_reports (id, convo_id, reporter, reason, key_id, binding, digest, sealed, reported_at, state, closed_at, closed_by, note)
SELECT ('00000000-0000-7000-8000-00000000000' || r.n)::uuid, coalesce(c.id, gen_random_uuid()), coalesce(c.creator_did, 'did:plc:ewvi7nxzyoun6zhxrhs64oiz'), r.reason,
	'b9223f00dc955b8c', sha256(r.n::text::bytea), sha256(r.n::text::bytea), repeat('x', 2096)::bytea, now() - r.n * interval '7 hours',
	CASE WHEN r.reason = 'spam' THEN 'closed' ELSE 'open' END, CASE WHEN r.reason = 'spam' THEN now() - interval '2 hours' END,
	CASE WHEN r.reason = 'spam' THEN 'olga' END, CASE WHEN r.reason = 'spam' THEN '<script>alert(1)</script> was warned by did:plc:ewvi7nxzyoun6zhxrhs64oiz' END
FROM (VALUES (1, 'harassment'), (2, 'threats'), (3, 'fraud'), (4, 'spam')) AS r (n, reason)
LEFT JOIN (SELECT id, creator_did, row_number() OVER (ORDER BY id) AS n FROM convos WHERE closed_at IS NULL) AS c ON c.n = r.n AND r.n <> 3;

-- A dispute of the newest commit of each convo, and a limit on each member.
INSERT INTO disputes (convo_id, epoch, committer, state, voices, reports, began_at, ends_at)
SELECT id, epoch, creator_did, 'open', 5, 2, now() - interval '2 min', now() + interval '1 day' FROM convos WHERE epoch > 0;
INSERT INTO accounts (did, limit_percent, limit_until, limited_at, limited_by, limited_reason, version)
SELECT DISTINCT did, 10, now() + interval '7 days', now(), 'olga', '<script>alert(1)</script> floods the convos of did:plc:ewvi7nxzyoun6zhxrhs64oiz', 0 FROM members
ON CONFLICT DO NOTHING;

-- Budgets of other services, one of them used up, and homes that have not accepted invitations.
INSERT INTO invitation_budgets (subject, per_day, used, counted_at)
VALUES ('did:web:mls.example.org', 200, 200, now()), ('domain:example.org', 400, 213, now() - interval '2 min'),
	('did:web:<script>alert(1)</script>', 25, 3, now() - interval '5 hours');
INSERT INTO sent_invitations (id, did, ref, last_resort, service, device_id, cipher_suite, convo_id, inviter, epoch, created_at,
	queued_at, attempts, next_attempt_at, last_error)
SELECT gen_random_uuid(), 'did:plc:aaaaaaaaaaaaaaaaaaaaaa' || chr(96 + n) || 'z', sha256(n::text::bytea), false,
	CASE WHEN n < 3 THEN 'did:web:chat.example.edu' ELSE 'did:web:away.example.com%3A8443' END, 'phone-' || n, 1, gen_random_uuid(),
	'did:plc:ewvi7nxzyoun6zhxrhs64oiz', 1, now() - n * interval '3 hours', now() - n * interval '3 hours', 4 * n,
	now() + interval '1 day', 'status 502: <script>alert(1)</script>'
FROM generate_series(1, 8) AS n;
