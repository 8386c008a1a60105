package invariants

import _ "embed"

// check finds the violations of one promise. Each row of its result is a violation: a text, and
// before it the convo, if the promise is about convos.
type check struct{ promise, sql string }

// logChecks take spans of logs: convos, the entries after which the spans begin, and the last
// entries of the spans. What a log check says of a span does not depend on how a log is divided
// into spans.
var logChecks = []check{
	{"dense log", `
		SELECT c.id, format('%s entries from %s to %s, after entry %s and up to entry %s; expired up to %s', count(m.seq),
			min(m.seq), max(m.seq), span.after, span.upto, coalesce(f.seq, 0))
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS span (id, after, upto)
		JOIN convos c ON c.id = span.id
		LEFT JOIN log_floors f ON f.convo_id = c.id
		LEFT JOIN messages m ON m.convo_id = c.id AND m.seq <= span.upto AND m.seq > greatest(span.after, f.seq)
		GROUP BY c.id, span.after, span.upto, f.seq
		HAVING count(m.seq) <> greatest(span.upto - greatest(span.after, f.seq), 0)`},
	{"the tree of the log", `
		SELECT m.convo_id, format('the leaf of entry %s is not that of the entry', m.seq)
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS span (id, after, upto)
		JOIN log_tiles t ON t.convo_id = span.id AND t.level = 0 AND t.n BETWEEN span.after / 256 AND (span.upto - 1) / 256
		JOIN messages m ON m.convo_id = t.convo_id AND m.seq > greatest(span.after, t.n * 256)
			AND m.seq <= least(span.upto, t.n * 256 + octet_length(t.hashes) / 32)
		LEFT JOIN log_senders s ON s.convo_id = m.convo_id AND s.did = m.sender_did
		WHERE substring(t.hashes, ((m.seq - 1) % 256)::int * 32 + 1, 32) IS DISTINCT FROM sha256('\x00'::bytea ||
			convert_to(format(
			E'mlsd log entry\n%s\n%s\n%s\n%s\n%s\n%s\n', m.seq, m.kind, m.epoch - (m.kind = 3)::int,
			(extract(epoch FROM m.created_at) * 1000)::bigint, encode(sha256(m.body), 'hex'), encode(s.tag, 'hex')), 'UTF8'))`},
	{"what has expired is gone", `
		SELECT m.convo_id, format('message %s is there, expired up to %s', m.seq, f.seq)
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS span (id, after, upto)
		JOIN convos c ON c.id = span.id
		JOIN log_floors f ON f.convo_id = c.id
		JOIN messages m ON m.convo_id = c.id AND m.seq > span.after AND m.seq <= least(span.upto, f.seq) AND m.kind = 1`},
	{"one commit per epoch", `
		SELECT m.convo_id, format('the commit at %s creates epoch %s, and the one at %s creates epoch %s', m.seq, m.epoch,
			before.seq, before.epoch)
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS span (id, after, upto)
		JOIN convos c ON c.id = span.id
		JOIN messages m ON m.convo_id = c.id AND m.seq > span.after AND m.seq <= span.upto AND m.kind = 3
		CROSS JOIN LATERAL (
			-- A second commit of the epoch, or else the commit of the epoch before.
			SELECT seq, epoch FROM messages
			WHERE convo_id = m.convo_id AND kind = 3 AND epoch <= m.epoch AND seq <> m.seq ORDER BY epoch DESC LIMIT 1
		) before
		WHERE before.epoch <> m.epoch - 1 OR before.seq > m.seq`},
	{"no message from a later epoch", `
		SELECT c.id, format('entry %s is of epoch %s, while the convo was in %s', m.seq, m.epoch,
			coalesce(later.epoch - 1, c.epoch))
		FROM (
			SELECT m.convo_id, m.epoch, min(m.seq) AS seq
			FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS span (id, after, upto)
			JOIN messages m ON m.convo_id = span.id AND m.seq > span.after AND m.seq <= span.upto AND m.kind <> 3
			GROUP BY m.convo_id, m.epoch
		) m
		JOIN convos c ON c.id = m.convo_id
		LEFT JOIN messages later ON later.convo_id = m.convo_id AND later.kind = 3 AND later.epoch = m.epoch AND later.seq >
			m.seq
		WHERE m.epoch > c.epoch OR later.seq IS NOT NULL`},
	{"every sender was a member", `
		SELECT c.id, format('entry %s is by no member', m.seq)
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS span (id, after, upto)
		JOIN convos c ON c.id = span.id
		JOIN messages m ON m.convo_id = c.id AND m.seq > span.after AND m.seq <= span.upto
		WHERE NOT EXISTS (SELECT FROM members WHERE convo_id = m.convo_id AND did = m.sender_did)
			AND m.sender_did NOT LIKE 'did:erased:%' -- while an erasure runs, the roster still has its DID
			-- A proposal of an external sender (RFC 9420 §12.1.8.1): a PublicMessage with
			-- sender_type 2 behind the group_id, whose length has two bytes if it is 64, and the
			-- epoch.
			AND NOT CASE WHEN m.kind = 2 AND octet_length(m.body) > 78 AND substr(m.body, 1, 4) = '\x00010001'
				THEN get_byte(m.body, CASE WHEN get_byte(m.body, 4) < 64 THEN 13 + get_byte(m.body, 4) ELSE 78 END) = 2
				ELSE false END`},
}

// convoChecks take the ids of convos.
var convoChecks = []check{
	{"dense log", `
		SELECT c.id, format('last_seq %s, the last entry %s, expired up to %s', c.last_seq, last.seq, f.seq)
		FROM convos c
		LEFT JOIN log_floors f ON f.convo_id = c.id
		LEFT JOIN LATERAL (SELECT seq FROM messages WHERE convo_id = c.id ORDER BY seq DESC LIMIT 1) last ON true
		WHERE c.id = ANY($1::uuid[]) AND greatest(last.seq, f.seq) > c.last_seq`},
	{"the tree of the log", `
		SELECT c.id, format('row %s of level %s has %s hashes, and %s rows are complete below', t.n, t.level,
			octet_length(t.hashes) / 32, below.complete)
		FROM convos c JOIN log_tiles t ON t.convo_id = c.id
		JOIN LATERAL (
			SELECT count(*) AS complete FROM log_tiles b
			WHERE b.convo_id = c.id AND b.level = t.level - 1 AND b.n BETWEEN t.n * 256 AND t.n * 256 + 255
				AND octet_length(b.hashes) = 8192
		) below ON true
		WHERE c.id = ANY($1::uuid[]) AND t.level > 0 AND below.complete <> octet_length(t.hashes) / 32
		UNION ALL
		SELECT c.id, format('%s leaves are stored of a log of %s entries', t.n * 256 + octet_length(t.hashes) / 32,
			c.last_seq)
		FROM convos c JOIN log_tiles t ON t.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND t.level = 0 AND t.n * 256 + octet_length(t.hashes) / 32 > c.last_seq`},
	{"the epoch is the last commit's", `
		SELECT c.id, format('epoch %s, but the last commit creates %s', c.epoch, last.epoch)
		FROM convos c
		CROSS JOIN LATERAL (
			SELECT epoch FROM messages WHERE convo_id = c.id AND kind = 3 ORDER BY epoch DESC LIMIT 1
		) last
		WHERE c.id = ANY($1::uuid[]) AND last.epoch <> c.epoch`},
	{"a closed convo ends with its commit or its reset", `
		SELECT c.id, format('closed at %s, and its last entry is of kind %s', c.closed_at, m.kind)
		FROM convos c JOIN messages m ON m.convo_id = c.id AND m.seq = c.last_seq
		WHERE c.id = ANY($1::uuid[]) AND c.successor_group_id IS NOT NULL
			AND m.kind <> CASE WHEN c.successor_id IS NULL THEN 3 ELSE 9 END`},
	{"a reset has two sides", `
		SELECT c.id, format('closed at %s, and its successor %s has the predecessor %s', c.closed_at, c.successor_id,
			s.predecessor_id)
		FROM convos c LEFT JOIN convos s ON s.id = c.successor_id
		WHERE c.id = ANY($1::uuid[]) AND c.successor_id IS NOT NULL
			AND (c.closed_at IS NULL OR s.predecessor_id IS DISTINCT FROM c.id OR s.group_id <> c.successor_group_id)
			AND NOT EXISTS (SELECT FROM deleted_convos WHERE id = c.successor_id)
		UNION ALL
		SELECT c.id, format('opened by the reset of %s, which has the successor %s, and begins with an entry of kind %s',
			c.predecessor_id, p.successor_id, m.kind)
		FROM convos c LEFT JOIN convos p ON p.id = c.predecessor_id
		LEFT JOIN messages m ON m.convo_id = c.id AND m.seq = 1
		WHERE c.id = ANY($1::uuid[]) AND c.predecessor_id IS NOT NULL AND (m.kind IS DISTINCT FROM 9
			OR p.successor_id IS DISTINCT FROM c.id AND NOT EXISTS (SELECT FROM deleted_convos WHERE id = c.predecessor_id))
		UNION ALL
		SELECT c.id, format('%s is on the roster since the reset, and was no member before', m.did)
		FROM convos c JOIN convos p ON p.id = c.predecessor_id JOIN members m ON m.convo_id = c.id AND m.joined_seq = 0
		WHERE c.id = ANY($1::uuid[])
			AND NOT EXISTS (SELECT FROM members WHERE convo_id = p.id AND (did = m.did OR did LIKE 'did:erased:%'))
			AND m.did NOT LIKE 'did:erased:%'`},
	{"a roster that can be", `
		SELECT c.id, format('%s members are left, %s are creators', count(m.did) FILTER (WHERE left_at IS NULL),
			count(*) FILTER (WHERE role = 'creator'))
		FROM convos c LEFT JOIN members m ON m.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) GROUP BY c.id
		HAVING count(m.did) FILTER (WHERE left_at IS NULL) = 0 OR count(*) FILTER (WHERE role = 'creator') > 1`},
	// Where an older server has let the last admin leave, that person has its role until SweepRoles.
	{"a convo with members has an admin", `
		SELECT c.id, format('%s members are left, and none is an admin', count(*) FILTER (WHERE m.left_at IS NULL))
		FROM convos c JOIN members m ON m.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) GROUP BY c.id
		HAVING bool_or(m.left_at IS NULL) AND bool_and(m.role = 'member')`},
	{"positions within the log", `
		SELECT c.id, format('joined at %s, left at %s, cursor %s of %s', m.joined_seq, m.left_seq, m.cursor_seq, c.last_seq)
		FROM convos c JOIN members m ON m.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND (m.joined_seq > c.last_seq OR m.cursor_seq > c.last_seq OR m.left_seq >
			c.last_seq
			OR m.left_seq < m.joined_seq OR (m.left_at IS NULL) <> (m.left_seq IS NULL)
			OR (m.left_at IS NULL) <> (m.left_epoch IS NULL))`},
	{"no Welcome before its commit", `
		SELECT c.id, format('a Welcome leads into epoch %s, which no commit created', w.epoch)
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		LEFT JOIN LATERAL (
			SELECT epoch - 1 AS epoch FROM messages WHERE convo_id = c.id AND kind = 3 ORDER BY epoch LIMIT 1
		) first ON true
		WHERE c.id = ANY($1::uuid[])
			AND NOT EXISTS (SELECT FROM messages m WHERE m.convo_id = c.id AND m.kind = 3 AND m.epoch = w.epoch)
			AND w.epoch <> coalesce(first.epoch, c.epoch)`},
	{"a deliverable Welcome has its bytes", `
		SELECT c.id, format('the Welcome of epoch %s for a device has no bytes', w.epoch)
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND w.state IN ('available', 'in_flight')
			AND NOT EXISTS (SELECT FROM welcome_bodies b WHERE b.convo_id = c.id AND b.epoch = w.epoch)`},
	{"one deliverable Welcome per device", `
		SELECT c.id, format('%s Welcomes on their way to one device', count(*))
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND w.state IN ('available', 'in_flight')
		GROUP BY c.id, w.recipient_did, w.device_id HAVING count(*) > 1`},
	{"Welcomes reach members", `
		SELECT c.id, 'a Welcome is on its way to someone who is not a member'
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND w.state IN ('available', 'in_flight')
			AND NOT EXISTS (SELECT FROM members m WHERE m.convo_id = c.id AND m.did = w.recipient_did AND m.left_at IS NULL)`},
	{"a Welcome's failures and its columns agree", `
		SELECT c.id, format('Welcome %s is %s: %s failures in %s leases, the last at %s, silent: %s', w.id, w.state,
			w.failures, w.attempts, w.last_failed_at, w.silent)
		FROM convos c JOIN welcomes w ON w.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND ((w.failures > 0) <> (w.last_failure IS NOT NULL)
			OR (w.failures > 0) <> (w.last_failed_at IS NOT NULL) OR w.failures > w.attempts
			OR (w.silent AND w.state <> 'consumed'))`},
	{"the group that is known is the convo's", `
		SELECT c.id, format('a public group of epoch %s in epoch %s', g.epoch, c.epoch)
		FROM convos c JOIN public_groups g ON g.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND g.epoch <> c.epoch`},
	{"a commit's record and its effect are one", `
		SELECT c.id, format('key of a %s without its commit', k.nsid)
		FROM convos c JOIN members b ON b.convo_id = c.id
		JOIN idempotency_keys k ON k.caller_did = b.did AND k.scope = c.id::text AND k.nsid =
			ANY('{blue.catbird.mls.addMembers,blue.catbird.mls.submitCommit,blue.catbird.mls.processExternalCommit}')
		WHERE c.id = ANY($1::uuid[])
			AND NOT EXISTS (
			SELECT FROM messages m WHERE m.convo_id = c.id AND m.kind = 3 AND m.sender_did = k.caller_did
				AND m.idempotency_key = split_part(k.nsid, '.', 4) || ':' || k.key AND m.request_hash = k.request_hash)
		UNION ALL
		-- A commit's record lasts an hour at least (MLSD_IDEMPOTENCY_TTL), and stays for a day
		-- after that.
		SELECT c.id, format('the commit at %s has no record', m.seq)
		FROM convos c JOIN messages m ON m.convo_id = c.id
		WHERE c.id = ANY($1::uuid[]) AND m.kind = 3 AND m.created_at > clock_timestamp() - interval '1 day'
			AND m.sender_did NOT LIKE 'did:erased:%' AND NOT EXISTS (
			SELECT FROM idempotency_keys k
			WHERE k.caller_did = m.sender_did AND k.scope = c.id::text AND k.request_hash = m.request_hash
				AND k.nsid = 'blue.catbird.mls.' || split_part(m.idempotency_key, ':', 1)
				AND k.key = substr(m.idempotency_key, strpos(m.idempotency_key, ':') + 1))`},
	{"a complete attachment has all its parts", `
		SELECT c.id, format('attachment %s is complete with %s of its %s parts', a.id, count(p.part),
			(a.size + a.part_size - 1) / a.part_size)
		FROM convos c JOIN attachments a ON a.convo_id = c.id AND a.state = 'complete'
		LEFT JOIN attachment_parts p ON p.attachment_id = a.id
		WHERE c.id = ANY($1::uuid[])
		GROUP BY c.id, a.id HAVING count(p.part) <> (a.size + a.part_size - 1) / a.part_size
			OR a.checked_parts <> count(p.part) OR max(p.part) <> count(p.part)`},
}

var (
	//go:embed published.sql
	publishedSQL string
	//go:embed order.sql
	orderSQL string
)

// entryChecks take the ids of convos, the day from which on they look at events, and an earlier end
// of the stream's index.
var entryChecks = []check{
	{"every log entry has its event", publishedSQL},
	{"events in the log's order", orderSQL},
}

// rosterChecks take the ids of convos, and the day from which on they look at events.
var rosterChecks = []check{
	{"events say who is a member", `
		SELECT m.convo_id, format('the roster says that %s left at %s, and its last event that it joined: %s', m.did,
			m.left_at, joined)
		FROM (
			SELECT DISTINCT ON (convo_id, did) convo_id, did, detail ->> 'change' = 'joined' AS joined
			FROM (
				SELECT convo_id, 0 AS later, stream_seq AS place, did, detail
				FROM events WHERE convo_id = ANY($1::uuid[]) AND kind = 4 AND day >= $2::date
				UNION ALL SELECT convo_id, 1, id, did, detail FROM outbox WHERE convo_id = ANY($1::uuid[]) AND kind = 4
			) t
			ORDER BY convo_id, did, later DESC, place DESC
		) latest
		JOIN members m ON m.convo_id = latest.convo_id AND m.did = latest.did
		WHERE joined <> (m.left_at IS NULL)`},
}

// peopleChecks take DIDs.
var peopleChecks = []check{
	{"a KeyPackage is used once", `
		SELECT format('KeyPackage %s is in %s Welcomes, its state is %s', encode(k.ref, 'hex'),
			count(DISTINCT (w.convo_id, w.epoch)), k.state)
		FROM members m
		JOIN welcomes w ON w.convo_id = m.convo_id AND w.recipient_did = m.did
		JOIN key_packages k ON k.did = w.recipient_did AND k.ref = w.key_package_ref AND NOT k.last_resort
		WHERE m.did = ANY($1::text[])
		GROUP BY k.did, k.ref, k.state
		HAVING count(DISTINCT (w.convo_id, w.epoch)) > 1 OR k.state <> 'consumed'`},
	{"a KeyPackage's state and its columns agree", `
		SELECT format('KeyPackage %s is %s: claimed by %s at %s until %s, consumed at %s, last resort: %s', encode(ref,
			'hex'), state,
			claimed_by, claimed_at, claim_expires_at, consumed_at, last_resort)
		FROM key_packages
		WHERE did = ANY($1::text[]) AND (
			(state IN ('claimed', 'orphaned') AND (claimed_by IS NULL OR claimed_at IS NULL OR claim_expires_at IS NULL))
			OR (state IN ('available', 'expired') AND withdrawn_at IS NULL AND (claimed_by IS NOT NULL OR claimed_at IS NOT
				NULL))
			OR (withdrawn_at IS NOT NULL AND state <> 'expired')
			OR (state = 'consumed' AND claimed_by IS NULL)
			OR (state = 'consumed') <> (consumed_at IS NOT NULL)
			OR (last_resort AND state NOT IN ('available', 'expired')))`},
	// The records are those of api/getkeypackages.go.
	{"a one-time KeyPackage has one claimer", `
		WITH answered AS (
			SELECT r.caller_did, r.created_at, p ->> 'did' AS did, decode(ref, 'base64') AS ref
			FROM idempotency_keys r
			CROSS JOIN LATERAL jsonb_array_elements(
				nullif(convert_from(nullif(r.response, ''), 'UTF8')::jsonb -> 'claimed', 'null')) AS p
			CROSS JOIN LATERAL jsonb_array_elements_text(p -> 'refs') AS ref
			WHERE r.caller_did = ANY($1::text[]) AND r.nsid = 'blue.catbird.mls.getKeyPackages'
		), claim AS (
			SELECT a.*, k.claimed_by, k.last_resort FROM answered a LEFT JOIN key_packages k USING (did, ref)
		)
		SELECT format('KeyPackage %s is in %s answers', encode(ref, 'hex'), count(*))
		FROM claim WHERE NOT last_resort GROUP BY did, ref HAVING count(*) > 1
		UNION ALL
		SELECT format('KeyPackage %s was handed to another than its claimer', encode(ref, 'hex'))
		FROM claim WHERE NOT last_resort AND claimed_by IS DISTINCT FROM caller_did
		UNION ALL
		-- Without its row, nobody can see who else has got it. The row stays for 30 days after the
		-- claim, unless the owner is erased.
		SELECT format('KeyPackage %s of a record is gone', encode(ref, 'hex'))
		FROM claim
		WHERE last_resort IS NULL AND created_at > now() - interval '29 days' AND did NOT LIKE 'did:erased:%'
			AND NOT EXISTS (SELECT FROM erasures WHERE did = claim.did AND state = 'running')`},
	{"no caller exceeds its budget of a device", `
		SELECT format('the claim of KeyPackage %s is more than the 30th within a day', encode(ref, 'hex'))
		FROM (
			SELECT ref, claimed_at, lag(claimed_at, 30) OVER (PARTITION BY did, device_id, claimed_by ORDER BY claimed_at) AS
				before
			FROM key_packages WHERE did = ANY($1::text[]) AND claimed_at IS NOT NULL
		) claims
		WHERE before > claimed_at - interval '24 hours'`},
	{"an init_key is used once", `
		SELECT format('KeyPackage %s has no tombstone', encode(k.ref, 'hex')) FROM key_packages k
		WHERE k.did = ANY($1::text[])
			AND NOT EXISTS (
				SELECT FROM key_package_init_keys t WHERE t.did = ANY($1::text[]) AND t.did = k.did AND t.ref = k.ref)`},
	{"a convo's record and its effect are one", `
		SELECT format('key of a createConvo without its convo') FROM idempotency_keys k
		WHERE k.caller_did = ANY($1::text[]) AND k.nsid = 'blue.catbird.mls.createConvo' AND NOT EXISTS (
			SELECT FROM convos c WHERE c.creator_did = k.caller_did AND c.idempotency_key = k.key)`},
	// Records of the caller mlsd are not looked at: they are many, and nobody gets their answers.
	{"every record has its answer", `
		SELECT format('a record of %s has no answer', nsid) FROM idempotency_keys
		WHERE caller_did = ANY($1::text[]) AND response = '' AND state = 'completed'`},
	{"one push job of a device waits, and one is sent", `
		SELECT format('%s push jobs of one device are %s', count(*), state) FROM push_jobs
		WHERE did = ANY($1::text[]) AND state IN ('pending', 'sending') GROUP BY did, device_id, state HAVING count(*) > 1`},
	{"a push job's state and its columns agree", `
		SELECT format('push job %s is %s after %s attempts, ended at %s', id, state, attempts, ended_at) FROM push_jobs
		WHERE did = ANY($1::text[]) AND ((state IN ('done', 'dead')) <> (ended_at IS NOT NULL)
			OR (state IN ('sending', 'dead') AND heard_by IS NOT NULL)
			OR (state <> 'pending' AND attempts = 0 AND heard_by IS NULL))`},
	{"nobody is pushed to for requests alone", `
		SELECT format('push job %s of %s waits, and the person has accepted no convo', j.id, j.reason)
		FROM push_jobs j
		WHERE j.did = ANY($1::text[]) AND j.state = 'pending'
			AND NOT EXISTS (SELECT FROM members m WHERE m.did = j.did AND m.requested_at IS NULL)
			AND NOT EXISTS (SELECT FROM received_invitations r WHERE r.did = j.did AND NOT r.request)
			-- A job from before the last request may be for a convo that has become one again.
			AND j.created_at > (SELECT max(m.requested_at) FROM members m WHERE m.did = j.did)`},
	{"a push job's record and its effect are one", `
		SELECT format('push job %s is %s, and its record says that it has ended', j.id, j.state)
		FROM push_jobs j JOIN idempotency_keys k ON k.caller_did = 'mlsd' AND k.nsid = 'mlsd.push' AND k.scope = '' AND k.key
			= j.id::text
		WHERE j.did = ANY($1::text[]) AND j.state IN ('pending', 'sending') AND k.state = 'completed'`},
	{"a KeyPackage is in one invitation of another service, which has consumed it", `
		SELECT format('KeyPackage %s of %s is %s, and in %s invitations', encode(k.ref, 'hex'), k.did, k.state, count(*))
		FROM received_invitations r JOIN key_packages k USING (did, ref)
		WHERE r.did = ANY($1::text[]) AND NOT k.last_resort GROUP BY k.did, k.ref, k.state
		HAVING count(*) > 1 OR k.state NOT IN ('consumed', 'expired')`},
}

// streamChecks take two places of the stream. They look at the rows of events after the first, up
// to the second.
var streamChecks = []check{
	{"a dense stream", `
		SELECT format('event %s comes after event %s', first, before)
		FROM (
			SELECT stream_seq - coalesce(cardinality(seqs), 1) + 1 AS first, lag(stream_seq, 1,
				-- The row at $1 may have expired, with all before it.
				CASE WHEN $1::bigint >= (SELECT min(first_seq) FROM event_days) THEN $1::bigint END)
				OVER (ORDER BY stream_seq) AS before
			FROM events WHERE stream_seq > $1::bigint AND stream_seq <= $2::bigint
		) e
		WHERE first <> before + 1`},
	{"an index with every message that shares a row of events", `
		SELECT format('event %s, entry %s of convo %s, is not in the index', s.place, s.seq, s.convo_id)
		FROM (
			SELECT e.day, m.convo_id, e.stream_seq - cardinality(e.seqs) + m.ord AS place, m.seq, m.size
			FROM events e CROSS JOIN LATERAL unnest(e.convo_ids, e.seqs, e.sizes) WITH ORDINALITY AS m (convo_id, seq, size, ord)
			WHERE e.stream_seq > $1::bigint AND e.stream_seq <= least($2::bigint, (SELECT last FROM convo_events_end))
				AND e.seqs IS NOT NULL
		) s
		LEFT JOIN LATERAL (
			SELECT seqs, sizes, array_position(places, s.place) AS n FROM convo_events
			WHERE convo_id = s.convo_id AND last >= s.place AND day = s.day ORDER BY last LIMIT 1
		) i ON true
		WHERE (i.seqs[i.n], i.sizes[i.n]) IS DISTINCT FROM (s.seq, s.size)`},
}

// dayChecks take a day of the stream.
var dayChecks = []check{
	// streamChecks have found every message of the day in the index, so equal numbers mean that the
	// index has nothing else.
	{"an index with every message that shares a row of events", `
		SELECT format('%s messages of %s share a row of events, and the index has %s', e.n, $1::date, i.n)
		FROM (
			SELECT coalesce(sum(cardinality(sizes)), 0) AS n FROM events
			WHERE day = $1::date AND seqs IS NOT NULL AND stream_seq <= (SELECT last FROM convo_events_end)
		) e, (SELECT coalesce(sum(cardinality(sizes)), 0) AS n FROM convo_events WHERE day = $1::date) i
		WHERE e.n <> i.n AND EXISTS (SELECT FROM event_days WHERE day = $1::date)`},
}

// factChecks take no argument, and read little, however much is stored.
var factChecks = []check{
	{"a dense stream", `
		-- The newest event never expires: see events/partitions.go.
		SELECT format('the newest event is %s, and the stream ends at %s', newest, head)
		FROM stream, (SELECT coalesce(max(stream_seq), 0) AS newest FROM events) e WHERE newest <> head
		UNION ALL
		SELECT format('%s begins at %s, with event %s', d.day, d.first_seq, e.first)
		FROM event_days d
		LEFT JOIN LATERAL (
			SELECT stream_seq - coalesce(cardinality(seqs), 1) + 1 AS first FROM events
			WHERE day = d.day ORDER BY stream_seq LIMIT 1
		) e ON true
		WHERE e.first IS DISTINCT FROM d.first_seq`},
	{"the stream has not gone back", `
		SELECT format('generation %s begins after event %s, and the stream ends at %s', id, after_seq, head)
		FROM generations, stream WHERE after_seq > head`},
	{"an invitation's record and its effect are one", `
		SELECT format('invitation %s is %s, and its record says that it has ended', j.id, j.state)
		FROM sent_invitations j JOIN idempotency_keys k ON k.caller_did = 'mlsd' AND k.nsid = 'mlsd.invitation'
			AND k.scope = '' AND k.key = j.id || ' ' || j.kind
		WHERE j.state IN ('pending', 'sending') AND k.state = 'completed'`},
}
