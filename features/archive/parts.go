package archive

import _ "embed"

// part is a part of an archive: the rows of one table that belong to an account in one way.
//
// Its statement returns the columns of the key, and the row as the text of a JSON object. Rows are
// ordered by the key, and begin after the key in the statement's parameters. The statement returns
// at most @limit rows. It returns no row only if none is left.
//
// If no index finds the rows by the DID, the statement examines @window rows in the order of the
// key, and returns the rows that belong to the account. It always returns the last row of the
// window too, with NULL as its data if the row does not belong to the account. Keys end up in
// cursors, which are not secret. So a key must not name people who have nothing to do with the
// account.
type part struct {
	name string // the table, and how its rows belong to the account
	keys []column
	sql  string
}

// Statements of more than about 25 lines. Each comment says what the statement returns.
//
//go:embed messages.sql
var messagesSQL string

// parts are all parts. A row that belongs to others too shows only what is the person's own: no
// ciphertext of others, and no group's state. Package redact says which columns and which answers
// are left out. @hidden_after hides later data from a person who is no longer a member. Names must
// not change, because cursors contain them. Events of disputes (kind 7) are left out, because the
// person's part is in disputes. An event of an invitation (kind 10) belongs to the invited person.
var parts = []part{
	{"accounts", []column{{"at", smallKey}}, `
		SELECT 1, (to_jsonb(t) - @hidden::text[])::text FROM accounts t
			WHERE did = @did AND @at < 1 LIMIT @limit`},
	{"identity_keys", []column{{"at", smallKey}}, `
		SELECT 1, to_jsonb(t)::text FROM identity_keys t WHERE did = @did AND @at < 1 LIMIT @limit`},
	{"key_packages", []column{{"ref", bytesKey}}, `
		SELECT ref, (to_jsonb(t) - 'body' - @hidden::text[] || jsonb_build_object('body', encode(body, 'base64')))::text
		FROM key_packages t WHERE did = @did AND ref > @ref ORDER BY ref LIMIT @limit`},
	{"key_packages claimed", []column{{"owner", textKey}, {"ref", bytesKey}}, `
		SELECT did, ref, jsonb_build_object('did', did, 'ref', encode(ref, 'hex'), 'claimed_at', claimed_at)::text
		FROM key_packages WHERE claimed_by = @did AND (did, ref) > (@owner, @ref) ORDER BY did, ref LIMIT @limit`},
	{"key_package_init_keys", []column{{"init_key", bytesKey}}, `
		SELECT init_key, to_jsonb(t)::text FROM key_package_init_keys t
		WHERE did = @did AND init_key > @init_key ORDER BY init_key LIMIT @limit`},
	{"key_package_signals", []column{{"device_id", textKey}, {"cipher_suite", smallKey}, {"kind", textKey}}, `
		SELECT device_id, cipher_suite, kind, to_jsonb(t)::text FROM key_package_signals t
		WHERE did = @did AND (device_id, cipher_suite, kind) > (@device_id, @cipher_suite, @kind)
		ORDER BY device_id, cipher_suite, kind LIMIT @limit`},
	{"push_targets", []column{{"device_id", textKey}}, `
		SELECT device_id, (to_jsonb(t) - @hidden::text[])::text FROM push_targets t
		WHERE did = @did AND device_id > @device_id ORDER BY device_id LIMIT @limit`},
	{"push_jobs", []column{{"id", uuidKey}}, `
		SELECT id, to_jsonb(t)::text FROM push_jobs t WHERE did = @did AND id > @id ORDER BY id LIMIT @limit`},
	{"push_convos", []column{{"convo_id", uuidKey}}, `
		SELECT convo_id, CASE WHEN sender_did = @did THEN (to_jsonb(t) - 'last')::text END
		FROM (
			SELECT m.convo_id, p.sender_did, p.created_at, lead(m.convo_id) OVER (ORDER BY m.convo_id) IS NULL AS last
			FROM (SELECT convo_id FROM members WHERE did = @did AND convo_id > @convo_id ORDER BY convo_id LIMIT @window) m
			LEFT JOIN push_convos p ON p.convo_id = m.convo_id AND p.sender_did = @did
		) t
		WHERE sender_did = @did OR last ORDER BY convo_id LIMIT @limit`},
	{"members", []column{{"convo_id", uuidKey}}, `
		SELECT convo_id, to_jsonb(t)::text FROM members t WHERE did = @did AND convo_id > @convo_id ORDER BY convo_id LIMIT
			@limit`},
	{"convos created", []column{{"convo_id", uuidKey}}, `
		SELECT m.convo_id,
			(to_jsonb(c) - CASE WHEN m.left_at IS NULL THEN @hidden::text[] ELSE @hidden_after::text[] END)::text
		FROM (
			SELECT convo_id, left_at, lead(convo_id) OVER (ORDER BY convo_id) IS NULL AS last
			FROM (
				SELECT convo_id, left_at FROM members
				WHERE did = @did AND convo_id > @convo_id ORDER BY convo_id LIMIT @window
			) w
		) m
		LEFT JOIN convos c ON c.id = m.convo_id AND c.creator_did = @did
		WHERE c.id IS NOT NULL OR last ORDER BY m.convo_id LIMIT @limit`},
	{"convos reserved", []column{{"convo_id", uuidKey}}, `
		SELECT m.convo_id, CASE WHEN c.id IS NOT NULL THEN jsonb_build_object('id', c.id, 'reserved_until',
			c.reserved_until)::text END
		FROM (
			SELECT convo_id, lead(convo_id) OVER (ORDER BY convo_id) IS NULL AS last
			FROM (SELECT convo_id FROM members WHERE did = @did AND convo_id > @convo_id ORDER BY convo_id LIMIT @window) w
		) m
		LEFT JOIN convos c ON c.id = m.convo_id AND c.reserved_for = @did
		WHERE c.id IS NOT NULL OR last ORDER BY m.convo_id LIMIT @limit`},
	{"public_groups", []column{{"convo_id", uuidKey}}, `
		SELECT m.convo_id, CASE WHEN g.convo_id IS NOT NULL THEN (
			jsonb_build_object('convo_id', g.convo_id, 'epoch', g.epoch) -
			CASE WHEN m.left_at IS NULL THEN @hidden::text[] ELSE @hidden_after::text[] END)::text END
		FROM (
			SELECT convo_id, left_at, lead(convo_id) OVER (ORDER BY convo_id) IS NULL AS last
			FROM (
				SELECT convo_id, left_at FROM members
				WHERE did = @did AND convo_id > @convo_id ORDER BY convo_id LIMIT @window
			) w
		) m
		LEFT JOIN public_groups g ON g.convo_id = m.convo_id AND g.vouched_by = @did
		WHERE g.convo_id IS NOT NULL OR last ORDER BY m.convo_id LIMIT @limit`},
	{"messages", []column{{"convo_id", uuidKey}, {"seq", largeKey}}, messagesSQL},
	{"log_senders", []column{{"convo_id", uuidKey}}, `
		SELECT m.convo_id, CASE WHEN s.did IS NOT NULL THEN to_jsonb(s)::text END
		FROM (
			SELECT convo_id, lead(convo_id) OVER (ORDER BY convo_id) IS NULL AS last
			FROM (SELECT convo_id FROM members WHERE did = @did AND convo_id > @convo_id ORDER BY convo_id LIMIT @window) w
		) m
		LEFT JOIN log_senders s ON s.convo_id = m.convo_id AND s.did = @did
		WHERE s.did IS NOT NULL OR last ORDER BY m.convo_id LIMIT @limit`},
	{"attachments", []column{{"id", uuidKey}}, `
		SELECT id, (to_jsonb(t) - CASE WHEN EXISTS (
			SELECT FROM members m WHERE m.convo_id = t.convo_id AND m.did = @did AND m.left_at IS NULL)
			THEN @hidden::text[] ELSE @hidden_after::text[] END)::text
		FROM attachments t WHERE sender_did = @did AND id > @id ORDER BY id LIMIT @limit`},
	{"attachment_parts", []column{{"id", uuidKey}, {"part", smallKey}}, `
		SELECT attachment_id, part, to_jsonb(p)::text FROM attachment_parts p
		WHERE attachment_id IN (SELECT id FROM attachments WHERE sender_did = @did) AND (attachment_id, part) > (@id, @part)
		ORDER BY attachment_id, part LIMIT @limit`},
	{"welcomes", []column{{"convo_id", uuidKey}, {"id", uuidKey}}, `
		SELECT convo_id, id, data FROM (
			SELECT m.convo_id, coalesce(w.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff') AS id,
				CASE WHEN w.id IS NOT NULL THEN to_jsonb(w)::text END AS data, m.last
			FROM (
				SELECT convo_id, lead(convo_id) OVER (ORDER BY convo_id) IS NULL AS last
				FROM (SELECT convo_id FROM members WHERE did = @did AND convo_id >= @convo_id ORDER BY convo_id LIMIT @window) c
			) m
			LEFT JOIN welcomes w ON w.convo_id = m.convo_id AND w.recipient_did = @did
		) t
		WHERE (data IS NOT NULL OR last) AND (convo_id, id) > (@convo_id, @id) ORDER BY convo_id, id LIMIT @limit`},
	{"idempotency_keys", []column{{"nsid", textKey}, {"scope", textKey}, {"key", textKey}}, `
		SELECT nsid, scope, key, (to_jsonb(t) - @hidden::text[] || jsonb_build_object('response',
			CASE WHEN nsid <> ALL (@secret_answers::text[]) THEN convert_from(response, 'UTF8') END))::text
		FROM idempotency_keys t
		WHERE caller_did = @did AND (nsid, scope, key) > (@nsid, @scope, @key) ORDER BY nsid, scope, key LIMIT @limit`},
	{"subscription_tickets", []column{{"id", textKey}}, `
		SELECT id, data FROM (
			-- The hash of a hash, so that no cursor says anything of a ticket. Few tickets live at
			-- a time.
			SELECT encode(sha256(hash), 'hex') COLLATE "C" AS id, (to_jsonb(t) - @hidden::text[])::text AS data
			FROM subscription_tickets t WHERE did = @did
		) t
		WHERE id > @id ORDER BY id LIMIT @limit`},
	{"sessions", []column{{"id", uuidKey}}, `
		SELECT id, to_jsonb(t)::text FROM sessions t WHERE did = @did AND id > @id ORDER BY id LIMIT @limit`},
	{"erasure_confirmations", []column{{"at", smallKey}}, `
		SELECT 1, (to_jsonb(t) - @hidden::text[])::text FROM erasure_confirmations t
		WHERE did = @did AND @at < 1 LIMIT @limit`},
	{"presence", []column{{"device_id", textKey}, {"node", uuidKey}}, `
		SELECT device_id, node, to_jsonb(t)::text FROM presence t
		WHERE did = @did AND (device_id, node) > (@device_id, @node) ORDER BY device_id, node LIMIT @limit`},
	{"outbox", []column{{"id", largeKey}}, `
		SELECT id, CASE WHEN own THEN (to_jsonb(t) - '{own,last}'::text[] - @hidden::text[])::text END
		FROM (
			SELECT *, did = @did OR kind NOT IN (7, 8, 10) AND detail ->> 'by' = @did AS own,
				lead(id) OVER (ORDER BY id) IS NULL AS last
			FROM (SELECT * FROM outbox WHERE id > @id ORDER BY id LIMIT @window) w
		) t
		WHERE own OR last ORDER BY id LIMIT @limit`},
	{"events", []column{{"stream_seq", largeKey}}, `
		SELECT stream_seq, CASE WHEN own THEN (to_jsonb(t) - '{own,last}'::text[] - @hidden::text[])::text END
		FROM (
			SELECT *, did = @did OR kind NOT IN (7, 8, 10) AND detail ->> 'by' = @did AS own,
				lead(stream_seq) OVER (ORDER BY stream_seq) IS NULL AS last
			FROM (SELECT * FROM events WHERE stream_seq > @stream_seq ORDER BY stream_seq LIMIT @window) w
		) t
		WHERE own OR last ORDER BY stream_seq LIMIT @limit`},
	{"blocks", []column{{"blocked_did", textKey}}, `
		SELECT blocked_did, to_jsonb(t)::text FROM blocks t
		WHERE did = @did AND blocked_did > @blocked_did ORDER BY blocked_did LIMIT @limit`},
	{"invitations", []column{{"created_at", timeKey}, {"inviter", textKey}, {"convo_id", uuidKey}}, `
		SELECT created_at, inviter, convo_id, (to_jsonb(t) - @hidden::text[])::text FROM invitations t
		WHERE did = @did AND (created_at, inviter, convo_id) > (@created_at, @inviter, @convo_id)
		ORDER BY created_at, inviter, convo_id LIMIT @limit`},
	{"invitations made", []column{{"created_at", timeKey}, {"invited", textKey}, {"convo_id", uuidKey}}, `
		SELECT created_at, did, convo_id, (to_jsonb(t) - @hidden::text[])::text FROM invitations t
		WHERE inviter = @did AND (created_at, did, convo_id) > (@created_at, @invited, @convo_id)
		ORDER BY created_at, did, convo_id LIMIT @limit`},
	{"received_invitations", []column{{"id", uuidKey}}, `
		SELECT id, (to_jsonb(t) - @hidden::text[] || jsonb_build_object('ref', encode(ref, 'hex')))::text
		FROM received_invitations t WHERE did = @did AND id > @id ORDER BY id LIMIT @limit`},
	{"received_invitations made", []column{{"invited", textKey}, {"id", uuidKey}}, `
		SELECT did, id, jsonb_build_object('did', did, 'service', service, 'convo_id', convo_id, 'created_at',
			created_at)::text
		FROM received_invitations WHERE inviter = @did AND (did, id) > (@invited, @id) ORDER BY did, id LIMIT @limit`},
	{"sent_invitations", []column{{"id", uuidKey}}, `
		SELECT id, (to_jsonb(t) - @hidden::text[] || jsonb_build_object('ref', encode(ref, 'hex')))::text
		FROM sent_invitations t WHERE did = @did AND id > @id ORDER BY id LIMIT @limit`},
	{"sent_invitations made", []column{{"id", uuidKey}}, `
		SELECT id, jsonb_build_object('did', did, 'service', service, 'convo_id', convo_id, 'created_at',
			created_at)::text
		FROM sent_invitations WHERE inviter = @did AND id > @id ORDER BY id LIMIT @limit`},
	{"epoch_reports", []column{{"convo_id", uuidKey}, {"epoch", largeKey}}, `
		SELECT convo_id, epoch, (to_jsonb(t) || jsonb_build_object('hash', encode(hash, 'hex')))::text FROM epoch_reports t
		WHERE did = @did AND (convo_id, epoch) > (@convo_id, @epoch) ORDER BY convo_id, epoch LIMIT @limit`},
	{"commit_reports", []column{{"convo_id", uuidKey}, {"epoch", largeKey}}, `
		SELECT convo_id, epoch, (to_jsonb(t) - CASE WHEN EXISTS (
			SELECT FROM members m WHERE m.convo_id = t.convo_id AND m.did = @did AND m.left_at IS NULL)
			THEN @hidden::text[] ELSE @hidden_after::text[] END)::text
		FROM commit_reports t
		WHERE did = @did AND (convo_id, epoch) > (@convo_id, @epoch) ORDER BY convo_id, epoch LIMIT @limit`},
	{"disputes", []column{{"convo_id", uuidKey}, {"epoch", largeKey}}, `
		SELECT convo_id, epoch, (to_jsonb(t) - CASE WHEN EXISTS (
			SELECT FROM members m WHERE m.convo_id = t.convo_id AND m.did = @did AND m.left_at IS NULL)
			THEN @hidden::text[] ELSE @hidden_after::text[] END)::text
		FROM disputes t
		WHERE committer = @did AND (convo_id, epoch) > (@convo_id, @epoch) ORDER BY convo_id, epoch LIMIT @limit`},
	{"policies", []column{{"at", smallKey}}, `
		SELECT 1, to_jsonb(t)::text FROM policies t WHERE did = @did AND @at < 1 LIMIT @limit`},
	// The sealed bytes are left out, because only the operator can read them. The columns are
	// named, so that the statement does not even read the bytes from the disk.
	{"abuse_reports", []column{{"id", uuidKey}}, `
		SELECT id, to_jsonb(t)::text
		FROM (
			SELECT id, convo_id, reporter, reason, key_id, reported_at, state, closed_at, octet_length(sealed) AS bytes
			FROM abuse_reports WHERE reporter = @did AND id > @id ORDER BY id LIMIT @limit
		) t ORDER BY id`},
	{"quota_counts", []column{{"day", dateKey}, {"quota", textKey}}, `
		SELECT q.day, q.quota, to_jsonb(q)::text
		FROM generate_series((SELECT min(day) FROM quota_counts), (SELECT max(day) FROM quota_counts), interval '1 day') AS of
			(day)
		JOIN quota_counts q ON q.day = of.day::date AND q.subject = @did
		WHERE (q.day, q.quota) > (@day, @quota) ORDER BY q.day, q.quota LIMIT @limit`},
	// A small table: the hundred callers of each hour and kind, for a week.
	{"caller_counts", []column{{"hour", timeKey}, {"kind", textKey}, {"nsid", textKey}}, `
		SELECT hour, kind, nsid, to_jsonb(t)::text FROM caller_counts t
		WHERE caller_did = @did AND (hour, kind, nsid) > (@hour, @kind, @nsid) ORDER BY hour, kind, nsid LIMIT @limit`},
	{"requests", []column{{"id", largeKey}}, `
		SELECT id, (to_jsonb(t) - @hidden::text[])::text FROM requests t
		WHERE caller_did = @did AND id > @id ORDER BY id LIMIT @limit`},
	{"audit_log", []column{{"at", timeKey}, {"id", largeKey}}, `
		SELECT at, id, CASE WHEN actor = @did THEN (to_jsonb(t) - 'last')::text END
		FROM (
			SELECT *, lead(id) OVER (ORDER BY at, id) IS NULL AS last
			FROM (SELECT * FROM audit_log WHERE (at, id) > (@at, @id) ORDER BY at, id LIMIT @window) w
		) t
		WHERE actor = @did OR last ORDER BY at, id LIMIT @limit`},
	// A subject is plain text, or names and values: "did:plc:a phone", "/account did=did:plc:a".
	{"admin_actions", []column{{"id", largeKey}}, `
		SELECT id, CASE WHEN own THEN (to_jsonb(t) - '{own,last}'::text[] - @hidden::text[])::text END
		FROM (
			SELECT *, strpos(' ' || translate(subject, '=', ' ') || ' ', ' ' || @did || ' ') > 0 AS own, lead(id) OVER (ORDER BY
				id) IS NULL AS last
			FROM (SELECT * FROM admin_actions WHERE id > @id ORDER BY id LIMIT @window) w
		) t
		WHERE own OR last ORDER BY id LIMIT @limit`},
	{"erasures", []column{{"id", uuidKey}}, `
		SELECT id, (to_jsonb(t) - @hidden::text[])::text FROM erasures t
		WHERE did = @did AND state = 'running' AND id > @id ORDER BY id LIMIT @limit`},
}
