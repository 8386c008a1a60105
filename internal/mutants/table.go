package main

// mutant is a bug that a server had, put back.
type mutant struct {
	name  string // of the bug, with what it is put into where there are several
	test  string // that fails: of package api, or of the package before the dot
	edits []edit
}

// edit replaces a text that stands exactly once in a declaration. The package comment says how to
// write one.
type edit struct{ in, old, new string }

var (
	// onlyLooks makes reserve look whether the key is free, and take nothing.
	onlyLooks = edit{"idem.reserve", `hash := req.Input.Hash() … return err == nil && tag.RowsAffected() == 1, err`, `
	_, err := lookup(ctx, tx, req)
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	return false, err`}

	// recordsLast makes complete insert the record that reserve did not.
	recordsLast = edit{"idem.complete", `tx.ExecLast(… response)`, `
	hash := req.Input.Hash()
	tx.ExecLast("INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at, expires_at)" +
		" VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp(), clock_timestamp() + $8::interval) ON CONFLICT DO NOTHING",
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), response, req.life())`}
)

var mutants = []mutant{
	// Idempotency
	{"replay-before-auth", "TestReplayBeforeAuth", []edit{
		{"api.Server.admit", `return err } cl.caller, cl.token = token.Caller, &token`, `
		if token := strings.Split(r.Header.Get(echo.HeaderAuthorization), "."); len(token) == 3 {
			var claims struct{ Iss syntax.DID }
			raw, _ := base64.RawURLEncoding.DecodeString(token[1])
			if json.Unmarshal(raw, &claims) == nil {
				cl.caller = claims.Iss
				return nil
			}
		}
		return err
	}
	cl.caller, cl.token = token.Caller, &token`}}},
	{"global-key", "TestGlobalKey", []edit{
		{"api.handlers.write", `Caller: c.caller`, `Caller: "did:web:everyone.example"`}}},
	{"global-key (messages)", "TestGlobalKey", []edit{
		{"messages.lockAndRead", `sender_did = d.sender_did AND idempotency_key`, `idempotency_key`}}},
	{"body-ignored", "TestBodyIgnored", []edit{
		{"idem.record.conflict", `bytes.Equal(r.requestHash, hash[:])`, `bytes.Equal(hash[:], hash[:])`}}},
	{"body-ignored (messages)", "TestBodyIgnored", []edit{
		{"messages.judge.repetition", `bytes.Equal(r.hash, d.Hash[:])`, `bytes.Equal(r.hash, r.hash)`}}},
	{"no second guard (convos)", "TestRawSecondInsert", []edit{
		{"migrations/000014_key_indexes.up.sql", `CREATE UNIQUE INDEX convos_idempotency_key`, `CREATE INDEX convos_idempotency_key`}}},
	{"no second guard (commits)", "TestRawSecondInsert", []edit{
		{"migrations/000014_key_indexes.up.sql", `CREATE UNIQUE INDEX messages_commit_idempotency_key`, `CREATE INDEX messages_commit_idempotency_key`}}},
	{"a key is never free again", "TestKeyIsRetiredWithItsRecord", []edit{
		{"idem.Store.claim", `err = s.retire(ctx, tx, []UsedKey{{Caller: req.Caller.String(), NSID: req.NSID, Scope: req.Scope, Key: req.Key}})`, ``}}},
	{"the cleaner leaves keys in use", "TestKeyIsRetiredWithItsRecord", []edit{
		{"idem.Cleaner.clean", `c.retire(ctx, tx, ended)`, `c.retire(ctx, tx, nil)`}}},
	{"a taken key is the server's fault", "TestLostRecord", []edit{
		{"idem.keyTaken", `refused.Code == "23505"`, `refused.Code == "23503"`}}},
	{"check-then-run", "TestCheckThenRun", []edit{onlyLooks, recordsLast}},
	{"record-after", "TestRecordAfter", []edit{onlyLooks, recordsLast,
		{"idem.Store.Do", `complete(tx, req, answer.Body)`, ``},
		{"idem.Store.Do", `return answer, nil`, `
	late, err := s.begin(ctx, req)
	if err != nil {
		return answer, err
	}
	complete(late, req, answer.Body)
	return answer, late.Commit(ctx)`}}},
	{"epoch-before-key", "TestEpochBeforeKey", []edit{
		{"messages.judge.judge", `key := d.requestKey()`, `if d.Epoch < f.epoch-j.window {
		return Result{Err: &EpochMismatchError{Epoch: d.Epoch, Current: f.epoch}}
	}
	key := d.requestKey()`}}},
	{"member-before-key", "TestMemberBeforeKey", []edit{
		{"messages.judge.judge", `key := d.requestKey()`, `if f.membership == former {
		return Result{Err: ErrNotMember}
	}
	key := d.requestKey()`}}},
	{"member-before-key (leave)", "TestMemberBeforeKey", []edit{
		{"convos.Leave", `return Advanced{Epoch: *c.leftEpoch}, nil`, `return Advanced{}, ErrNotMember`}}},
	{"cached-401", "TestCached401", []edit{
		{"idem.Store.Do", `answer.Body, err = effect(ctx, tx); err != nil {`, `answer.Body, err = effect(ctx, tx); err != nil {
		complete(tx, req, []byte(err.Error()))
		_ = tx.Commit(ctx)`}}},
	{"hash-changed", "TestRequestHashes", []edit{
		{"idem.Content.Hash", `h := sha256.New()`, `h := sha256.New()
	h.Write([]byte("v2"))`},
		{"api.contentHash", `sha256.Sum256(*buf)`, `sha256.Sum256(append([]byte("v2"), *buf...))`}}},
	{"hash-changed (bytes with padding)", "TestRequestHashes", []edit{
		{"api/lexcodec.Bytes.AppendJSON", "return append(dst, `\"}`...)", "return append(dst, `=\"}`...)"}}},
	{"hash-changed (what is stored)", "TestStoredHashes", []edit{
		{"api.handlers.write", `Input: input`, `Input: append(input[:len(input):len(input)], idem.Field{Name: "method", JSON: []byte("1")})`}}},
	{"hash-changed (push)", "push.TestJobHash", []edit{
		{"push.Job.content", `"job"`, `"id"`}}},
	{"no key, no retry", "TestOldClients", []edit{
		{"api.handlers.AddMembers", `key = input.DerivedKey()`, `key = "any"`},
		{"api.handlers.AddMembers", `return h.commit(c, convo, key,`, `return h.commit(c, convo, "",`}}},
	{"silence counts as success", "TestSilenceOfOldClients", []edit{
		{"welcome.Service.begin", `s.policy.OnExpiry == Consume`, `true`}}},
	{"a roster without a commit", "TestOldClients", []edit{
		{"convos.Add", `return Advanced{}, ErrCommitRequired`, `return Advanced{}, nil`}}},
	{"an alert that misses the first count", "cmd/mlsd.TestSeriesOfAlertsExist", []edit{
		{"api.Metrics.begin", `m.transitions.WithLabelValues(entity)`, `_ = entity`}}},
	{"swallowed-insert", "TestSwallowedInsert", []edit{
		{"idem.reserve", `tag, err := tx.Exec`, `attempt, err := tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	tag, err := attempt.Exec`},
		{"idem.reserve", `return err == nil && tag.RowsAffected() == 1, err`, `if err != nil {
		return true, attempt.Rollback(ctx)
	}
	return tag.RowsAffected() == 1, attempt.Commit(ctx)`}}},
	{"the COMMIT without the answer", "idem.TestReplayIsTheFirstAnswer", []edit{
		{"internal/pgpool.Transaction.Commit", `b.QueuedQueries = append(b.QueuedQueries, t.last)`, `_ = t.last`}}},
	{"a ROLLBACK taken for a COMMIT", "idem.TestWriteThatFailsAnywhere", []edit{
		{"internal/pgpool.Transaction.Commit", `tag.String() != "COMMIT"`, `tag.String() == ""`}}},
	{"sliding-midnight", "TestSlidingMidnight", []edit{
		{"idem.reserve", `clock_timestamp() + $7::interval`, `date_trunc('minute', clock_timestamp() + $7::interval - $7::interval)`}}},
	{"frozen-lease", "idem.TestFrozenLease", []edit{
		{"idem.Store.takeOver", `state = 'processing' AND lease_expires_at <= clock_timestamp()`, `state = 'processing' AND lease_expires_at <= now() - interval '1 hour'`}}},
	{"zombie (completion)", "idem.TestZombieFenced", []edit{
		{"idem.Store.finish", `SET state = 'completed' … fence = $5`, `SET state = 'completed', outcome = $6, response = $7, completed_at = clock_timestamp()
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence >= $5`}}},
	{"zombie (heartbeat)", "idem.TestHeartbeat", []edit{
		{"idem.Store.extend", `fence = $5`, `fence >= $5`}}},
	{"takeover-race", "idem.TestTakeoverRace", []edit{
		{"idem.Store.takeOver", `state = 'processing' AND lease_expires_at <= clock_timestamp()`, `state = 'processing'`}}},
	{"records without row-level security", "idem.TestRowLevelSecurity", []edit{
		{"idem.asCaller", `set_config('mlsd.caller', $1, true)`, `set_config('mlsd.maintenance', left($1, 0) || 'on', true)`}}},
	{"keys that never expire", "TestExpiredHeader", []edit{
		{"idem.reclaim", `expires_at <= clock_timestamp()`, `expires_at <= '-infinity'`}}},
	{"epoch-in-replay", "TestEpochInReplay", []edit{
		{"idem.Store.replay", `Body: rec.response`, `Body: []byte("{\"success\":true}")`}}},

	// Usage of keys, and lifetimes that are set
	{"callers without bound in memory", "internal/usage.TestMemoryIsBounded", []edit{
		{"internal/usage.top.add", `case len(t.entries) < t.limit:`, `case true:`}}},
	{"callers without bound in the table", "internal/usage.TestManyCallers", []edit{
		{"internal/usage/trim_callers.sql", `r.place > $2`, `r.place > 1000 * $2`}}},
	{"the newest callers win", "internal/usage.TestManyCallers", []edit{
		{"internal/usage.top.add", `e.caller, e.sum = c, sum{}`, `e.caller, e.sum, e.weight = c, sum{}, 1<<40`}}},
	{"many callers hide a steady one", "internal/usage.TestSteadyCaller", []edit{
		{"internal/usage/write_callers.sql", `coalesce(given_up.weight, 0)`, `0 * coalesce(given_up.weight, 0)`}}},
	{"requests of others are not counted", "internal/usage.TestManyCallers", []edit{
		{"internal/usage.top.add", `t.others[e.nsid] = t.others[e.nsid].plus(e.sum)`, ``}}},
	{"a row of the audit log for each conflict", "internal/usage.TestConflictsAreAudited", []edit{
		{"internal/usage.Counter.newConflicts", `c.audited[e.caller] || len(c.audited) == auditedPerHour`, `false`}}},
	{"a reused key leaves no trace", "idem.TestReuseIsAudited", []edit{
		{"idem.reclaim", `fence FROM reused`, `fence FROM reused WHERE false`}}},
	{"a lost key goes unnoticed", "internal/invariants.TestRepeatedMessages", []edit{
		{"internal/invariants.repeatedMessages", `HAVING count(*) > 1`, `HAVING count(*) > 2`}}},
	{"a lifetime below its floor", "cmd/mlsd.TestSettings", []edit{
		{"idem.Lifetimes.WithLives", `case d < o.Least.Life:`, `case d <= 0:`}}},
	{"a lifetime that is set and not used", "cmd/mlsd.TestLifetimesAreSet", []edit{
		{"api.routes", `p.recordLife = o.Life`, `_ = o`}}},

	// Welcomes
	{"second-fetch-410", "TestSecondFetch410", []edit{
		{"welcome.fetched.delivery", `case *f.state == Consumed:`, `case *f.state == Consumed, *f.state == InFlight:`}}},
	{"confirmed-nothing", "TestConfirmedNothing", []edit{
		{"welcome.confirmed.state", `case c.before == nil, !*c.fetched:`, `case c.before == nil:
		return Consumed, Success, nil
	case !*c.fetched:`}}},
	{"confirmed-nothing (unfetched)", "TestConfirmedNothing", []edit{
		{"welcome.confirmed.state", `case c.before == nil, !*c.fetched:`, `case c.before != nil && !*c.fetched:
		return Consumed, Success, nil
	case c.before == nil:`}}},
	{"sliding-grace", "TestSlidingGrace", []edit{
		{"welcome/openlease.sql", `chosen.state = 'available' AND state = 'available'`, `state IN ('available', 'in_flight')`}}},
	{"sliding-grace (after a wait)", "welcome.TestFetchAfterAWait", []edit{
		{"welcome.endLeases", `AND locked.grace_expires_at <= clock_timestamp()`, ``}}},
	{"a lease that is over is given again", "welcome.TestMachineFollowsTheModel", []edit{
		{"welcome/openlease.sql", `state = 'in_flight' AND grace_expires_at > clock_timestamp() AS leased`, `state = 'in_flight' AS leased`}}},
	{"any-device", "TestAnyDevice", []edit{
		{"welcome/openlease.sql", `opened AS (`, `others AS (
		UPDATE welcomes SET state = 'consumed', confirmed_at = clock_timestamp()
		WHERE convo_id = $1 AND recipient_did = $2 AND id <> (SELECT id FROM chosen)
	), opened AS (`}}},
	{"gc-kills-welcome", "TestGCKillsWelcome", []edit{
		{"welcome/openlease.sql", `epoch = chosen.epoch`, `epoch = chosen.epoch AND EXISTS (
			SELECT FROM key_packages WHERE did = $2 AND ref = chosen.key_package_ref)`}}},
	{"confirmed in another's name", "welcome.TestConfirmedTogether", []edit{
		{"welcome/confirm.sql", `set_config('mlsd.caller', $2::text, true)`, `set_config('mlsd.caller', left($2::text, 0), true)`}}},
	{"a locked Welcome is waited for", "welcome.TestFirstAttempt", []edit{
		{"welcome/confirm.sql", `FOR UPDATE SKIP LOCKED`, `FOR UPDATE`}}},
	{"a stranger's confirmation", "welcome.TestFirstAttempt", []edit{
		{"welcome/confirm.sql", `AND (SELECT member FROM recipient)`, ``}}},
	{"an expired lease is confirmed", "welcome.TestFirstAttempt", []edit{
		{"welcome/confirm.sql", `AND grace_expires_at > clock_timestamp()`, ``}}},
	{"poison for all (Welcomes)", "welcome.TestPoisonedConfirmation", []edit{
		{"welcome.attempt", `case n > 1:`, `case n > 0:`}}},
	{"failures forgotten", "welcome.TestFailuresStay", []edit{ // E10, S2
		{"welcome/openlease.sql", `last_error = NULL`, `last_error = NULL, failures = 0, last_failure = NULL, last_failed_at = NULL`}}},
	{"failures not audited", "welcome.TestFailuresStay", []edit{ // S2
		{"welcome/confirm.sql", `FROM confirmed WHERE failed`, `FROM confirmed WHERE false`}}},
	{"a failure's retry is counted", "welcome.TestFailuresStay", []edit{ // S2
		{"welcome/confirm.sql", `NOT $6::boolean AND last_error IS NULL AS failed`, `NOT $6::boolean AS failed`}}},
	{"silence taken for a confirmation", "TestReplacedLeaf", []edit{ // S6
		{"convos/standing.sql", `AND NOT w.silent`, ``}}},
	{"an invited member is lost for good", "TestReplacedLeaf", []edit{ // S6
		{"convos.locked.replaceable", `case p.Joined || !p.Invited`, `case p.Joined || !p.Invited || p.DID != ""`}}},
	{"a joined member is replaced", "TestNotReplaced", []edit{ // S6
		{"convos.locked.replaceable", `case p.Joined || !p.Invited`, `case !p.Invited`}}},
	{"a leaf stays beside its replacement", "TestNotReplaced", []edit{ // S6
		{"convos.verdict.checkReplaced", `m.DID() == did.String() && !fresh`, `m.DID() == "" && !fresh`}}},
	{"the old Welcome outlives its leaf", "TestReplacedLeaf", []edit{ // S6
		{"convos.verdict.superseded", `for _, did := range replaced {`, `for _, did := range replaced[:0] {`},
		{"convos.verdict.superseded", `for _, m := range v.change.Removes {`, `for _, m := range v.change.Removes[:0] {`}}},
	{"confirmed while it is replaced", "convos.TestConfirmedWhileReplaced", []edit{ // S6
		{"welcome.Lock", `FOR UPDATE`, ``}}},
	{"stale-welcome", "TestStaleWelcome", []edit{
		{"welcome.Add", `AS r (id, did, device_id, ref)`, `AS r (id, did, device_id, ref)
		WHERE NOT EXISTS (SELECT FROM welcomes w WHERE w.convo_id = $1 AND w.recipient_did = r.did)`}}},
	{"first-recipient-only", "TestFirstRecipientOnly", []edit{
		{"welcome.Add", `n := len(to)`, `to = to[:1]; n := len(to)`}}},

	// Epochs and membership
	{"self-read-cas", "TestSelfReadCAS", []edit{
		{"convos.locked.checkCommit", `int64(h.Epoch) != c.epoch`, `int64(h.Epoch) > c.epoch`}}},
	{"max-plus-one", "TestMaxPlusOne", []edit{
		{"messages.waitForConvos", `FOR NO KEY UPDATE`, ``},
		{"messages.lockAndRead", `FOR NO KEY UPDATE SKIP LOCKED`, ``}}},
	{"epoch-zero", "TestEpochZero", []edit{
		{"convos.NewConvo.judge", `epoch = 1`, `epoch = 0`},
		{"convos.NewConvo.judge", `epoch == 0 && n.Welcome != nil`, `epoch < 0`}}},
	{"off-by-one", "TestOffByOne", []edit{
		{"convos.locked.advance", `Hash: p.Hash, Epoch: next`, `Hash: p.Hash, Epoch: c.epoch`}}},
	{"off-by-one (range)", "TestOffByOne", []edit{
		{"messages.Commits", `epoch BETWEEN $2 AND $3`, `epoch > $2 AND epoch <= $3`}}},
	{"group-info-late", "TestGroupInfoLate", []edit{
		{"convos.locked.advance", `v.group, p.GroupInfo`, `v.group, nil`}}},
	{"open-join", "TestOpenJoin", []edit{
		{"convos.lockConvo", `if !known {`, `if !known && caller == "" {`},
		{"convos.lockConvo", `return row.Scan(&c.leftEpoch)`, `
			if err := row.Scan(&c.leftEpoch); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return nil`}}},
	{"open-join (another's device)", "TestOpenJoin", []edit{
		{"convos.rights.add", `if m.DID() == by.String()`, `if r.joins || m.DID() == by.String()`}}},
	{"self-rejoin", "TestSelfRejoin", []edit{
		{"convos.submit", `if c.leftEpoch != nil {`, `if c.leftEpoch != nil && !allowed.joins {`}}},
	{"group-info-open", "TestGroupInfoOpen", []edit{
		{"convos.GroupInfoOf", `m.did = $2`, `m.did <> $2`}}},
	{"forged sender", "TestVerifiedCommit", []edit{
		{"convos.checkSender", `sender.DID() != by.String()`, `sender.DID() == ""`}}},
	{"unverified commit", "TestVerifiedCommit", []edit{
		{"convos.locked.judgePublic", `case errors.Is(err, mls.ErrUnsupported):`, `case errors.Is(err, mls.ErrUnsupported) || errors.Is(err, mls.ErrBadSignature):`}}},
	{"the roster is not the commit's", "TestVerifiedCommit", []edit{
		{"convos.locked.judgePublic", `range change.Adds { if a.KeyPackage != nil`, `range change.Adds[:0] { if a.KeyPackage != nil`},
		{"convos.locked.judgePublic", `return v, c.permit(ctx, tx, by, change, allowed)`, `v.all = false; return v, nil`}}},
	{"poisoned tree", "TestWrongWord", []edit{
		{"convos.locked.judgePublic", `before.vouchedBy != ""`, `before.vouchedBy == "nobody"`}}},
	{"ghost device", "TestGhost", []edit{
		{"convos.verdict.checkRecipients", `a.DID() != by.String() && !welcomed`, `a.DID() == "" && !welcomed`}}},
	{"starvation", "TestNobodyStarves", []edit{
		{"convos.lockConvo", `reserved_for <> $2`, `reserved_for = $2`}}},

	// What real clients send (M1, M2, M3)
	{"SelfRemove is opaque (M1)", "TestSelfRemove", []edit{
		{"mls.reader.proposal", `case ProposalSelfRemove:`, `case 0xffff:`}}},
	{"SelfRemove by value (M1)", "TestSelfRemove", []edit{
		{"mls.reader.proposalOrRef", `case t == ProposalSelfRemove:`, `case t == 0xffff:`}}},
	{"no SelfRemove in external commits (M1)", "TestSelfRemoveInExternalCommit", []edit{
		{"convos.locked.permitRemoves", `case did == by.String(), m.Own:`, `case did == by.String():`}}},
	{"a member that does not know SelfRemove (M1)", "mls.TestSelfRemoveSupport", []edit{
		{"mls.applier.checkProposals", `if n[ProposalSelfRemove] > 0 {`, `if n[ProposalSelfRemove] > all {`}}},
	{"custom proposals refused (M2)", "TestCustomProposal", []edit{
		{"mls.reader.proposal", `p.Opaque = true`, `r.fail(ErrUnsupported, "proposal_type", "unknown")`}}},
	{"a custom proposal's signature unchecked (M2)", "TestCustomProposal", []edit{
		{"mls.applier.resolve", `if err := a.verifier.verify(m); err != nil {`, `if err := a.verifier.verify(m); err != nil && !m.Proposal.Opaque {`}}},
	{"a custom proposal is ignored (M2)", "TestCustomProposal", []edit{
		{"mls.applier.resolve", `if sent.Opaque {`, `if sent.Opaque {
			continue
		}
		if sent.Opaque {`}}},
	{"ReInit closes nothing (M3)", "TestReInitCloses", []edit{
		{"convos.locked.advance", `closed_at = CASE WHEN $4::bytea IS NOT NULL THEN clock_timestamp() END`, `closed_at = NULL`}}},
	{"messages in a closed convo (M3)", "TestReInitCloses", []edit{
		{"messages.judge.judge", `case f.closed:`, `case f.closed && f.epoch < 0:`}}},
	{"commits in a closed convo (M3)", "TestReInitCloses", []edit{
		{"convos.submit", `if c.closed {`, `if c.closed && c.epoch < 0 {`}}},
	{"closed before the key (M3)", "TestReInitCloses", []edit{
		{"messages.judge.judge", `key := d.requestKey()`, `if f.closed {
		return Result{Err: ErrConvoClosed}
	}
	key := d.requestKey()`}}},
	{"anyone is an external sender (M5)", "TestExternalProposal", []edit{
		{"convos.checkExternalSender", `case did != d.Sender.String():`, `case did == "":`}}},
	{"member-list-leak", "TestMemberListLeak", []edit{
		{"convos.Create", `if !inserted { return Convo{}, ErrGroupAlreadyExists`, `if !inserted {
		var existing uuid.UUID
		var creator syntax.DID
		err := tx.QueryRow(ctx, "SELECT id, creator_did FROM convos WHERE group_id = $1", n.GroupID).Scan(&existing, &creator)
		if err != nil {
			return Convo{}, err
		}
		return Get(ctx, tx, existing, creator)`}}},
	{"sub-impersonation", "TestSubImpersonation", []edit{
		{"internal/serviceauth.parseClaims", `iss, ok := parseIssuer(r.Iss)`, `var all map[string]any
	_ = json.Unmarshal(b, &all)
	iss, ok := parseIssuer(r.Iss)`},
		{"internal/serviceauth.parseClaims", `if r.Nbf != nil {`, `if sub, is := all["sub"].(string); is {
		c.sub = syntax.DID(sub)
	}
	if r.Nbf != nil {`},
		{"internal/serviceauth.claims", `iat, nbf, exp int64`, `sub syntax.DID; iat, nbf, exp int64`},
		{"internal/serviceauth.Validator.Validate", `return Verified{Caller: c.iss`, `if c.sub != "" {
		c.iss = c.sub
	}
	return Verified{Caller: c.iss`}}},
	{"removed member reads on", "TestRemovedMemberReadsNothing", []edit{
		{"convos.Authorise", `if left {`, `if left && m.Epoch < 0 {`}}},
	{"removed member reads on (messages)", "TestRemovedMemberReadsNothing", []edit{
		{"messages.reading.admit", `if left {`, `if left && last < 0 {`},
		{"messages/page_small.sql", `AND me.left_at IS NULL`, ``}}},
	{"member reads from before it joined", "TestRemovedMemberReadsNothing", []edit{
		{"messages/page_small.sql", `greatest(me.joined_seq, $3::bigint + 1)`, `$3::bigint + 1`}}},
	{"page without its membership", "TestStrangers", []edit{
		{"messages/page_small.sql", `me.did = $2`, `me.role = 'creator' AND $2::text <> ''`}}},

	// Cursors
	{"a cursor goes back", "convos.TestCursorsTogether", []edit{
		{"convos/movecursors.sql", `a.furthest > a.cursor_seq`, `a.furthest <> a.cursor_seq`},
		{"convos/movecursors.sql", `m.cursor_seq < h.furthest`, `m.cursor_seq <> h.furthest`}}},
	{"a stranger's cursor", "convos.TestCursorRefusals", []edit{
		{"convos/movecursors.sql", `c.id IS NULL OR m.did IS NULL THEN 'convo-not-found'`, `c.id IS NULL THEN 'convo-not-found' WHEN m.did IS NULL THEN 'not-member'`}}},
	{"a cursor ahead of the log", "convos.TestCursorRefusals", []edit{
		{"convos/movecursors.sql", `a.seq > c.last_seq`, `a.seq > c.last_seq + 1`}}},
	{"a refused cursor counts", "convos.TestCursorsTogether", []edit{
		{"convos/movecursors.sql", `FILTER (WHERE status = 'moved')`, ``}}},
	{"a busy cursor is waited for", "convos.TestBusyCursor", []edit{
		{"convos/movecursors.sql", `FOR NO KEY UPDATE SKIP LOCKED`, `FOR NO KEY UPDATE`}}},
	{"poison for all (cursors)", "convos.TestPoisonedCursor", []edit{
		{"convos.Cursors.Update", `case err != nil, r.status == cursorBusy:`, `case r.status == cursorBusy:`}}},

	// KeyPackages
	{"double-claim", "TestDoubleClaim", []edit{
		{"keypackages/claim.sql", `FOR UPDATE SKIP LOCKED`, ``}}},
	{"double-claim (lapsed)", "TestOrphanedClaim", []edit{
		{"keypackages/end_claims.sql", `SET state = 'orphaned'`, `SET state = 'available', claimed_by = NULL`}}},
	{"drain", "TestDrain", []edit{
		{"keypackages/claim.sql", `>= $8 AS limited`, `>= $8 + 1000000 AS limited`}}},
	{"drain (at once)", "TestDrain", []edit{
		{"keypackages.Claim", `batch.Queue(lockCaller, r.Caller)`, ``}}},
	{"last resort beside a one-time KeyPackage", "keypackages.TestLastResort", []edit{
		{"keypackages/claim.sql", `AND NOT EXISTS (SELECT FROM claimed c WHERE (c.did, c.device_id) = (k.did, k.device_id))`, ``}}},
	{"expired-served", "TestExpiredServed", []edit{
		{"keypackages/claim.sql", `NOT last_resort AND not_after > clock_timestamp() AND ($2`, `NOT last_resort AND ($2`},
		{"keypackages/claim.sql", `NOT last_resort AND not_after > clock_timestamp() ORDER`, `NOT last_resort ORDER`}}},
	{"expired-served (last resort)", "TestExpiredServed", []edit{
		{"keypackages/claim.sql", `'available' AND last_resort AND not_after > clock_timestamp()`, `'available' AND last_resort`}}},
	{"locked-last-resort", "TestLockedLastResort", []edit{
		{"keypackages/claim.sql", `FROM key_packages k`, `FROM (SELECT * FROM key_packages FOR UPDATE SKIP LOCKED) k`}}},

	// Messages
	{"blind retry", "messages.TestUnknownOutcome", []edit{
		{"messages.worthAnotherTry", `return code == "40P01" || code == "40001"`, `return code != "40P01"`}}},
	{"a lost COMMIT is a failed one", "messages.TestLostCommit", []edit{
		{"messages.Log.transact", `pgpool.OutcomeUnknown(err) {`, `pgpool.OutcomeUnknown(err) && err == nil {`}}},
	{"a lost COMMIT loses its refusals", "messages.TestLostBatch", []edit{
		{"messages.Log.resolve", `results[i].Err != nil && !(conflict && missing[d.requestKey()])`, `results[i].Replayed && !conflict`}}},
	{"a lost message conflicts", "messages.TestConflictWithLostMessage", []edit{
		{"messages.Log.resolve", `!(conflict && missing[d.requestKey()])`, `!(conflict && len(missing) == 0)`}}},
	{"judged by an old snapshot", "messages.TestChangedBetweenSnapshotAndLock", []edit{
		{"messages.lockAndRead", `d.version IN (SELECT version FROM locked)`, `d.convo_id IN (SELECT id FROM locked)`},
		{"messages.lockAndRead", `SELECT ctid AS version FROM convos`, `SELECT id, ctid AS version FROM convos`}}},
	{"a change of the roster leaves the convo's row alone", "convos.TestCommitWithoutEvent", []edit{
		{"convos.locked.removeFromRoster", `, updated AS ( … ) INSERT INTO outbox`, ` INSERT INTO outbox`}}},
	{"a sender joins a busy convo", "messages.TestJoinedMeanwhile", []edit{
		{"messages.Log.prepare", `wait && all[i].busy()`, `wait && all[i].busy() && at.IsZero()`}}},
	{"another's row for one's own", "messages.TestLostBatch", []edit{
		{"messages.Log.lookup", `r.request_hash = d.hash`, `r.request_hash IS NOT NULL`}}},
	{"answered before the COMMIT", "messages.TestPoisonedDraft", []edit{
		{"messages.Log.commit", `err = tx.CommitAfter(`, `_ = tx.CommitAfter(`}}},
	{"poison for all", "messages.TestPoisonedDraft", []edit{
		{"messages.Log.write", `n > 0 && invalidDraft(err)`, `n > len(drafts) && invalidDraft(err)`}}},
	{"appended without the lock", "messages.TestJudge", []edit{
		{"messages.facts.busy", `f.membership == current && !f.locked`, `f.membership == current && !f.locked && f.groupID == nil`}}},
	{"nobody waits for a busy convo", "messages.TestSameKeyRunning", []edit{
		{"messages.waitForConvos", `FOR NO KEY UPDATE`, `FOR NO KEY UPDATE SKIP LOCKED`}}},
	{"a former member waits for the convo", "messages.TestStrangersDoNotWait", []edit{
		{"messages.waitForConvos", `AND left_at IS NULL`, ``}}},
	{"the log stands still", "messages.TestConcurrentBatches", []edit{
		{"messages.appendEntries", `, advanced AS ( … ) INSERT INTO push_convos`, ` INSERT INTO push_convos`}}},
	{"two messages of one batch have one seq", "messages.TestJudge", []edit{
		{"messages.judge.judge", `max(j.lastSeq[d.ConvoID], f.lastSeq) + 1`, `f.lastSeq + 1`}}},
	{"a batch appends a repetition", "messages.TestJudge", []edit{
		{"messages.judge.judge", `e, ok := j.written[key]; ok {`, `e, ok := j.written[key]; ok && j.at.IsZero() {`}}},
	{"a repetition in the batch is a conflict", "messages.TestBatchIsJudgedRowByRow", []edit{
		{"messages.entry.recorded", `hash: e.Hash[:]`, `hash: e.Body`}}},
	{"a conflict names the wrong fields", "messages.TestBatchIsJudgedRowByRow", []edit{
		{"messages.recorded.differing", `if !r.sameBody(d.Body) {`, `if r.sameBody(d.Body) {`}}},
	{"a busy convo fails its neighbours", "messages.TestBusyConvoHoldsUpNoOther", []edit{
		{"messages.Log.failure", `, pgpool.LockTimeout(err) && !wait:`, `:`}}},
	{"running is busy", "messages.TestSameKeyRunning", []edit{
		{"messages.Log.running", `return pgpool.LockTimeout(err)`, `return pgpool.Code(err) == "" && err != nil`}}},
	{"busy is running", "messages.TestSameKeyRunning", []edit{
		{"messages.Log.running", `return pgpool.LockTimeout(err)`, `return err == nil || pgpool.LockTimeout(err)`}}},
	{"the queue keeps a caller that left", "messages.TestCallerHangsUp", []edit{
		{"messages.batcher.cancel", `slices.Index(ln.queue, s); i >= 0`, `slices.Index(ln.queue, s); i > len(ln.queue)`}}},
	{"unbounded queue", "messages.TestQueueIsBounded", []edit{
		{"messages.batcher.enqueue", `if b.queued > 0 &&`, `if b.queued < 0 &&`}}},
	{"a stranger waits in the lane", "messages.TestStrangerPassesTheLane", []edit{
		{"messages.batcher.enqueue", `b.push(ln, s)`, `if busy := b.busy[s.ConvoID]; busy != nil { ln = busy }; b.push(ln, s)`}}},
	{"one shard", "messages.TestOtherShardGoesOn", []edit{
		{"messages.batcher.shardOf", `uint64(len(b.shards))`, `uint64(len(b.shards)/2)`}}},
	{"commits expire", "messages.TestExpiry", []edit{
		{"messages/expire_batch.sql", `AND m.seq <= p.upto AND m.kind = 1`, `AND m.seq <= p.upto`}}},
	{"a hole in the log", "messages.TestExpiryInOrder", []edit{
		{"messages/expire_batch.sql", `bool_and(created_at < $2) OVER (ORDER BY seq)`, `created_at < $2`}}},
	{"the expirer begins again", "messages.TestExpirerGoesOn", []edit{
		{"messages.Expirer.RunOnce", `for {`, `e.after = uuid.UUID{}; for {`}}},
	{"an expired cursor is none", "messages.TestExpiry", []edit{
		{"messages.reading.admit", `at := timeOf(*r.Behind)`, `var at time.Time`}}},
	{"any cursor has expired", "messages.TestExpiry", []edit{
		{"messages.reading.admit", `if r.seqs.id(r.cursor, at) != *r.Behind {`, `if at.IsZero() {`}}},
	{"a token twice in one call", "internal/serviceauth.TestUsesOfOneCall", []edit{
		{"internal/serviceauth.UsedTokens.record", `delete(first, s.token)`, ``}}},
	{"a used token sends", "messages.TestTokens", []edit{
		{"messages.judge.judge", `if !f.fresh ||`, `if`}}},
	{"a used token is fresh again", "messages.TestTokens", []edit{
		{"messages.lockAndRead", `d.token IN (SELECT token FROM fresh)`, `d.token IS NOT NULL`}}},
	{"two messages of one batch have one token", "messages.TestTokens", []edit{
		{"messages.judge.judge", `|| j.used[f.token]`, ``}}},
	{"a repeated draft keeps its token", "messages.TestFirstRequestHasAUsedToken", []edit{
		{"messages.judge.judge", `if d.Token != nil {`, `if e, ok := j.written[d.requestKey()]; ok {
		return j.repetition(d, e.recorded(j.at))
	}
	if d.Token != nil {`}}},
	{"a busy convo's messages are refused for their own tokens", "messages.TestTokenOfBusyConvo", []edit{
		{"messages.lockAndRead", `AND (is_former IS NOT FALSE OR version IN (SELECT version FROM locked))`, ``}}},
	{"a rolled-back draft uses its token", "messages.TestTokenOfBusyConvo", []edit{
		{"messages.batcher.runOnce", `b.enqueueBusy(batch[i])`, `batch[i].Token = nil; b.enqueueBusy(batch[i])`}}},
	{"a transaction for each request of a key", "messages.TestManyRefusalsUnderOneKey", []edit{
		{"messages.Log.write", `results, err := l.transact(ctx, drafts, wait)`, `for i := range drafts {
		if slices.ContainsFunc(drafts[:i], func(d Draft) bool { return d.requestKey() == drafts[i].requestKey() }) {
			return append(l.write(ctx, drafts[:i], wait), l.write(ctx, drafts[i:], wait)...)
		}
	}
	results, err := l.transact(ctx, drafts, wait)`}}},
	{"the token is not used", "api.TestTokenIsUsedOnce", []edit{
		{"api.handlers.SendMessage", `, Token: c.token`, ``}}},
	{"messages wait for other tokens", "internal/serviceauth.TestUrgent", []edit{
		{"internal/serviceauth.Validator.verify", `tok.claims.lxm == v.urgent.String()`, `tok == nil`}}},
	{"messages wait for the memory of pages", "api.TestPagesLeaveMemory", []edit{
		{"api.memory.forAnswer", `m.smallAnswers`, `m.largeAnswers`}}},

	// Events
	{"bigserial-gap", "events.TestBigserialGap", []edit{
		{"events.Sequencer.step", `FROM outbox ORDER BY id LIMIT $1`, `FROM outbox WHERE id > (SELECT coalesce(max(stream_seq), 0) FROM events) ORDER BY id LIMIT $1`}}},
	{"catchup-fills-live", "events.TestCatchupFillsLive", []edit{
		{"events.Subscription.advance", `s.mu.Unlock() if len(page) > 0 {`, `if s.queued > s.hub.buffer {
		s.fail(ErrConsumerTooSlow)
	}
	s.mu.Unlock()
	if len(page) > 0 {`}}},
	{"lag-dropped", "events.TestLagDropped", []edit{
		{"events.Hub.offer", `h.detach(s) s.position = e.StreamSeq - 1`, ``}}},
	{"per-type-cursor", "events.TestPerTypeCursor", []edit{
		{"events.catchUp.page", `page, total := found, 0`, `
	slices.SortStableFunc(found, func(a, b *Event) int { return cmp.Compare(a.Kind, b.Kind) })
	page, total := found, 0`}}},
	{"late-convo", "events.TestLateConvo", []edit{
		{"events.Hub.publishMembership", `h.addConvo(s, e.ConvoID)`, ``}}},
	{"one-leader-lost", "events.TestOneLeaderLost", []edit{
		{"events.Sequencer.round", `time.Since(s.tried) >= electEvery`, `s.tried.IsZero()`}}},
	{"removed-still-streams", "events.TestRemovedStillStreams", []edit{
		{"events.Hub.publishMembership", `if joined {`, `if joined || !joined {`}}},
	{"removed-still-streams (catching up)", "events.TestRemovedStillStreams", []edit{
		{"events.catchUp.replay", `membership{ch.convo, from, ch.at}`, `membership{ch.convo, from, c.upto}`}}},
	{"the roster is not the stream", "events.TestLateMembership", []edit{
		{"events.Subscription.begin", `c.rewind(changes)`, ``}}},
	{"a gap before the live events", "events.TestSixteenWriters", []edit{
		{"events.Hub.attach", `if since > 0 {`, `if since > 1<<20 {`}}},
	{"a filter hides a device", "events.TestWhoCountsAsConnected", []edit{
		{"events.Hub.Subscribe", `if r.Convos != nil { s.device`, `if r.Convos != nil && r.DeviceID == "" { s.device`}}},
	{"a reader of the table stops the stream", "events.TestReaderOfTheTable", []edit{
		{"events.Sequencer.round", `s.maintainDue = time.Now().Add(maintainAgain)`, `s.maintainDue = time.Now().Add(maintainAgain); return 0, err`}}},
	{"days are dropped in silence", "events.TestDroppedWhileCatchingUp", []edit{
		{"events.catchUp.page", `if first > c.position+1 {`, `if first > c.position+1 && first < 0 {`}}},
	{"commit-without-event", "convos.TestCommitWithoutEvent", []edit{
		{"messages.AppendCommit", `, outboxed AS ( … ) SELECT seq`, ` SELECT seq`}}},

	// Push
	{"lost-fanout", "push.TestLostFanout", []edit{
		{"messages.appendEntries", `WHERE kind = 1 AND EXISTS`, `WHERE kind = 4 AND EXISTS`},
		{"messages.Log.transact", `return results, nil`, `for _, d := range drafts {
		_, err := l.db.Exec(ctx, "INSERT INTO push_convos VALUES ($1, $2, now()) ON CONFLICT DO NOTHING", d.ConvoID, d.Sender)
		if err != nil {
			return nil, err
		}
	}
	return results, nil`}}},
	{"connected to a stream that stands still", "push.TestNothingWasSent", []edit{
		{"push.Worker.take", `next_attempt_at <= now() - $3::interval`, `$3::interval IS NULL`},
		{"events.Presence.renew", `(SELECT created_at FROM outbox ORDER BY id LIMIT 1)`, `clock_timestamp()`}}},
	{"pushed before the commit", "push.TestFanoutDuringCommit", []edit{
		{"messages.appendEntries", `DO UPDATE SET sender_did = excluded.sender_did WHERE false`, `DO NOTHING`}}},
	{"pushed before the commit (looked at first)", "push.TestFanoutDuringCommit", []edit{
		{"messages.appendEntries", `EXISTS (SELECT FROM push_targets)`, `EXISTS (SELECT FROM push_targets) AND NOT EXISTS (
			SELECT FROM push_convos p WHERE (p.convo_id, p.sender_did) = (appended.convo_id, appended.sender_did))`}}},
	{"pushed before the commit (Welcome)", "push.TestJobDuringDeposit", []edit{
		{"push/enqueue.sql", `DO UPDATE SET … push_jobs.reason <> 'welcome'`, `DO NOTHING`}}},
	{"a heard job takes in a newer one", "push.TestNewerJobSupersedes", []edit{
		{"push.Worker.postpone", `EXISTS (SELECT FROM newer) THEN 'done'`, `EXISTS (SELECT FROM newer) THEN state`},
		{"push.Worker.postpone", `CASE WHEN EXISTS (SELECT FROM newer) THEN clock_timestamp() END`, `NULL`}}},
	{"connected devices are skipped", "push.TestMessageDuringDeferral", []edit{
		{"push/enqueue.sql", `) d ORDER BY`, `) d WHERE NOT connected ORDER BY`}}},
	{"a deferral is not prolonged", "push.TestMessageDuringDeferral", []edit{
		{"push/enqueue.sql", `WHERE push_jobs.heard_by IS NOT NULL OR excluded`, `WHERE excluded`}}},
	{"presence outlives its lease", "push.TestPresenceHidesNothingLongerThanItsLease", []edit{
		{"push/enqueue.sql", `n.lease_expires_at > clock_timestamp() AND`, ``},
		{"push.CallDisconnected", `n.lease_expires_at > clock_timestamp() AND`, ``},
		{"push.Worker.endConnected", `n.lease_expires_at > clock_timestamp() AND`, ``},
		{"push.Worker.take", `n.lease_expires_at > clock_timestamp() AND`, ``}}},
	{"a connection counts as delivery", "push.TestPresenceHidesNothingLongerThanItsLease", []edit{
		{"push.Worker.endConnected", `n.synced_at - $3::interval >= d.heard_by`, `$3::interval IS NOT NULL`}}},
	{"a connection counts too early", "push.TestLateConnection", []edit{
		{"push.Worker.endConnected", `p.since <= d.heard_by - $2::interval`, `$2::interval IS NOT NULL`},
		{"push.Worker.take", `p.since <= d.heard_by - $4::interval`, `$4::interval IS NOT NULL`}}},
	{"a lapsed lease is renewed", "push.TestNodeThatSlept", []edit{
		{"events.Presence.renew", `AND lease_expires_at > clock_timestamp()`, ``}}},

	// Clients
	{"a parameter's former name is not read", "TestFormerNameOfMessageType", []edit{
		{"api.params", `!query.Has(present) && query.Has(former)`, `present == former`}}},
	{"a parameter's former name comes first", "TestFormerNameOfMessageType", []edit{
		{"api.params", `!query.Has(present) && query.Has(former)`, `query.Has(former)`}}},
}
