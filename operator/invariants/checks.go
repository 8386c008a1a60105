package invariants

// check finds the violations of one promise. Each row of its result is a violation: the convo, if
// the promise is about convos, and a text.
type check struct{ promise, sql string }

// entryEvents are the events of log entries of the convos $1, including waiting events. No index finds
// the rows of events that several convos share. So the query uses the stream's index instead of these
// rows, as far as the index has been written. The check of the index compares the two.
const entryEvents = `
				SELECT convo_id, 0 AS later, stream_seq AS place, 0 AS ord, seq FROM events
				WHERE (kind <= 3 OR kind = 9) AND convo_id = ANY($1)
				UNION ALL
				SELECT i.convo_id, 0, m.place, 0, m.seq FROM convo_events i CROSS JOIN LATERAL unnest(i.places, i.seqs) AS m (place,
					seq)
				WHERE i.convo_id = ANY($1) AND i.day >= (SELECT min(day) FROM event_days)
				UNION ALL
				SELECT m.convo_id, 0, e.stream_seq - cardinality(e.seqs) + m.ord, 0, m.seq
				FROM events e CROSS JOIN LATERAL unnest(e.convo_ids, e.seqs) WITH ORDINALITY AS m (convo_id, seq, ord)
				WHERE e.seqs IS NOT NULL AND e.stream_seq > (SELECT last FROM convo_events_end) AND m.convo_id = ANY($1)
				UNION ALL
				SELECT convo_id, 1, id, ord, seq FROM single_outbox
				WHERE (kind <= 3 OR kind = 9) AND convo_id = ANY($1)
			`

// convoChecks take the ids of convos, and find the rows of those convos by indexes.
var convoChecks = []check{
	{"dense log", `
		SELECT c.id, format('%s entries from %s to %s, last_seq %s, expired up to %s', count(m.seq), min(m.seq), max(m.seq),
			c.last_seq, c.floor)
		FROM (
			SELECT c.id, c.last_seq, coalesce(f.seq, 0) AS floor FROM convos c LEFT JOIN log_floors f ON f.convo_id = c.id
		) c
		LEFT JOIN messages m ON m.convo_id = c.id AND m.seq > c.floor
		WHERE c.id = ANY($1)
		GROUP BY c.id, c.last_seq, c.floor
		HAVING count(m.seq) <> c.last_seq - c.floor OR coalesce(max(m.seq), c.floor) <> c.last_seq
			OR coalesce(min(m.seq), c.floor + 1) <> c.floor + 1`},
	{"the tree of the log", `
		SELECT m.convo_id, format('the leaf of entry %s is not that of the entry', m.seq)
		FROM log_tiles t
		JOIN messages m ON m.convo_id = t.convo_id AND m.seq > t.n * 256 AND m.seq <= t.n * 256 + octet_length(t.hashes) / 32
		LEFT JOIN log_senders s ON s.convo_id = m.convo_id AND s.did = m.sender_did
		WHERE t.convo_id = ANY($1) AND t.level = 0
			AND substring(t.hashes, ((m.seq - 1) % 256)::int * 32 + 1, 32) IS DISTINCT FROM sha256('\x00'::bytea ||
				convert_to(format(
				E'mlsd log entry\n%s\n%s\n%s\n%s\n%s\n%s\n', m.seq, m.kind, m.epoch - (m.kind = 3)::int,
				(extract(epoch FROM m.created_at) * 1000)::bigint, encode(sha256(m.body), 'hex'), encode(s.tag, 'hex')), 'UTF8'))
		UNION ALL
		SELECT t.convo_id, format('row %s of level %s has %s hashes, and %s rows are complete below', t.n, t.level,
			octet_length(t.hashes) / 32, below.complete)
		FROM log_tiles t
		JOIN LATERAL (
			SELECT count(*) AS complete FROM log_tiles b
			WHERE b.convo_id = t.convo_id AND b.level = t.level - 1 AND b.n / 256 = t.n AND octet_length(b.hashes) = 8192
		) below ON true
		WHERE t.convo_id = ANY($1) AND t.level > 0 AND below.complete <> octet_length(t.hashes) / 32
		UNION ALL
		SELECT t.convo_id, format('%s leaves are stored of a log of %s entries', t.n * 256 + octet_length(t.hashes) / 32,
			c.last_seq)
		FROM log_tiles t JOIN convos c ON c.id = t.convo_id
		WHERE t.convo_id = ANY($1) AND t.level = 0
			AND t.n * 256 + octet_length(t.hashes) / 32 > c.last_seq`},
	{"what has expired is gone", `
		SELECT c.id, format('message %s is there, expired up to %s', m.seq, f.seq)
		FROM convos c JOIN log_floors f ON f.convo_id = c.id JOIN messages m ON m.convo_id = c.id
		WHERE c.id = ANY($1) AND m.seq <= f.seq AND m.kind = 1`},
	{"one commit per epoch", `
		SELECT id, format('the commit at %s creates epoch %s after epoch %s', seq, epoch, before)
		FROM (
			SELECT c.id, m.seq, m.epoch, lag(m.epoch) OVER (PARTITION BY c.id ORDER BY m.seq) AS before
			FROM convos c JOIN messages m ON m.convo_id = c.id
			WHERE c.id = ANY($1) AND m.kind = 3
		) commits
		WHERE epoch <> before + 1`},
	{"the epoch is the last commit's", `
		SELECT c.id, format('epoch %s, but the last commit creates %s', c.epoch, max(m.epoch))
		FROM convos c JOIN messages m ON m.convo_id = c.id
		WHERE c.id = ANY($1) AND m.kind = 3
		GROUP BY c.id, c.epoch HAVING max(m.epoch) <> c.epoch`},
	{"no message from a later epoch", `
		SELECT id, format('entry %s is of epoch %s, while the convo was in %s', seq, epoch, current)
		FROM (
			SELECT c.id, m.seq, m.kind, m.epoch, coalesce(
				max(m.epoch) FILTER (WHERE m.kind = 3) OVER (PARTITION BY c.id ORDER BY m.seq),
				min(m.epoch) FILTER (WHERE m.kind = 3) OVER (PARTITION BY c.id) - 1,
				c.epoch) AS current
			FROM convos c JOIN messages m ON m.convo_id = c.id
			WHERE c.id = ANY($1)
		) entries
		WHERE kind <> 3 AND epoch > current`},
	{"every sender was a member", `
		SELECT c.id, format('entry %s is by no member', m.seq)
		FROM convos c JOIN messages m ON m.convo_id = c.id
		WHERE c.id = ANY($1)
			AND NOT EXISTS (SELECT FROM members WHERE convo_id = c.id AND did = m.sender_did)
			AND m.sender_did NOT LIKE 'did:erased:%' -- while an erasure runs, the roster still has its DID
			-- A proposal of an external sender (RFC 9420 §12.1.8.1): a PublicMessage with
			-- sender_type 2 behind the group_id, whose length has two bytes if it is 64, and the
			-- epoch.
			AND NOT CASE WHEN m.kind = 2 AND octet_length(m.body) > 78 AND substr(m.body, 1, 4) = '\x00010001'
				THEN get_byte(m.body, CASE WHEN get_byte(m.body, 4) < 64 THEN 13 + get_byte(m.body, 4) ELSE 78 END) = 2
				ELSE false END`},
	{"a closed convo ends with its commit or its reset", `
		SELECT c.id, format('closed at %s, and its last entry is of kind %s', c.closed_at, m.kind)
		FROM convos c JOIN messages m ON m.convo_id = c.id AND m.seq = c.last_seq
		WHERE c.id = ANY($1) AND c.successor_group_id IS NOT NULL
			AND m.kind <> CASE WHEN c.successor_id IS NULL THEN 3 ELSE 9 END`},
	{"a reset has two sides", `
		SELECT c.id, format('closed at %s, and its successor %s has the predecessor %s', c.closed_at, c.successor_id,
			s.predecessor_id)
		FROM convos c LEFT JOIN convos s ON s.id = c.successor_id
		WHERE c.id = ANY($1) AND c.successor_id IS NOT NULL
			AND (c.closed_at IS NULL OR s.predecessor_id IS DISTINCT FROM c.id OR s.group_id <> c.successor_group_id)
			AND NOT EXISTS (SELECT FROM deleted_convos WHERE id = c.successor_id)
		UNION ALL
		SELECT c.id, format('opened by the reset of %s, which has the successor %s, and begins with an entry of kind %s',
			c.predecessor_id, p.successor_id, m.kind)
		FROM convos c LEFT JOIN convos p ON p.id = c.predecessor_id
		LEFT JOIN messages m ON m.convo_id = c.id AND m.seq = 1
		WHERE c.id = ANY($1) AND c.predecessor_id IS NOT NULL AND (m.kind IS DISTINCT FROM 9
			OR p.successor_id IS DISTINCT FROM c.id AND NOT EXISTS (SELECT FROM deleted_convos WHERE id = c.predecessor_id))
		UNION ALL
		SELECT c.id, format('%s is on the roster since the reset, and was no member before', m.did)
		FROM convos c JOIN convos p ON p.id = c.predecessor_id JOIN members m ON m.convo_id = c.id AND m.joined_seq = 0
		WHERE c.id = ANY($1)
			AND NOT EXISTS (SELECT FROM members WHERE convo_id = p.id AND (did = m.did OR did LIKE 'did:erased:%'))
			AND m.did NOT LIKE 'did:erased:%'`},
	{"every log entry has its event", `
		SELECT id, format('entry %s has %s', seq, published)
		FROM (
			SELECT c.id, m.seq, m.created_at, count(t.seq) AS published
			FROM convos c JOIN messages m ON m.convo_id = c.id
			LEFT JOIN (` + entryEvents + `) t ON t.convo_id = c.id AND t.seq = m.seq
			WHERE c.id = ANY($1)
			GROUP BY c.id, m.seq, m.created_at HAVING count(t.seq) <> 1
			-- The conditions below read all events. With OFFSET 0 PostgreSQL evaluates them only
			-- for possible violations.
			OFFSET 0
		) entries
		-- Events expire by the day on which they came into the stream. An event that came a day
		-- later stays longer.
		WHERE created_at >= coalesce((SELECT min(day) FROM event_days), '-infinity')
			AND created_at > (SELECT min(created_at) FROM (SELECT created_at FROM events UNION ALL SELECT created_at FROM outbox)
				stored)`},
	{"events in the log's order", `
		SELECT id, format('entry %s comes after entry %s', seq, before)
		FROM (
			SELECT c.id, t.seq, lag(t.seq) OVER (PARTITION BY c.id ORDER BY t.later, t.place, t.ord) AS before
			FROM convos c JOIN (` + entryEvents + `) t ON t.convo_id = c.id
			WHERE c.id = ANY($1)
		) published
		WHERE seq <> before + 1`},
	{"events say who is a member", `
		SELECT m.convo_id, format('the roster says that %s left at %s, and its last event that it joined: %s', m.did,
			m.left_at, joined)
		FROM (
			SELECT DISTINCT ON (c.id, t.did) c.id, t.did, t.detail ->> 'change' = 'joined' AS joined
			FROM convos c JOIN (
				SELECT convo_id, 0 AS later, stream_seq AS place, did, detail FROM events WHERE kind = 4 AND convo_id = ANY($1)
				UNION ALL SELECT convo_id, 1, id, did, detail FROM outbox WHERE kind = 4 AND convo_id = ANY($1)
			) t ON t.convo_id = c.id
			WHERE c.id = ANY($1)
			ORDER BY c.id, t.did, t.later DESC, t.place DESC
		) latest
		JOIN members m ON m.convo_id = latest.id AND m.did = latest.did
		WHERE joined <> (m.left_at IS NULL)`},
	{"a roster that can be", `
		SELECT c.id, format('%s members are left, %s were creators', count(m.did) FILTER (WHERE left_at IS NULL),
			count(*) FILTER (WHERE role = 'creator'))
		FROM convos c LEFT JOIN members m ON m.convo_id = c.id
		WHERE c.id = ANY($1) GROUP BY c.id
		HAVING count(m.did) FILTER (WHERE left_at IS NULL) = 0 OR count(*) FILTER (WHERE role = 'creator') <> 1`},
	{"positions within the log", `
		SELECT c.id, format('joined at %s, left at %s, cursor %s of %s', m.joined_seq, m.left_seq, m.cursor_seq, c.last_seq)
		FROM convos c JOIN members m ON m.convo_id = c.id
		WHERE c.id = ANY($1) AND (m.joined_seq > c.last_seq OR m.cursor_seq > c.last_seq OR m.left_seq >
			c.last_seq
			OR m.left_seq < m.joined_seq OR (m.left_at IS NULL) <> (m.left_seq IS NULL)
			OR (m.left_at IS NULL) <> (m.left_epoch IS NULL))`},
	{"no Welcome before its commit", `
		SELECT c.id, format('a Welcome leads into epoch %s, which no commit created', w.epoch)
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		LEFT JOIN (
			SELECT convo_id, min(epoch) - 1 AS epoch FROM messages WHERE kind = 3 AND convo_id = ANY($1) GROUP BY convo_id
		) first ON first.convo_id = c.id
		WHERE c.id = ANY($1)
			AND NOT EXISTS (SELECT FROM messages m WHERE m.convo_id = c.id AND m.kind = 3 AND m.epoch = w.epoch)
			AND w.epoch <> coalesce(first.epoch, c.epoch)`},
	{"a deliverable Welcome has its bytes", `
		SELECT c.id, format('the Welcome of epoch %s for a device has no bytes', w.epoch)
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		WHERE c.id = ANY($1) AND w.state IN ('available', 'in_flight')
			AND NOT EXISTS (SELECT FROM welcome_bodies b WHERE b.convo_id = c.id AND b.epoch = w.epoch)`},
	{"one deliverable Welcome per device", `
		SELECT c.id, format('%s Welcomes on their way to one device', count(*))
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		WHERE c.id = ANY($1) AND w.state IN ('available', 'in_flight')
		GROUP BY c.id, w.recipient_did, w.device_id HAVING count(*) > 1`},
	{"Welcomes reach members", `
		SELECT c.id, 'a Welcome is on its way to someone who is not a member'
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		WHERE c.id = ANY($1) AND w.state IN ('available', 'in_flight')
			AND NOT EXISTS (SELECT FROM members m WHERE m.convo_id = c.id AND m.did = w.recipient_did AND m.left_at IS NULL)`},
	{"the group that is known is the convo's", `
		SELECT c.id, format('a public group of epoch %s in epoch %s', g.epoch, c.epoch)
		FROM convos c JOIN public_groups g ON g.convo_id = c.id
		WHERE c.id = ANY($1) AND g.epoch <> c.epoch`},
	{"a commit's record and its effect are one", `
		SELECT c.id, format('key of a %s without its commit', k.nsid)
		FROM convos c JOIN members b ON b.convo_id = c.id
		JOIN idempotency_keys k ON k.caller_did = b.did AND k.scope = c.id::text AND k.nsid =
				ANY('{blue.catbird.mls.addMembers,blue.catbird.mls.submitCommit,blue.catbird.mls.processExternalCommit}')
		WHERE c.id = ANY($1)
			AND NOT EXISTS (
			SELECT FROM messages m WHERE m.convo_id = c.id AND m.kind = 3 AND m.sender_did = k.caller_did
				AND m.idempotency_key = split_part(k.nsid, '.', 4) || ':' || k.key AND m.request_hash = k.request_hash)
		UNION ALL
		-- A commit's record lasts an hour at least (MLSD_IDEMPOTENCY_TTL), and stays for a day
		-- after that.
		SELECT c.id, format('the commit at %s has no record', m.seq)
		FROM convos c JOIN messages m ON m.convo_id = c.id
		WHERE c.id = ANY($1) AND m.kind = 3 AND m.created_at > clock_timestamp() - interval '1 day'
			AND m.sender_did NOT LIKE 'did:erased:%' AND NOT EXISTS (
			SELECT FROM idempotency_keys k
			WHERE k.caller_did = m.sender_did AND k.scope = c.id::text AND k.request_hash = m.request_hash
				AND k.nsid = 'blue.catbird.mls.' || split_part(m.idempotency_key, ':', 1)
				AND k.key = substr(m.idempotency_key, strpos(m.idempotency_key, ':') + 1))`},
}

// globalChecks take no argument.
var globalChecks = []check{
	{"a KeyPackage is used once", `
		SELECT format('KeyPackage %s is in %s Welcomes, its state is %s', encode(k.ref, 'hex'),
			count(DISTINCT (w.convo_id, w.epoch)), k.state)
		FROM key_packages k JOIN welcomes w ON w.recipient_did = k.did AND w.key_package_ref = k.ref
		WHERE NOT k.last_resort
		GROUP BY k.did, k.ref, k.state
		HAVING count(DISTINCT (w.convo_id, w.epoch)) > 1 OR k.state <> 'consumed'`},
	{"a KeyPackage's state and its columns agree", `
		SELECT format('KeyPackage %s is %s: claimed by %s at %s until %s, consumed at %s, last resort: %s', encode(ref,
			'hex'), state,
			claimed_by, claimed_at, claim_expires_at, consumed_at, last_resort)
		FROM key_packages
		WHERE (state IN ('claimed', 'orphaned') AND (claimed_by IS NULL OR claimed_at IS NULL OR claim_expires_at IS NULL))
			OR (state IN ('available', 'expired') AND withdrawn_at IS NULL AND (claimed_by IS NOT NULL OR claimed_at IS NOT
				NULL))
			OR (withdrawn_at IS NOT NULL AND state <> 'expired')
			OR (state = 'consumed' AND claimed_by IS NULL)
			OR (state = 'consumed') <> (consumed_at IS NOT NULL)
			OR (last_resort AND state NOT IN ('available', 'expired'))`},
	{"a Welcome's failures and its columns agree", `
		SELECT format('Welcome %s is %s: %s failures in %s leases, the last at %s, silent: %s', id, state, failures, attempts,
			last_failed_at, silent)
		FROM welcomes
		WHERE (failures > 0) <> (last_failure IS NOT NULL) OR (failures > 0) <> (last_failed_at IS NOT NULL) OR failures >
			attempts
			OR (silent AND state <> 'consumed')`},
	{"a one-time KeyPackage has one claimer", `
		WITH answered AS (
			SELECT k.caller_did, p ->> 'did' AS did, p ->> 'keyPackageRef' AS ref
			FROM idempotency_keys k
			CROSS JOIN LATERAL jsonb_array_elements(convert_from(nullif(k.response, ''), 'UTF8')::jsonb -> 'keyPackages') AS p
			WHERE k.nsid = 'blue.catbird.mls.getKeyPackages' AND NOT (p ->> 'lastResort')::boolean
		)
		SELECT format('KeyPackage %s is in %s answers', ref, count(*)) FROM answered GROUP BY did, ref HAVING count(*) > 1
		UNION ALL
		SELECT format('KeyPackage %s was handed to another than its claimer', a.ref)
		FROM answered a JOIN key_packages k ON k.did = a.did AND k.ref = decode(a.ref, 'hex')
		WHERE k.claimed_by IS DISTINCT FROM a.caller_did`},
	{"no caller exceeds its budget of a device", `
		SELECT format('the claim of KeyPackage %s is more than the 30th within a day', encode(ref, 'hex'))
		FROM (
			SELECT ref, claimed_at, lag(claimed_at, 30) OVER (PARTITION BY did, device_id, claimed_by ORDER BY claimed_at) AS
				before
			FROM key_packages WHERE claimed_at IS NOT NULL
		) claims
		WHERE before > claimed_at - interval '24 hours'`},
	{"an init_key is used once", `
		SELECT format('KeyPackage %s has no tombstone', encode(k.ref, 'hex')) FROM key_packages k
		WHERE NOT EXISTS (SELECT FROM key_package_init_keys t WHERE t.did = k.did AND t.ref = k.ref)`},
	{"a convo's record and its effect are one", `
		SELECT format('key of a createConvo without its convo') FROM idempotency_keys k
		WHERE k.nsid = 'blue.catbird.mls.createConvo' AND NOT EXISTS (
			SELECT FROM convos c WHERE c.creator_did = k.caller_did AND c.idempotency_key = k.key)`},
	{"one push job of a device waits, and one is sent", `
		SELECT format('%s push jobs of one device are %s', count(*), state) FROM push_jobs
		WHERE state IN ('pending', 'sending') GROUP BY did, device_id, state HAVING count(*) > 1`},
	{"a push job's state and its columns agree", `
		SELECT format('push job %s is %s after %s attempts, ended at %s', id, state, attempts, ended_at) FROM push_jobs
		WHERE (state IN ('done', 'dead')) <> (ended_at IS NOT NULL) OR (state IN ('sending', 'dead') AND heard_by IS NOT NULL)
			OR (state <> 'pending' AND attempts = 0 AND heard_by IS NULL)`},
	{"nobody is pushed to for requests alone", `
		SELECT format('push job %s of %s waits, and the person has accepted no convo', j.id, j.reason)
		FROM push_jobs j
		WHERE j.state = 'pending' AND NOT EXISTS (SELECT FROM members m WHERE m.did = j.did AND m.requested_at IS NULL)
			AND NOT EXISTS (SELECT FROM received_invitations r WHERE r.did = j.did AND NOT r.request)
			-- A job from before the last request may be for a convo that has become one again.
			AND j.created_at > (SELECT max(m.requested_at) FROM members m WHERE m.did = j.did)`},
	{"a push job's record and its effect are one", `
		SELECT format('push job %s is %s, and its record says that it has ended', j.id, j.state)
		FROM push_jobs j JOIN idempotency_keys k ON k.caller_did = 'mlsd' AND k.nsid = 'mlsd.push' AND k.scope = '' AND k.key
			= j.id::text
		WHERE j.state IN ('pending', 'sending') AND k.state = 'completed'`},
	{"a KeyPackage is in one invitation of another service, which has consumed it", `
		SELECT format('KeyPackage %s of %s is %s, and in %s invitations', encode(k.ref, 'hex'), k.did, k.state, count(*))
		FROM received_invitations r JOIN key_packages k USING (did, ref)
		WHERE NOT k.last_resort GROUP BY k.did, k.ref, k.state
		HAVING count(*) > 1 OR k.state NOT IN ('consumed', 'expired')`},
	{"an invitation's record and its effect are one", `
		SELECT format('invitation %s is %s, and its record says that it has ended', j.id, j.state)
		FROM sent_invitations j JOIN idempotency_keys k ON k.caller_did = 'mlsd' AND k.nsid = 'mlsd.invitation'
			AND k.scope = '' AND k.key = j.id || ' ' || j.kind
		WHERE j.state IN ('pending', 'sending') AND k.state = 'completed'`},
	{"a dense stream", `
		WITH places AS (SELECT stream_seq, day FROM single_events)
		SELECT format('event %s comes after event %s', stream_seq, before)
		FROM (SELECT stream_seq, lag(stream_seq) OVER (ORDER BY stream_seq) AS before FROM places) e WHERE stream_seq <>
			before + 1
		UNION ALL
		SELECT format('the newest event is %s, and the stream ends at %s', newest, head)
		FROM stream, (SELECT max(stream_seq) AS newest FROM places) e WHERE newest <> head
		UNION ALL
		SELECT format('%s begins at %s, with event %s', d.day, d.first_seq, min(e.stream_seq))
		FROM event_days d LEFT JOIN places e USING (day) GROUP BY d.day, d.first_seq HAVING min(e.stream_seq) IS DISTINCT FROM
			d.first_seq`},
	{"an index with every message that shares a row of events", `
		WITH shared AS (
			SELECT m.convo_id, e.stream_seq - cardinality(e.seqs) + m.ord AS place, m.seq, m.size
			FROM events e CROSS JOIN LATERAL unnest(e.convo_ids, e.seqs, e.sizes) WITH ORDINALITY AS m (convo_id, seq, size, ord)
			WHERE e.seqs IS NOT NULL AND e.stream_seq <= (SELECT last FROM convo_events_end)
		), indexed AS (
			SELECT i.convo_id, m.place, m.seq, m.size
			FROM convo_events i CROSS JOIN LATERAL unnest(i.places, i.seqs, i.sizes) AS m (place, seq, size)
			WHERE i.day >= (SELECT min(day) FROM event_days)
		)
		SELECT format('event %s, entry %s of convo %s, is not indexed', place, seq, convo_id) FROM (SELECT * FROM shared
			EXCEPT ALL SELECT * FROM indexed) s
		UNION ALL
		SELECT format('the index says that entry %s of convo %s is event %s', seq, convo_id, place)
		FROM (SELECT * FROM indexed EXCEPT ALL SELECT * FROM shared) i`},
	{"the stream has not gone back", `
		SELECT format('generation %s begins after event %s, and the stream ends at %s', id, after_seq, head)
		FROM generations, stream WHERE after_seq > head`},
	{"a complete attachment has all its parts", `
		SELECT format('attachment %s is complete with %s of its %s parts', a.id, count(p.part), (a.size + a.part_size - 1) /
			a.part_size)
		FROM attachments a LEFT JOIN attachment_parts p ON p.attachment_id = a.id
		WHERE a.state = 'complete'
		GROUP BY a.id HAVING count(p.part) <> (a.size + a.part_size - 1) / a.part_size OR a.checked_parts <> count(p.part)
			OR max(p.part) <> count(p.part)`},
	{"every record has its answer", `
		SELECT format('a record of %s has no answer', nsid) FROM idempotency_keys
		WHERE response = '' AND started_at IS NULL`},
}
