package main

// mutant is a bug that a server had, put back.
type mutant struct {
	name  string // of the bug, with what it is put into where there are several
	edits []edit
	test  string // of package api, or of the package before the dot
}

// edit replaces a text that stands exactly once in a file.
type edit struct{ file, old, new string }

// reserveBody is what takes a key, and checked what a server that only looks does instead.
const (
	reserveBody = `	tag, err := tx.Exec(ctx, ` + "`" + `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, '', clock_timestamp(), clock_timestamp() + $7::interval)
		ON CONFLICT DO NOTHING` + "`" + `,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), operationOf(req.NSID).life)
	return err == nil && tag.RowsAffected() == 1, err
`
	checked = `	_ = hash
	_, err := lookup(ctx, tx, req)
	if err != nil && err.Error() == "no rows in result set" {
		return true, nil
	}
	return false, err
`
	completeBody = `		UPDATE idempotency_keys SET response = $5, completed_at = clock_timestamp()
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4)` + "`" + `,
		req.Caller, req.NSID, req.Scope, req.Key, response)
`
	inserted = `		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $6, $7, $5, clock_timestamp(), clock_timestamp() + $8::interval)
		ON CONFLICT DO NOTHING` + "`" + `,
		req.Caller, req.NSID, req.Scope, req.Key, response,
		func() []byte { h := req.Input.Hash(); return h[:] }(), req.Input.fieldHashes(), operationOf(req.NSID).life)
`
)

// welcomeBody is how the bytes of a Welcome are found.
const welcomeBody = "SELECT body FROM welcome_bodies WHERE convo_id = $1 AND epoch = $2"

var mutants = []mutant{
	{"replay-before-auth", []edit{
		{"api/dispatch.go", `		return route, serviceauth.Verified{}, err
	}
	return route, token, nil
}`, `		if token := strings.Split(r.Header.Get(echo.HeaderAuthorization), "."); len(token) == 3 {
			var claims struct{ Iss syntax.DID }
			raw, _ := base64.RawURLEncoding.DecodeString(token[1])
			if json.Unmarshal(raw, &claims) == nil {
				return route, serviceauth.Verified{Caller: claims.Iss}, nil
			}
		}
		return route, serviceauth.Verified{}, err
	}
	return route, token, nil
}`}, {"api/dispatch.go", `	"context"
`, `	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
`}}, "TestReplayBeforeAuth"},
	{"global-key", []edit{
		{"api/handlers.go", "idem.Request{Caller: c.caller,", `idem.Request{Caller: "did:web:everyone.example",`}}, "TestGlobalKey"},
	{"global-key (messages)", []edit{
		{"messages/statement.go", "WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key",
			"WHERE convo_id = d.convo_id AND idempotency_key"},
		{"migrations/000009_tokens.up.sql", "WHERE h.convo_id = convo AND h.sender_did = sender AND h.idempotency_key", "WHERE h.convo_id = convo AND h.idempotency_key"}}, "TestGlobalKey"},
	{"body-ignored", []edit{
		{"idem/content.go", "if bytes.Equal(r.requestHash, hash[:]) {", "if bytes.Equal(hash[:], hash[:]) {"}}, "TestBodyIgnored"},
	{"body-ignored (messages)", []edit{
		{"messages/statement.go", "WHEN held.request_hash = d.hash THEN 'repeated'", "WHEN held.seq IS NOT NULL THEN 'repeated'"},
		{"migrations/000009_tokens.up.sql", "IF held.request_hash = hash THEN", "IF held.seq IS NOT NULL THEN"}}, "TestBodyIgnored"},
	{"check-then-run", []edit{
		{"idem/record.go", reserveBody, checked}, {"idem/record.go", completeBody, inserted}}, "TestCheckThenRun"},
	{"record-after", []edit{
		{"idem/record.go", reserveBody, checked}, {"idem/record.go", completeBody, inserted},
		{"idem/idem.go", "		complete(tx, req, answer.Body)\n", ""},
		{"idem/idem.go", "	return answer, nil\n", `	late, err := s.begin(ctx, req)
	if err != nil {
		return answer, err
	}
	complete(late, req, answer.Body)
	return answer, late.Commit(ctx)
`}}, "TestRecordAfter"},
	{"epoch-before-key", []edit{
		{"messages/statement.go", `				WHEN held.request_hash = d.hash`, `				WHEN d.epoch < c.epoch THEN 'wrong-epoch'
				WHEN held.request_hash = d.hash`},
		{"migrations/000009_tokens.up.sql", "    IF FOUND THEN\n        seq := held.seq;", "    IF current_epoch > epoch THEN\n        status := 'wrong-epoch';\n        RETURN;\n    END IF;\n    IF held.seq IS NOT NULL THEN\n        seq := held.seq;"}}, "TestEpochBeforeKey"},
	{"member-before-key", []edit{
		{"messages/statement.go", `				WHEN held.request_hash = d.hash`, `				WHEN m.left_at IS NOT NULL THEN 'not-member'
				WHEN held.request_hash = d.hash`},
		{"migrations/000009_tokens.up.sql", "    IF FOUND THEN\n        seq := held.seq;", "    IF EXISTS (SELECT FROM members m WHERE m.convo_id = convo AND m.did = sender AND m.left_at IS NOT NULL) THEN\n        status := 'not-member';\n        RETURN;\n    END IF;\n    IF held.seq IS NOT NULL THEN\n        seq := held.seq;"}}, "TestMemberBeforeKey"},
	{"member-before-key (leave)", []edit{
		{"convos/leave.go", "			return Advanced{Epoch: *c.leftEpoch}, nil\n", "			return Advanced{}, ErrNotMember\n"}}, "TestMemberBeforeKey"},
	{"cached-401", []edit{
		{"idem/idem.go", `	if answer.Body, err = effect(ctx, tx); err != nil {
`, `	if answer.Body, err = effect(ctx, tx); err != nil {
		complete(tx, req, []byte(err.Error()))
		_ = tx.Commit(ctx)
`}}, "TestCached401"},
	{"swallowed-insert", []edit{
		{"idem/record.go", reserveBody, `	attempt, err := tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	tag, err := attempt.Exec(ctx, ` + "`" + `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, '', clock_timestamp(), clock_timestamp() + $7::interval)
		ON CONFLICT DO NOTHING` + "`" + `,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), operationOf(req.NSID).life)
	if err != nil {
		return true, attempt.Rollback(ctx)
	}
	return tag.RowsAffected() == 1, attempt.Commit(ctx)
`}}, "TestSwallowedInsert"},
	{"the COMMIT without the answer", []edit{
		{"idem/transaction.go", "		b.QueuedQueries = append(b.QueuedQueries, t.last)\n", "		_ = t.last\n"}}, "idem.TestReplayIsTheFirstAnswer"},
	{"a COMMIT that was none", []edit{
		{"idem/transaction.go", `tag.String() != "COMMIT"`, `tag.String() == ""`}}, "idem.TestWriteThatFailsAnywhere"},
	{"sliding-midnight", []edit{
		{"idem/record.go", "clock_timestamp(), clock_timestamp() + $7::interval)\n		ON CONFLICT DO NOTHING`", "clock_timestamp(), date_trunc('minute', clock_timestamp() + $7::interval - $7::interval))\n		ON CONFLICT DO NOTHING`"}}, "TestSlidingMidnight"},
	{"frozen-lease", []edit{
		{"idem/lease.go", "(state = 'processing' AND lease_expires_at <= clock_timestamp())", "(state = 'processing' AND lease_expires_at <= now() - interval '1 hour')"}}, "idem.TestFrozenLease"},
	{"zombie (completion)", []edit{
		{"idem/lease.go", `		UPDATE idempotency_keys SET state = 'completed', outcome = $6, response = $7, completed_at = clock_timestamp()
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence = $5 AND`, `		UPDATE idempotency_keys SET state = 'completed', outcome = $6, response = $7, completed_at = clock_timestamp()
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence >= $5 AND`}}, "idem.TestZombieFenced"},
	{"zombie (heartbeat)", []edit{
		{"idem/lease.go", `lease_expires_at = clock_timestamp() + $6::interval
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence = $5 AND`, `lease_expires_at = clock_timestamp() + $6::interval
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence >= $5 AND`}}, "idem.TestHeartbeat"},
	{"takeover-race", []edit{
		{"idem/lease.go", "AND (state = 'released' OR (state = 'processing' AND lease_expires_at <= clock_timestamp())", "AND (state = 'released' OR state = 'processing'"}}, "idem.TestTakeoverRace"},
	{"records without row-level security", []edit{
		{"idem/record.go", "set_config('mlsd.caller', $1, true)", "set_config('mlsd.maintenance', left($1, 0) || 'on', true)"}}, "idem.TestRowLevelSecurity"},
	{"keys that never expire", []edit{
		{"idem/record.go", "AND state = 'completed' AND expires_at <= clock_timestamp()`,", "AND state = 'completed' AND expires_at <= '-infinity'`,"}}, "TestExpiredHeader"},
	{"epoch-in-replay", []edit{
		{"idem/idem.go", "	return Answer{Body: rec.response, Replayed: true, Outcome: rec.outcome}, nil\n",
			"	return Answer{Body: []byte(`{\"success\":true}`), Replayed: true}, nil\n"}}, "TestEpochInReplay"},

	{"second-fetch-410", []edit{
		{"welcome/desk.go", "FROM chosen WHERE state = 'in_flight' AND grace", "FROM chosen WHERE state = '' AND grace"},
		{"welcome/deliver.go", "	case InFlight:\n	case Consumed:\n", "	case InFlight, Consumed:\n"}}, "TestSecondFetch410"},
	{"confirmed-nothing", []edit{
		{"welcome/deliver.go", `	if err != nil {
		return "", err
	}
	if err := p.expireLease(`, `	if err != nil {
		return Consumed, nil
	}
	if err := p.expireLease(`}}, "TestConfirmedNothing"},
	{"confirmed-nothing (unfetched)", []edit{
		{"welcome/deliver.go", `	case !w.fetched:
		return "", ErrNotFound
`, `	case !w.fetched:
		return Consumed, nil
`}}, "TestConfirmedNothing"},
	{"sliding-grace", []edit{
		{"welcome/desk.go", "chosen.state = 'available' AND state = 'available'", "state IN ('available', 'in_flight')"}}, "TestSlidingGrace"},
	{"sliding-grace (not at the desk)", []edit{
		{"welcome/deliver.go", "	case InFlight:\n	case Consumed:\n",
			"	case InFlight:\n		if err := p.openLease(ctx, tx, convo, &w); err != nil {\n			return Delivery{}, err\n		}\n	case Consumed:\n"}},
		"welcome.TestMachineFollowsTheModel"},
	{"any-device", []edit{
		{"welcome/desk.go", "	), opened AS (\n", `	), others AS (
		UPDATE welcomes SET state = 'consumed', confirmed_at = clock_timestamp()
		WHERE convo_id = $1 AND recipient_did = $2 AND id <> (SELECT id FROM chosen)
	), opened AS (
`}}, "TestAnyDevice"},
	{"gc-kills-welcome", []edit{
		{"welcome/desk.go", "epoch = leased.epoch LIMIT 1", `epoch = leased.epoch AND EXISTS (
			SELECT FROM key_packages WHERE did = $2 AND ref = leased.key_package_ref) LIMIT 1`},
		{"welcome/deliver.go", welcomeBody, welcomeBody + ` AND EXISTS (
			SELECT FROM welcomes w JOIN key_packages k ON k.did = w.recipient_did AND k.ref = w.key_package_ref
			WHERE w.convo_id = $1 AND w.epoch = $2)`}}, "TestGCKillsWelcome"},
	{"confirmed in another's name", []edit{
		{"welcome/desk.go", "set_config('mlsd.caller', $2::text, true)", "set_config('mlsd.caller', left($2::text, 0), true)"}}, "welcome.TestConfirmedTogether"},
	{"a held Welcome is waited for", []edit{
		{"welcome/desk.go", "clock_timestamp()\n			FOR UPDATE SKIP LOCKED\n", "clock_timestamp()\n			FOR UPDATE\n"}}, "welcome.TestLeftAside"},
	{"a stranger's confirmation", []edit{
		{"welcome/desk.go", "			AND EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = $2 AND left_at IS NULL)\n", ""}}, "welcome.TestLeftAside"},
	{"a lease that is over is confirmed at the desk", []edit{
		{"welcome/desk.go", "AND state = 'in_flight'\n				AND grace_expires_at > clock_timestamp()", "AND state = 'in_flight'"}}, "welcome.TestLeftAside"},
	{"poison for all (Welcomes)", []edit{
		{"welcome/desk.go", `return "", fmt.Errorf("%w: %w", ErrAside, err)`, `return "", fmt.Errorf("confirm the Welcome: %w", err)`}},
		"welcome.TestPoisonedConfirmation"},
	{"stale-welcome", []edit{
		{"welcome/deposit.go", "AS r (id, did, device_id, ref)`", `AS r (id, did, device_id, ref)
		WHERE NOT EXISTS (SELECT FROM welcomes w WHERE w.convo_id = $1 AND w.recipient_did = r.did)` + "`"}}, "TestStaleWelcome"},
	{"first-recipient-only", []edit{
		{"welcome/deposit.go", "	n := len(to)\n", "	to = to[:1]\n	n := len(to)\n"}}, "TestFirstRecipientOnly"},

	{"self-read-cas", []edit{
		{"convos/commit.go", "	case int64(h.Epoch) != c.epoch:\n", "	case int64(h.Epoch) > c.epoch:\n"}}, "TestSelfReadCAS"},
	{"max-plus-one", []edit{
		{"messages/statement.go", "ORDER BY id FOR NO KEY UPDATE\n", "ORDER BY id\n"},
		{"migrations/000009_tokens.up.sql", "        FOR NO KEY UPDATE;", "        ;"}}, "TestMaxPlusOne"},
	{"epoch-zero", []edit{
		{"convos/create.go", "		epoch = 1\n", "		epoch = 0\n"},
		{"convos/create.go", "	if epoch == 0 && n.Welcome != nil {\n", "	if epoch < 0 {\n"}}, "TestEpochZero"},
	{"off-by-one", []edit{
		{"convos/commit.go", "Hash: p.Hash, Epoch: next,", "Hash: p.Hash, Epoch: c.epoch,"}}, "TestOffByOne"},
	{"off-by-one (range)", []edit{
		{"messages/read.go", "AND kind = 3 AND epoch BETWEEN $2 AND $3 AND", "AND kind = 3 AND epoch > $2 AND epoch <= $3 AND"}}, "TestOffByOne"},
	{"group-info-late", []edit{
		{"convos/commit.go", "v.group, p.GroupInfo); err", "v.group, nil); err"}}, "TestGroupInfoLate"},
	{"open-join", []edit{
		{"convos/access.go", "	if !known {\n", "	if !known && caller == \"\" {\n"},
		{"convos/access.go", "		QueryRow(func(row pgx.Row) error { return row.Scan(&c.leftEpoch) })\n",
			"		QueryRow(func(row pgx.Row) error {\n			if err := row.Scan(&c.leftEpoch); !errors.Is(err, pgx.ErrNoRows) {\n				return err\n			}\n			return nil\n		})\n"}}, "TestOpenJoin"},
	{"open-join (another's device)", []edit{
		{"convos/verify.go", "	if m.DID() == by.String() || slices", "	if r.joins || m.DID() == by.String() || slices"}}, "TestOpenJoin"},
	{"self-rejoin", []edit{
		{"convos/submit.go", "	if c.leftEpoch != nil {\n", "	if c.leftEpoch != nil && !may.joins {\n"}}, "TestSelfRejoin"},
	{"group-info-open", []edit{
		{"convos/publicgroup.go", "m.did = $2 AND m.left_at IS NULL AND g.", "m.did <> $2 AND m.left_at IS NULL AND g."}}, "TestGroupInfoOpen"},
	{"forged sender", []edit{
		{"convos/verify.go", "SenderTypeMember && sender.DID() != by.String()", "SenderTypeMember && sender.DID() == \"\""}}, "TestVerifiedCommit"},
	{"unverified commit", []edit{
		{"convos/verify.go", "	case errors.Is(err, mls.ErrUnsupported): //", "	case errors.Is(err, mls.ErrUnsupported) || errors.Is(err, mls.ErrBadSignature): //"}}, "TestVerifiedCommit"},
	{"roster beside the commit", []edit{
		{"convos/verify.go", "	for _, a := range change.Adds {\n		if a.KeyPackage != nil {", "	for _, a := range change.Adds[:0] {\n		if a.KeyPackage != nil {"},
		{"convos/verify.go", "	return v, c.permit(ctx, tx, by, change, may)\n", "	v.all = false\n	return v, nil\n"}}, "TestVerifiedCommit"},
	{"poisoned tree", []edit{
		{"convos/verify.go", "	case before.vouchedBy != \"\" && before", "	case before.vouchedBy == \"nobody\" && before"}}, "TestWrongWord"},
	{"ghost device", []edit{
		{"convos/verify.go", "		if a.DID() != by.String() && !welcomed[", "		if a.DID() == \"\" && !welcomed["}}, "TestGhost"},
	{"starvation", []edit{
		{"convos/access.go", "reserved_for <> $2 AND", "reserved_for = $2 AND"}}, "TestNobodyStarves"},
	{"member-list-leak", []edit{
		{"convos/create.go", `	if !inserted {
		return Convo{}, ErrGroupAlreadyExists
`, `	if !inserted {
		var existing uuid.UUID
		var creator syntax.DID
		err := tx.QueryRow(ctx, "SELECT id, creator_did FROM convos WHERE group_id = $1", n.GroupID).Scan(&existing, &creator)
		if err != nil {
			return Convo{}, err
		}
		return Get(ctx, tx, existing, creator)
`}}, "TestMemberListLeak"},
	{"sub-impersonation", []edit{
		{"internal/serviceauth/claims.go", "	iss, ok := parseIssuer(r.Iss)\n",
			"	var subject struct {\n		Sub string `json:\"sub\"`\n	}\n	_ = json.Unmarshal(b, &subject)\n	iss, ok := parseIssuer(r.Iss)\n"},
		{"internal/serviceauth/claims.go", "	if r.Nbf != nil {\n		c.nbf = *r.Nbf\n	}\n",
			"	if r.Nbf != nil {\n		c.nbf = *r.Nbf\n	}\n	if subject.Sub != \"\" {\n		c.sub = syntax.DID(subject.Sub)\n	}\n"},
		{"internal/serviceauth/token.go", "	iat, nbf, exp int64 //", "	sub           syntax.DID\n	iat, nbf, exp int64 //"},
		{"internal/serviceauth/validator.go", "	return Verified{Caller: c.iss, ", "	if c.sub != \"\" {\n		c.iss = c.sub\n	}\n	return Verified{Caller: c.iss, "}}, "TestSubImpersonation"},
	{"removed member reads on", []edit{
		{"convos/access.go", "	if left {\n", "	if left && m.Epoch < 0 {\n"}}, "TestRemovedMemberReadsNothing"},
	{"removed member reads on (messages)", []edit{
		{"messages/read.go", "	if left {\n", "	if left && last < 0 {\n"},
		{"messages/read.go", " AND me.left_at IS NULL\n			AND seq", "\n			AND seq"}}, "TestRemovedMemberReadsNothing"},
	{"member reads from before it joined", []edit{
		{"messages/read.go", "AND seq BETWEEN greatest(me.joined_seq, $3::bigint + 1) AND", "AND seq BETWEEN $3::bigint + 1 AND"}}, "TestRemovedMemberReadsNothing"},
	{"page without its membership", []edit{
		{"messages/read.go", "	WHERE me.convo_id = $1 AND me.did = $2`\n", "	WHERE me.convo_id = $1 AND me.role = 'creator' AND $2::text <> ''`\n"}}, "TestStrangers"},

	{"a cursor goes back", []edit{
		{"convos/cursor.go", "a.furthest > a.cursor_seq", "a.furthest <> a.cursor_seq"},
		{"convos/cursor.go", "m.cursor_seq < h.furthest", "m.cursor_seq <> h.furthest"}}, "convos.TestCursorsTogether"},
	{"a stranger's cursor", []edit{
		{"convos/cursor.go", "c.id IS NULL OR m.did IS NULL THEN 'convo-not-found'\n", "c.id IS NULL THEN 'convo-not-found'\n				WHEN m.did IS NULL THEN 'not-member'\n"}},
		"convos.TestCursorRefusals"},
	{"a cursor ahead of the log", []edit{
		{"convos/cursor.go", "WHEN a.seq > c.last_seq THEN", "WHEN a.seq > c.last_seq + 1 THEN"}}, "convos.TestCursorRefusals"},
	{"one cursor ahead is all of them", []edit{
		{"convos/cursor.go", "max(seq) FILTER (WHERE status = 'moved') OVER", "max(seq) OVER"}}, "convos.TestCursorsTogether"},
	{"a busy cursor is waited for", []edit{
		{"convos/cursor.go", `"FOR NO KEY UPDATE SKIP LOCKED\n"`, `"FOR NO KEY UPDATE\n"`}}, "convos.TestBusyCursor"},
	{"poison for all (cursors)", []edit{
		{"convos/cursor.go", "	case err != nil, r.status == cursorBusy:\n", "	case r.status == cursorBusy:\n"}}, "convos.TestPoisonedCursor"},

	{"double-claim", []edit{
		{"keypackages/claim.go", "				FOR UPDATE SKIP LOCKED\n", ""}}, "TestDoubleClaim"},
	{"double-claim (lapsed)", []edit{
		{"keypackages/reaper.go", "SET state = 'orphaned'\n", "SET state = 'available', claimed_by = NULL\n"}}, "TestOrphanedClaim"},
	{"drain", []edit{
		{"keypackages/claim.go", ">= $8 AS limited", ">= $8 + 1000000 AS limited"}}, "TestDrain"},
	{"drain (at once)", []edit{
		{"keypackages/claim.go", "	b.Queue(lockCaller, c.Caller)\n", ""}}, "TestDrain"},
	{"the last resort besides", []edit{
		{"keypackages/claim.go", " AND did || ' ' || device_id <> ALL((SELECT devices FROM served)::text[])", ""}}, "keypackages.TestLastResort"},
	{"expired-served", []edit{
		{"keypackages/claim.go", "state = 'available' AND NOT last_resort AND not_after > clock_timestamp()\n				AND ($2",
			"state = 'available' AND NOT last_resort\n				AND ($2"},
		{"keypackages/claim.go", "state = 'available' AND NOT last_resort AND not_after > clock_timestamp()\n				ORDER",
			"state = 'available' AND NOT last_resort\n				ORDER"}}, "TestExpiredServed"},
	{"expired-served (last resort)", []edit{
		{"keypackages/claim.go", "state = 'available' AND last_resort AND not_after > clock_timestamp()", "state = 'available' AND last_resort"}}, "TestExpiredServed"},
	{"locked-last-resort", []edit{
		{"keypackages/claim.go", "ref, cipher_suite, body, created_at\n				FROM key_packages\n",
			"ref, cipher_suite, body, created_at\n				FROM (SELECT * FROM key_packages FOR UPDATE SKIP LOCKED) key_packages\n"}}, "TestLockedLastResort"},

	{"blind retry", []edit{
		{"messages/append.go", `return code == "40P01" || code == "40001"`, `return code != "40P01"`}}, "messages.TestUnknownOutcome"},
	{"a lost COMMIT is a failed one", []edit{
		{"messages/append.go", "	if lost(err) {\n", "	if lost(err) && err == nil {\n"}}, "messages.TestLostCommit"},
	{"another's row for one's own", []edit{
		{"messages/lookup.go", "WHERE held.request_hash = d.hash`", "WHERE held.request_hash IS NOT NULL`"}}, "messages.TestLostBatch"},
	{"answered before the COMMIT", []edit{
		{"messages/statement.go", "			err = closeErr //", "			_ = closeErr //"}}, "messages.TestPoisonedDraft"},
	{"poison for all", []edit{
		{"messages/append.go", "n > 0 && poisoned(err)", "n > len(drafts) && poisoned(err)"}}, "messages.TestPoisonedDraft"},
	{"appended without the lock", []edit{
		{"messages/statement.go", "				WHEN d.convo_id = ANY((SELECT ids FROM unlocked)::uuid[]) THEN 'busy'\n", ""},
		{"migrations/000009_tokens.up.sql", "        WHEN its_group IS NULL THEN 'busy'\n", ""}}, "messages.TestOrderOfOneSender"},
	{"a busy convo fails its neighbours", []edit{
		{"messages/append.go", "	case pgpool.LockTimeout(err) && !wait:\n		return ErrBusy\n", ""}}, "messages.TestBusyConvoHoldsUpNoOther"},
	{"running is busy", []edit{
		{"messages/lookup.go", "	return pgpool.LockTimeout(err)\n", "	return pgpool.Code(err) == \"\" && err != nil\n"}}, "messages.TestSameKeyRunning"},
	{"busy is running", []edit{
		{"messages/lookup.go", "	return pgpool.LockTimeout(err)\n", "	return err == nil || pgpool.LockTimeout(err)\n"}}, "messages.TestSameKeyRunning"},
	{"the queue keeps who has left", []edit{
		{"messages/batcher.go", "slices.Index(ln.queue, s); i >= 0 {", "slices.Index(ln.queue, s); i > len(ln.queue) {"}}, "messages.TestCallerHangsUp"},
	{"a queue without end", []edit{
		{"messages/batcher.go", "	if b.waiting > 0 && (b.waiting >= queueDrafts", "	if b.waiting < 0 && (b.waiting >= queueDrafts"}}, "messages.TestQueueIsBounded"},
	{"one shard", []edit{
		{"messages/batcher.go", "%uint64(len(b.shards))]", "%uint64(len(b.shards)/2)]"}}, "messages.TestOtherShardGoesOn"},
	{"commits expire", []edit{
		{"messages/expiry.go", " AND m.seq <= p.upto AND m.kind = 1\n", " AND m.seq <= p.upto\n"}}, "messages.TestExpiry"},
	{"a hole in the log", []edit{
		{"messages/expiry.go", "bool_and(created_at < $2) OVER (ORDER BY seq) AS old", "created_at < $2 AS old"}}, "messages.TestExpiryInOrder"},
	{"an expired cursor is none", []edit{
		{"messages/read.go", "		at := timeOf(*r.Behind) //", "		var at time.Time //"}}, "messages.TestExpiry"},
	{"any cursor has expired", []edit{
		{"messages/read.go", "		if r.seqs.id(r.cursor, at) != *r.Behind {\n", "		if at.IsZero() {\n"}}, "messages.TestExpiry"},
	{"a token twice in one call", []edit{
		{"internal/serviceauth/usedtokens.go", "		delete(noted, s.token) //", "		//"}}, "internal/serviceauth.TestUsesOfOneCall"},
	{"a used token sends (batch)", []edit{
		{"messages/statement.go", "				WHEN d.token = ANY((SELECT tokens FROM stale)::uuid[]) THEN 'token-used'\n", ""}}, "messages.TestTokens"},
	{"a used token sends (lone message)", []edit{
		{"migrations/000009_tokens.up.sql", "        IF NOT FOUND THEN\n            status := 'token-used';\n            RETURN;\n        END IF;\n", ""}}, "messages.TestTokens"},
	{"two messages of one batch have one token", []edit{
		{"messages/join.go", "			if tokens[id] {\n", "			if tokens[id] && i < 0 {\n"}}, "messages.TestTokens"},
	{"a twin's token is left over", []edit{
		{"messages/join.go", "case p.first[j].Hash == d.Hash && d.Token == nil && p.first[j].Token == nil:", "case p.first[j].Hash == d.Hash:"}}, "messages.TestFirstTwinIsStale"},
	{"a busy convo's messages are refused for their own tokens", []edit{
		{"messages/batcher.go", "			if r.spent {\n", "			if r.spent && r.Seq > 0 {\n"}}, "messages.TestTokenOfBusyConvo"},
	{"a token is spent by what is rolled back", []edit{
		{"messages/batcher.go", "			if r.spent {\n", "			if r.Err != nil {\n"}}, "messages.TestTokenOfBusyConvo"},
	{"one caller's requests hold up a batch without end", []edit{
		{"messages/append.go", "	for range mostPasses {\n", "	for range 100 * mostPasses {\n"}}, "messages.TestPassesAreBounded"},
	{"nobody uses the token up", []edit{
		{"api/sendmessage.go", ", Token: c.token,\n", ",\n"}}, "api.TestTokenIsUsedOnce"},
	{"messages wait for a crowd's tokens", []edit{
		{"internal/serviceauth/verify.go", "	if tok.claims.lxm == v.urgent.String() {\n", "	if tok == nil {\n"}}, "internal/serviceauth.TestUrgent"},
	{"messages wait for room that pages have", []edit{
		{"api/dispatch.go", "	size, answers := answerRoom(cl.nsid), s.smallAnswers\n", "	size, answers := answerRoom(cl.nsid), s.largeAnswers\n"}},
		"api.TestPagesLeaveRoom"},
	{"lost-fanout", []edit{
		{"messages/statement.go", "	), told AS (` + push.NoteMessages + `\n	), noted AS (\n", "	), noted AS (\n"},
		{"messages/statement.go", "	\"mlsd/push\"\n", ""},
		{"messages/append.go", `		err = l.faults.Hit(ctx, failpoint.AfterCommit, NSID)
	}
`, `		err = l.faults.Hit(ctx, failpoint.AfterCommit, NSID)
	}
	if err == nil {
		for _, d := range drafts {
			_, err := l.db.Exec(ctx, "INSERT INTO push_convos VALUES ($1, $2, now()) ON CONFLICT DO NOTHING", d.ConvoID, d.Sender)
			if err != nil {
				return nil, err
			}
		}
	}
`},
		{"migrations/000009_tokens.up.sql", "IF kind = 1 AND EXISTS (SELECT FROM push_targets) THEN", "IF kind = 4 THEN"}}, "push.TestLostFanout"},
	{"bigserial-gap", []edit{
		{"events/sequencer.go", "SELECT id FROM outbox ORDER BY id LIMIT $1", "SELECT id FROM outbox WHERE id > (SELECT coalesce(max(stream_seq), 0) FROM events) ORDER BY id LIMIT $1"}}, "events.TestBigserialGap"},
	{"catchup-fills-live", []edit{
		{"events/subscription.go", "	s.mu.Unlock()\n	if len(page) > 0 {\n", "	if s.queued > s.hub.buffer {\n		s.fail(ErrConsumerTooSlow)\n	}\n	s.mu.Unlock()\n	if len(page) > 0 {\n"}}, "events.TestCatchupFillsLive"},
	{"lag-dropped", []edit{
		{"events/hub.go", "		h.detach(s)\n		s.position = e.StreamSeq - 1\n", ""}}, "events.TestLagDropped"},
	{"per-type-cursor", []edit{
		{"events/catchup.go", "	page, total := found, 0\n",
			"	slices.SortStableFunc(found, func(a, b *Event) int { return cmp.Compare(a.Kind, b.Kind) })\n	page, total := found, 0\n"}}, "events.TestPerTypeCursor"},
	{"late-convo", []edit{
		{"events/hub.go", "		if joined && s.live && e.StreamSeq > s.from {\n			h.enter(s, e.ConvoID)\n", "		if joined && s.live && e.StreamSeq > s.from {\n"}}, "events.TestLateConvo"},
	{"one-leader-lost", []edit{
		{"events/sequencer.go", "	if s.conn == nil && time.Since(s.tried) >= electEvery {", "	if s.conn == nil && s.tried.IsZero() {"}}, "events.TestOneLeaderLost"},
	{"removed-still-streams", []edit{
		{"events/hub.go", "	if joined {\n		return\n	}\n", "	if joined || !joined {\n		return\n	}\n"}}, "events.TestRemovedStillStreams"},
	{"removed-still-streams (catching up)", []edit{
		{"events/catchup.go", "c.terms = append(c.terms, term{ch.convo, from, ch.at})", "c.terms = append(c.terms, term{ch.convo, from, c.upto})"}}, "events.TestRemovedStillStreams"},
	{"the roster is not the stream", []edit{
		{"events/catchup.go", "	c.goBack(changes)\n", ""}}, "events.TestLateMembership"},
	{"a hole at the seam", []edit{
		{"events/hub.go", "	if since > 0 {\n		h.replay(", "	if since > 1<<20 {\n		h.replay("}}, "events.TestSixteenWriters"},
	{"a filter hides a device", []edit{
		{"events/subscription.go", "	if r.Convos != nil {\n		s.device", "	if r.Convos != nil && r.DeviceID == \"\" {\n		s.device"}}, "events.TestWhoCountsAsConnected"},
	{"a reader of the table stops the stream", []edit{
		{"events/sequencer.go", "s.upkeepDue = time.Now().Add(upkeepAgain)\n", "s.upkeepDue = time.Now().Add(upkeepAgain)\n			return 0, err\n"}}, "events.TestReaderOfTheTable"},
	{"days are dropped in silence", []edit{
		{"events/catchup.go", "	if first > c.position+1 {", "	if first > c.position+1 && first < 0 {"}}, "events.TestDroppedWhileCatchingUp"},
	{"connected to a stream that stands still", []edit{
		{"push/worker.go", "next_attempt_at <= now() - `+longestWait+` OR ", ""},
		{"events/presence.go", "(SELECT created_at FROM outbox ORDER BY id LIMIT 1))", "clock_timestamp())"}}, "push.TestNothingWasSent"},
	{"commit-without-event", []edit{
		{"messages/commit.go", "		), left_word AS (`+outbox.NoteMessages+`\n		)\n", "		)\n"},
		{"messages/commit.go", "	\"mlsd/outbox\"\n", ""}}, "convos.TestCommitWithoutEvent"},
	{"told before the commit", []edit{
		{"push/push.go", "DO UPDATE SET sender_did = excluded.sender_did WHERE false", "DO NOTHING"}}, "push.TestFanoutDuringCommit"},
	{"told before the commit (lone message)", []edit{
		{"migrations/000009_tokens.up.sql", "DO UPDATE SET sender_did = excluded.sender_did WHERE false;", "DO NOTHING;"}}, "push.TestFanoutDuringCommit"},
	{"told before the commit (Welcome)", []edit{
		{"push/enqueue.go", `DO UPDATE
	SET reason = CASE WHEN excluded.reason = 'welcome' THEN 'welcome' ELSE push_jobs.reason END,
		heard_by = CASE WHEN push_jobs.heard_by IS NOT NULL AND excluded.heard_by IS NOT NULL
			THEN greatest(push_jobs.heard_by, excluded.heard_by) END,
		next_attempt_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.next_attempt_at ELSE excluded.next_attempt_at END,
		created_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.created_at ELSE excluded.created_at END
	WHERE push_jobs.heard_by IS NOT NULL OR excluded.reason = 'welcome' AND push_jobs.reason <> 'welcome'`, "DO NOTHING"}}, "push.TestJobDuringDeposit"},
	{"a job that was heard takes in more", []edit{
		{"push/attempt.go", "CASE WHEN EXISTS (SELECT FROM newer) THEN 'done' ELSE state END", "CASE WHEN EXISTS (SELECT FROM newer) THEN state ELSE state END"},
		{"push/attempt.go", "CASE WHEN EXISTS (SELECT FROM newer) THEN clock_timestamp() END", "NULL"}}, "push.TestNewerJobSupersedes"},
	{"whoever is connected is skipped", []edit{
		{"push/enqueue.go", "	) told\n	ORDER BY", "	) told WHERE NOT connected\n	ORDER BY"}}, "push.TestMessageDuringDeferral"},
	{"a deferral that nothing prolongs", []edit{
		{"push/enqueue.go", "	WHERE push_jobs.heard_by IS NOT NULL OR excluded", "	WHERE excluded"}}, "push.TestMessageDuringDeferral"},
	{"connected is believed for ever", []edit{
		{"push/presence.go", "n.lease_expires_at > clock_timestamp() AND (p.did", "(p.did"}}, "push.TestPresenceHidesNothingLongerThanItsLease"},
	{"connected has heard", []edit{
		{"push/presence.go", " AND n.synced_at - interval '36 seconds' >= d.heard_by)", ")"}}, "push.TestPresenceHidesNothingLongerThanItsLease"},
	{"connected since", []edit{
		{"push/presence.go", "p.since <= d.heard_by - interval '5 seconds'", "true"}}, "push.TestLateConnection"},
	{"a lapsed lease is renewed", []edit{
		{"events/presence.go", "WHERE id = $1 AND lease_expires_at > clock_timestamp()`", "WHERE id = $1`"}}, "push.TestNodeThatSlept"},
}
