package main

// mutant is a bug that a server had, put back.
type mutant struct {
	name  string // of the bug, with what it is put into where there are several
	test  string // that fails, or a subtest of it: of package api, or of the package before the dot
	edits []edit
}

// edit replaces a text that stands exactly once in a declaration. The package comment says how to
// write one. An ellipsis in the new text is the replaced text.
type edit struct{ in, old, new string }

// onlyLooks makes reserve look whether the key is free, and take nothing.
var onlyLooks = edit{"idem.reserve", `hash := req.Input.Hash() … return err == nil && tag.RowsAffected() == 1, err`,
	`_, err := lookup(ctx, tx, req); if errors.Is(err, pgx.ErrNoRows) { return true, nil }; return false, err`}

// recordsLast makes complete insert the record that reserve did not.
var recordsLast = edit{"idem.complete", `tx.ExecLast(… response)`, `hash := req.Input.Hash()
	tx.ExecLast("INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at, expires_at)" +
		" VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp(), clock_timestamp() + $8::interval) ON CONFLICT DO NOTHING",
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), response, req.life())`}

// recordAfter inserts the record in a transaction of its own, after the write.
var recordAfter = []edit{onlyLooks, recordsLast,
	{"idem.Store.Do", `complete(tx, req, answer.Body)`, ``},
	{"idem.Store.Do", `return answer, nil`, `late, err := s.begin(ctx, req)
	if err != nil { return answer, err }
	complete(late, req, answer.Body)
	return answer, late.Commit(ctx)`}}

// oldSnapshot reads the convos of a batch before it locks them.
var oldSnapshot = []edit{
	{"messages.transaction.queueReads", `batch.Queue(lock, args...).Query(t.readConvos)`, ``},
	{"messages.transaction.queueReads", `var tokens pgpool.Array[pgpool.UUID]`,
		`batch.Queue(lock, args...).Query(t.readConvos); …`}}

var mutants = []mutant{
	// Idempotency
	{"replay-before-auth", "TestReplayBeforeAuth", []edit{
		{"api.Server.admit", `return verified, err } cl.caller, cl.token = token.Caller, &token`, `var claims struct{ Iss syntax.DID }
		raw, _ := base64.RawURLEncoding.DecodeString(strings.Split(authorization+"..", ".")[1])
		if json.Unmarshal(raw, &claims) == nil { cl.caller = claims.Iss; return true, nil }
		…`}}},
	{"global-key", "TestGlobalKey", []edit{
		{"api.handlers.write", `Caller: c.caller`, `Caller: "did:web:everyone.example"`}}},
	{"global-key (messages)", "TestGlobalKey", []edit{
		{"messages.readStates", `sender_did = d.sender_did AND idempotency_key`, `idempotency_key`}}},
	{"body-ignored", "TestBodyIgnored", []edit{
		{"idem.record.conflict", `bytes.Equal(r.requestHash, hash[:])`, `bytes.Equal(hash[:], hash[:])`}}},
	{"body-ignored (messages)", "TestBodyIgnored", []edit{
		{"messages.recorded.repetition", `bytes.Equal(r.hash, d.Hash[:])`, `len(r.hash) > 0`}}},
	{"no second guard (convos)", "TestRawSecondInsert", []edit{
		{"migrations/000001_baseline.up.sql", `CREATE UNIQUE INDEX convos_idempotency_key`, `CREATE INDEX convos_idempotency_key`}}},
	{"a key is never free again", "TestKeyIsRetiredWithItsRecord", []edit{
		{"idem.Store.claim", `err = s.retire(ctx, tx, []UsedKey{{Caller: req.Caller.String(), NSID: req.NSID, Scope: req.Scope, Key: req.Key}})`, ``}}},
	{"check-then-run", "TestCheckThenRun", []edit{onlyLooks, recordsLast}},
	{"record-after", "TestRecordAfter", recordAfter},
	{"epoch-before-key", "TestEpochBeforeKey", []edit{
		{"messages.judge", `case s.recorded != nil:`, `case s.convo != nil && d.Epoch < s.convo.epoch-window:
			return &Result{Err: &EpochMismatchError{Epoch: d.Epoch, Current: s.convo.epoch}}; …`}}},
	{"member-before-key", "TestMemberBeforeKey", []edit{
		{"messages.judge", `case s.recorded != nil:`, `case s.hasLeft: return &Result{Err: ErrNotMember}; …`}}},
	{"cached-401", "TestCached401", []edit{
		{"idem.Store.Do", `answer.Body, err = effect(ctx, tx); err != nil {`,
			`… complete(tx, req, []byte(err.Error())); _ = tx.Commit(ctx)`}}},
	{"one hash for two requests", "TestDifferentRequestsHaveDifferentHashes", []edit{
		{"idem.Content.Hash", `h.Write(f.JSON)`, `h.Write(f.JSON[:min(len(f.JSON), 12)])`}}},
	{"hash-changed", "TestRequestHashes", []edit{
		{"idem.Content.Hash", `h := sha256.New()`, `…; h.Write([]byte("v2"))`}}},
	{"no key, no retry", "TestOldClients", []edit{
		{"api.handlers.AddMembers", `key = input.KeyOr(key)`, `key = cmp.Or(key, "any")`},
		{"api.handlers.AddMembers", `return h.commit(c, convo, key,`, `return h.commit(c, convo, "",`}}},
	{"swallowed-insert", "TestSwallowedInsert", []edit{
		{"idem.reserve", `tag, err := tx.Exec`, `attempt, err := tx.Begin(ctx)
			if err != nil { return false, err }; tag, err := attempt.Exec`},
		{"idem.reserve", `return err == nil && tag.RowsAffected() == 1, err`,
			`if err != nil { return true, attempt.Rollback(ctx) }; return tag.RowsAffected() == 1, attempt.Commit(ctx)`}}},
	{"the COMMIT without the answer", "idem.TestReplayIsTheFirstAnswer", []edit{
		{"internal/pgpool.Transaction.Commit", `b.QueuedQueries = append(b.QueuedQueries, t.last)`, `_ = t.last`}}},
	{"a ROLLBACK taken for a COMMIT", "idem.TestWriteThatFailsAnywhere", []edit{
		{"internal/pgpool.Transaction.Commit", `tag.String() != "COMMIT"`, `tag.String() == ""`}}},
	{"sliding-midnight", "TestSlidingMidnight", []edit{
		{"idem.reserve", `clock_timestamp() + $7::interval`, `date_trunc('minute', clock_timestamp() + $7::interval - $7::interval)`}}},
	{"frozen-lease", "idem.TestFrozenLease", []edit{
		{"idem.Store.takeOver", `state = 'processing' AND lease_expires_at <= clock_timestamp()`, `state = 'processing' AND lease_expires_at <= now() - interval '1 hour'`}}},
	{"zombie (completion)", "idem.TestZombieFenced", []edit{{"idem.Store.finish", `fence = $5`, `fence >= $5`}}},
	{"zombie (heartbeat)", "idem.TestHeartbeat", []edit{{"idem.Store.extend", `fence = $5`, `fence >= $5`}}},
	{"takeover-race", "idem.TestTakeoverRace", []edit{
		{"idem.Store.takeOver", `state = 'processing' AND lease_expires_at <= clock_timestamp()`, `state = 'processing'`}}},
	{"records without row-level security", "idem.TestRowLevelSecurity", []edit{
		{"idem.asCaller", `set_config('mlsd.caller', $1, true)`, `set_config('mlsd.maintenance', left($1, 0) || 'on', true)`}}},
	{"epoch-in-replay", "TestEpochInReplay", []edit{
		{"idem.Store.replay", `Body: rec.response`, `Body: []byte("{\"success\":true}")`}}},
	// Reads from a standby
	{"a standby that is behind is read", "internal/standby.TestStandbyIsBehind", []edit{
		{"internal/standby.session.lacks", `max(upTo-has, 0)`, `max(upTo-has, 0) * 0`}}},
	{"a read takes the answer to an earlier question", "internal/standby.TestReadWaitsForItsOwnQuestion", []edit{
		{"internal/standby.Reads.await", `waiting := r.next`, `waiting := r.next
	if r.asked != nil {
		waiting = r.asked
	}`}}},
	{"a promoted standby is read", "internal/standby.TestPromotedIsNoStandby", []edit{
		{"internal/standby.session.lacks", `if !standby {`, `if false {`}}},
	// Welcomes
	{"second-fetch-410", "TestSecondFetch410", []edit{
		{"welcome.fetched.delivery", `case *f.state == Consumed:`, `case *f.state == Consumed, *f.state == InFlight:`}}},
	{"confirmed-nothing", "TestConfirmedNothing", []edit{
		{"welcome.confirmed.state", `case c.before == nil, !*c.fetched:`,
			`case c.before == nil: return Consumed, Success, nil; case !*c.fetched:`}}},
	{"sliding-grace", "TestSlidingGrace", []edit{
		{"welcome/openlease.sql", `chosen.state = 'available' AND state = 'available'`, `state IN ('available', 'in_flight')`}}},
	{"a lease that is over is given again", "welcome.TestMachineFollowsTheModel", []edit{
		{"welcome/openlease.sql", `state = 'in_flight' AND grace_expires_at > clock_timestamp() AS leased`, `state = 'in_flight' AS leased`}}},
	{"any-device", "TestAnyDevice", []edit{
		{"welcome/openlease.sql", `opened AS (`, `others AS (
			UPDATE welcomes SET state = 'consumed', confirmed_at = clock_timestamp()
			WHERE convo_id = $1 AND recipient_did = $2 AND id <> (SELECT id FROM chosen)), …`}}},
	{"gc-kills-welcome", "TestGCKillsWelcome", []edit{
		{"welcome/openlease.sql", `epoch = chosen.epoch`, `epoch = chosen.epoch AND EXISTS (
			SELECT FROM key_packages WHERE did = $2 AND ref = chosen.key_package_ref)`}}},
	{"an expired lease is confirmed", "welcome.TestFirstAttempt", []edit{
		{"welcome/confirm.sql", `AND grace_expires_at > clock_timestamp()`, ``}}},
	{"an invited member is lost for good", "TestReplacedLeaf", []edit{ // S6
		{"convos.locked.replaceable", `case p.Joined || !p.Invited`, `case p.Joined || !p.Invited || p.DID != ""`}}},
	{"confirmed while it is replaced", "convos.TestConfirmedWhileReplaced", []edit{ // S6
		{"welcome.lock", `FOR UPDATE`, ``}}},
	{"stale-welcome", "TestStaleWelcome", []edit{
		{"welcome.Add", `AS r (id, did, device_id, ref)`,
			`… WHERE NOT EXISTS (SELECT FROM welcomes w WHERE w.convo_id = $1 AND w.recipient_did = r.did)`}}},
	{"first-recipient-only", "TestFirstRecipientOnly", []edit{
		{"welcome.Add", `n := len(to)`, `to = to[:1]; n := len(to)`}}},
	// Consent
	{"an outsider's invitation is no request", "TestRequestUntilAccepted", []edit{
		{"people/consent.standing.request", `!s.Shares || s.BlocksCompany`, `s.BlocksCompany`}}},
	{"a refusal has KeyPackages", "TestRefusalsLookTheSame", []edit{
		{"convos.addWelcome", `distinct(append(slices.Clip(added), by), allowed.invited.Refused...)`, `append(slices.Clip(added), by)`}}},
	{"a policy shuts members out", "TestPolicyWithinAConvo", []edit{
		{"people/consent.standing.refuses", `s.Accepted != nil && *s.Accepted`, `false`}}},
	{"invitations at once do not count each other (S3)", "TestInvitationsAtOnce", []edit{
		{"convos.countInvited", `pgpool.LockInvitations.Queue(batch, by.String())`, ``}}},
	{"an invitation overtakes a block", "TestBlockDeclinesWhatIsUnderWay", []edit{
		{"people/consent.Block", `pgpool.LockInvitations.Queue(batch, blocked.String())`, ``}}},
	{"a service repeats an invitation for nothing", "api.TestInvitationsToOneConvo", []edit{
		{"features/network.Receive", `!before.Welcomed`, `!before.Invited`}}},
	{"to commit does not accept", "TestRequestUntilAccepted", []edit{
		{"convos.locked.advance", "batch.Queue(`UPDATE members SET requested_at = NULL WHERE convo_id = $1 AND did = $2 AND requested_at IS NOT NULL`, c.id, by)", ``}}},
	// The database
	{"a COMMIT that waits for its standby is cancelled", "internal/pgpool.TestCommitIsNotCancelled", []edit{
		{"internal/pgpool.neverCancel", `connected.Load()`, `false`}}},
	{"a restore without the archive", "internal/localpg.TestRestoreToAMoment", []edit{
		{"internal/localpg.restoreCommand", `dir == ""`, `true`}}},
	// Epochs and membership
	{"self-read-cas", "TestSelfReadCAS", []edit{
		{"convos.locked.checkCommit", `int64(h.Epoch) != c.epoch`, `int64(h.Epoch) > c.epoch`}}},
	{"max-plus-one", "TestMaxPlusOne", []edit{
		{"messages.lockConvos", `FOR NO KEY UPDATE`, ``},
		{"messages.lockFreeConvos", `FOR NO KEY UPDATE SKIP LOCKED`, ``}}},
	{"epoch-zero", "TestEpochZero", []edit{
		{"convos.NewConvo.judge", `epoch = 1`, `epoch = 0`},
		{"convos.NewConvo.judge", `epoch == 0 && n.Welcome != nil`, `epoch < 0`}}},
	{"off-by-one", "TestOffByOne", []edit{
		{"convos.locked.advance", `Hash: p.Hash, Epoch: next`, `Hash: p.Hash, Epoch: c.epoch`}}},
	{"group-info-late", "TestGroupInfoLate", []edit{{"convos.locked.advance", `v.group, p.GroupInfo`, `v.group, nil`}}},
	{"open-join", "TestOpenJoin", []edit{
		{"convos.lockConvo", `if !known {`, `if !known && caller == "" {`},
		{"convos.lockConvo", `return row.Scan(&c.leftEpoch)`,
			`if err := row.Scan(&c.leftEpoch); !errors.Is(err, pgx.ErrNoRows) { return err }; return nil`}}},
	{"self-rejoin", "TestSelfRejoin", []edit{{"convos.lockOpen", `case c.leftEpoch != nil:`, `case false:`}}},
	{"group-info-open", "TestGroupInfoOpen", []edit{{"convos.GroupInfoOf", `m.did = $2`, `m.did <> $2`}}},
	{"forged sender", "TestVerifiedCommit", []edit{
		{"convos.checkSender", `sender.DID() != by.String()`, `sender.DID() == ""`}}},
	{"poisoned tree", "TestWrongWord", []edit{
		{"convos.locked.judgePublic", `before.vouchedBy != ""`, `before.vouchedBy == "nobody"`}}},
	{"starvation", "TestNobodyStarves", []edit{{"convos.lockConvo", `reserved_for <> $2`, `reserved_for = $2`}}},
	// What real clients send (M1, M2, M3)
	{"SelfRemove is opaque (M1)", "TestSelfRemove", []edit{
		{"mls.reader.proposal", `case ProposalSelfRemove:`, `case 0xffff:`}}},
	{"messages in a closed convo (M3)", "TestReInitCloses", []edit{
		{"messages.judge", `case s.convo.isClosed:`, `case s.convo.isClosed && s.hasLeft:`}}},
	{"an outsider is in the new group of a reset", "TestResetRefusals", []edit{
		{"convos.ResetConvo", `if i < 0 {`, `if i < -1 {`}}},
	{"a reset ignores a dispute", "TestResetInADispute", []edit{
		{"convos.locked.mayReset", `c.dispute != nil && (c.dispute.Caller || !reports)`, `c.dispute != nil && c.dispute.Caller`}}},
	{"closed before the key (M3)", "TestReInitCloses", []edit{
		{"messages.judge", `case s.recorded != nil:`,
			`case s.convo != nil && s.convo.isClosed: return &Result{Err: ErrConvoClosed}; …`}}},
	{"anyone is an external sender (M5)", "TestExternalProposal", []edit{
		{"convos.judgeExternal", `case did != d.Sender.String():`, `case did == "":`}}},
	{"proposals are not judged (T13)", "TestWhoMay", []edit{{"convos.Propose", `if !known {`, `if known {`}}},
	{"a member has the rights of an admin", "convos.TestRoles", []edit{
		{"convos.may", `case replaceContext, changeRoles, rename: return r == admin`, `case replaceContext, changeRoles, rename: return r >= member`}}},
	{"the committer's rights (T15)", "TestCarolCommits", []edit{{"convos.authorOr", `a.DID == ""`, `true`}}},
	{"the roster does not follow (T15)", "TestCarolCommits", []edit{
		{"convos.locked.removeDeparted", `len(gone) == 0`, `true`}}},
	{"the last admin is refused, and nobody becomes one", "convos.TestHandOverFromARefusedAdmin", []edit{
		{"convos.HandOver", `_, err = promoteHeirs(ctx, tx, convos)`, ``}}},
	{"a KeyPackage about to expire (T14)", "TestShortLivedKeyPackage", []edit{
		{"keypackages.CheckLife", `>= CommitLife`, `>= 0`}}},
	{"member-list-leak", "TestMemberListLeak", []edit{
		{"convos.Create", `if !inserted || deleted { return Convo{}, ErrGroupAlreadyExists`, `if !inserted {
		err := tx.QueryRow(ctx, "SELECT id, creator_did FROM convos WHERE group_id = $1", n.GroupID).Scan(&id, &n.Creator)
		if err != nil { return Convo{}, err }
		return Get(ctx, tx, id, n.Creator)`}}},
	{"sub-impersonation", "TestSubImpersonation", []edit{
		{"internal/serviceauth.rawClaims", `Lxm string`, `Sub syntax.DID "json:\"sub\""; …`},
		{"internal/serviceauth.claims", `iss syntax.DID`, `iss, sub syntax.DID`},
		{"internal/serviceauth.parseClaims", `claims{iss: iss`, `claims{sub: r.Sub, iss: iss`},
		{"internal/serviceauth.Validator.Validate", `VerifiedToken{Caller: c.iss`, `VerifiedToken{Caller: cmp.Or(c.sub, c.iss)`}}},
	{"removed member reads on", "TestRemovedMemberReadsNothing", []edit{
		{"convos.Authorise", `if left {`, `if left && m.Epoch < 0 {`}}},
	{"member reads from before it joined", "TestRemovedMemberReadsNothing", []edit{
		{"messages/page_small.sql", `greatest(me.joined_seq, @after::bigint + 1)`, `@after::bigint + 1`}}},
	{"page without its membership", "TestOutsidersLearnNothing", []edit{
		{"messages/page_small.sql", `me.did = @reader`, `me.role = 'creator' AND @reader::text <> ''`}}},
	// Cursors
	{"a cursor goes back", "convos.TestCursorsTogether", []edit{
		{"convos/movecursors.sql", `a.furthest > a.cursor_seq`, `a.furthest <> a.cursor_seq`},
		{"convos/movecursors.sql", `m.cursor_seq < h.furthest`, `m.cursor_seq <> h.furthest`},
		{"convos/movecursors.sql", `greatest(m.cursor_seq, h.furthest)`, `h.furthest`}}},
	{"cursors are seen without sharing", "TestGetCursors", []edit{
		{"people/consent/cursors.sql", `AND EXISTS (SELECT FROM policies WHERE did = $2 AND share_cursors)`, ``}}},
	// Signals
	{"a signal reaches who has blocked its sender", "events.TestSignalsReachConnectedMembers", []edit{
		{"events/signals.Carrier.deliverPayload", `if slices.Contains(signal.Hidden, did) {`, `if slices.Contains(signal.Hidden, did) && did == signal.Sender {`}}},
	{"a former member signals", "TestRefusedSignals", []edit{
		{"messages.AuthoriseSignal", `case left:`, `case left && closed:`}}},
	// KeyPackages
	{"double-claim", "TestDoubleClaim", []edit{{"keypackages/claim.sql", `FOR UPDATE SKIP LOCKED`, ``}}},
	{"drain", "TestDrain", []edit{
		{"keypackages/claim.sql", `>= @budget OR outsider`, `>= @budget + 1000000 OR outsider`}}},
	{"last resort beside a one-time KeyPackage", "keypackages.TestLastResort", []edit{
		{"keypackages/claim.sql", `AND NOT EXISTS (SELECT FROM claimed c WHERE (c.did, c.device_id) = (k.did, k.device_id))`, ``}}},
	{"expired-served", "TestExpiredServed", []edit{
		{"keypackages/claim.sql", `NOT last_resort AND not_after > clock_timestamp() AND (@suite`, `NOT last_resort AND (@suite`},
		{"keypackages/claim.sql", `NOT last_resort AND not_after > clock_timestamp() ORDER`, `NOT last_resort ORDER`}}},
	{"locked-last-resort", "TestLockedLastResort", []edit{
		{"keypackages/claim.sql", `FROM key_packages k`, `FROM (SELECT * FROM key_packages FOR UPDATE SKIP LOCKED) k`}}},
	// Messages
	{"blind retry", "messages.TestUnknownOutcome", []edit{
		{"messages.worthAnotherTry", `return code == "40P01" || code == "40001"`, `return code != "40P01"`}}},
	{"a lost COMMIT is a failed one", "messages.TestLostCommit", []edit{
		{"messages.Log.transact", `if pgpool.OutcomeUnknown(err) {`, `if pgpool.OutcomeUnknown(err) && len(drafts) == 0 {`}}},
	{"judged by an old snapshot", "messages.TestAppendedWhileWaiting", oldSnapshot},
	{"a message from before is no replay (X4)", "messages.TestLostBatchIsLookedUp", []edit{
		{"messages.Log.resolve", `r.age > sinceBegan`, `r.age > sinceBegan+time.Hour`}}},
	{"two messages of one batch have one seq", "messages.TestJudgeBatch", []edit{
		{"messages.judgeAll", `s.convo.lastSeq++`, `s.convo = &convo{lastSeq: s.convo.lastSeq + 1}`}}},
	{"a batch appends a repetition", "messages.TestJudgeBatch", []edit{
		{"messages.judgeAll", `ok && s.recorded == nil {`, `ok && s.recorded != nil {`}}},
	{"a hole in the log", "messages.TestExpiryInOrder", []edit{
		{"messages/expire_batch.sql", `bool_and(created_at < $2) OVER (ORDER BY seq)`, `created_at < $2`}}},
	{"a used token sends", "messages.TestTokens", []edit{
		{"messages.transaction.queueWrites", `s.isUsed = t.used[d.Token.ID()]`, ``},
		{"messages.useTokens", `$2::timestamptz[])`, `$2::timestamptz[]) ON CONFLICT DO NOTHING`}}},
	{"a token that is used meanwhile sends", "messages.TestTokenUsedMeanwhile", []edit{
		{"messages.useTokens", `$2::timestamptz[])`, `$2::timestamptz[]) ON CONFLICT DO NOTHING`}}},
	{"the token is not used", "api.TestTokenIsUsedOnce", []edit{{"api.handlers.SendMessage", `, Token: c.token`, ``}}},
	{"a forger uses up all look-ups", "internal/serviceauth.TestForgerLeavesLookups", []edit{
		{"internal/serviceauth.addressLimits.admit", `shares := []share{{from, lookupsOfAddress, ErrSpent}}`, `var shares []share`},
		{"internal/serviceauth.addressLimits.admit", `l.slots.UsedBy(from) == 0 {`, `l.slots.UsedBy(from) < 0 {`}}},
	{"a stale key while the server is busy", "internal/serviceauth.TestStaleKeyWhileBusy", []edit{
		{"internal/serviceauth.outage", `&& !errors.Is(err, ErrBusy)`, ``}}},
	{"a key comes back after Forget", "internal/serviceauth.TestForget", []edit{
		{"internal/serviceauth.CachedDirectory.drop", `l.void = true`, ``}}},
	{"a token outlives its key", "internal/serviceauth.TestForgetEndsVerifiedTokens", []edit{
		{"internal/serviceauth.Validator.remembered", `key != nil && key.Equal(t.key)`, `key != nil || ok`}}},
	{"tarpits hold all slots", "internal/serviceauth.TestTarpitsHoldFewSlots", []edit{
		{"internal/limit.Queue.fits", `l.used+units <= q.Share`, `units <= q.Share`}}},
	{"an address holds all connections", "node.TestWaitingConnectionsOfAnAddress", []edit{ // S13
		{"node.waiting.add", `of.Len() > w.maxOfAddress && !proxy`, `of.Len() > w.most && !proxy`}}},
	{"claims do not wait", "api.TestCheapPassesExpensive", []edit{
		{"api.Server.call", `if cl.route.expensive {`, `if cl.route.expensive && cl.route.Method.NSID == "" {`}}},
	{"late requests of all callers have no bound", "api.TestLateRequestsAreBounded", []edit{
		{"api.newAdmission", `Size: int64(max(early, connections-cheapConnections)),`, `Size: 1000,`}}},
	{"KeyPackages are verified on a connection", "api.TestCostlyKeyPackages", []edit{
		{"keypackages.PublishAll", `len(batch) == 1 {`, `len(batch) > 0 {`}, {"keypackages.PublishAll", `batch[0].verify()`, `for i := range batch { if batch[i].parse() == nil { batch[i].verify() } }`}}},
	{"declared bodies take all memory", "api.TestDeclaredBodiesTakeNothing", []edit{
		{"api.firstPiece", `4 * kib`, `256 * kib`}, {"internal/limit.Memory.cutSlow", `r.transfer.set(time.Unix(1, 0))`, ``}}},
	{"who does not read keeps the memory", "internal/limit.TestSlowestIsCut", []edit{
		{"internal/limit.Memory.cutSlow", `r.transfer.set(time.Unix(1, 0))`, ``}}},
	// Events
	{"bigserial-gap", "events.TestBigserialGap", []edit{
		{"events.Sequencer.step", `WHERE id > $6 AND`, `WHERE id > greatest($6, (SELECT coalesce(max(stream_seq), 0) FROM events)) AND`}}},
	{"catchup-fills-live", "events.TestCatchupFillsLive", []edit{
		{"events.Subscription.advance", `s.mu.Unlock() if len(page) > 0 {`,
			`if s.queued > s.hub.cfg.Buffer { s.fail(ErrConsumerTooSlow) }; …`}}},
	{"lag-dropped", "events.TestLagDropped", []edit{
		{"events.registry.offer", `r.detach(b) b.place = e.StreamSeq - 1`, ``}}},
	{"per-type-cursor", "events.TestPerTypeCursor", []edit{
		{"events.catchUp.page", `page, total := found, 0`,
			`slices.SortStableFunc(found, func(a, b *Event) int { return cmp.Compare(a.Kind, b.Kind) }); …`}}},
	{"late-convo", "events.TestLateConvo", []edit{
		{"events.registry.publishMembership", `r.addConvo(b, e.ConvoID)`, ``}}},
	{"one-leader-lost", "events.TestOneLeaderLost", []edit{
		{"events.Sequencer.round", `time.Since(s.tried) >= electEvery`, `s.tried.IsZero()`}}},
	{"removed-still-streams", "events.TestRemovedStillStreams", []edit{
		{"events.registry.publishMembership", `if joined {`, `if joined || !joined {`}}},
	{"a gap before the live events", "events.TestNothingIsMissedBeforeLive", []edit{
		{"events.registry.attach", `r.offerMissed(b, r.memory.after(b.place))`, `r.offerMissed(b, nil)`}}},
	{"days are dropped in silence", "events.TestDroppedWhileCatchingUp", []edit{
		{"events.catchUp.findInTable", `first > c.place+1 ||`, `first > c.place+1 && first < 0 ||`}}},
	{"a lost event's place is as good as its successor's", "events.TestDatabaseGoesBack", []edit{
		{"events.generations.resolve", `if later.after < place {`, `if later.after < place && later.after < 0 {`}}},
	{"a restored dump passes for its original", "events.TestDumpIsNoticed", []edit{
		{"events.server.agrees", `return s.or(o)`, `s.database, s.table = o.database, o.table; return s.or(o)`}}},
	{"commit-without-event", "convos.TestCommitWithoutEvent", []edit{
		{"messages.appendEntry", `outbox.Queue(batch, convo, event)`, `_ = event`}}},
	// Push
	{"lost-fanout", "features/push.TestLostFanout", []edit{
		{"messages.transaction.queuePushes", `d.Kind == mls.ContentTypeApplication {`, `d.Kind == 4 {`},
		{"messages.Log.transact", `return t.results, err`, `const insert = "INSERT INTO push_convos VALUES ($1, $2, now()) ON CONFLICT DO NOTHING"
		for i := 0; err == nil && i < len(drafts); i++ { _, err = l.db.Exec(ctx, insert, drafts[i].ConvoID, drafts[i].Sender) }
		…`}}},
	{"pushed before the commit", "features/push.TestFanoutDuringCommit", []edit{
		{"messages.queuePushes", `DO UPDATE SET sender_did = excluded.sender_did WHERE false`, `DO NOTHING`}}},
	{"a connection counts as delivery", "features/push.TestPresenceHidesNothingLongerThanItsLease", []edit{
		{"features/push.Worker.endConnected", `n.synced_at - $3::interval >= d.heard_by`, `$3::interval IS NOT NULL`}}},
	{"hanging webhooks take all places", "features/push.TestHangingWebhooks", []edit{
		{"features/outgoing.Places.Acquire", `if s.busy(p) {`, `if s.unproven[c.Pool] < 0 {`}}},
	{"a webhook is called before it agrees", "features/push.TestChallenge", []edit{
		{"outbox/call.sql", `FROM target WHERE state = 'active'`, `FROM target`},
		{"features/push.Worker.dueJobs", `AND t.state = 'active'`, ``},
		{"features/push.Worker.work", `t.State != Active`, `t.State == Failed`}}},
	{"a lapsed lease is renewed", "features/push.TestNodeThatSlept", []edit{
		{"events.Presence.renew", `AND lease_expires_at > clock_timestamp()`, ``}}},
	// Quotas
	{"quota before key", "TestQuotas", []edit{
		{"api.handlers.write", `answer, err := h.Writes.Do(`, `if err := c.quota.Take(c.costs(key)...); err != nil { return err }; …`},
		{"api.handlers.write", `if err := c.quota.Take(c.costs(key)...); err != nil { return nil, err }`, ``}}},
	{"quota before membership", "TestOutsidersSeeNoQuota", []edit{
		{"messages.judge", `case s.hasLeft:`, `case d.refusal != nil: return &Result{Err: d.refusal}; …`}}},
	{"a failed write counts", "TestFailedWritesDoNotCount", []edit{{"api.handlers.write", `c.quota.Return()`, ``}}},
	{"one KeyPackage has two invitations", "TestReceiptAtTwoServices", []edit{
		{"keypackages.UsedElsewhere.By", `case u.consumed:`, `case false:`},
		{"features/network.Receive", `case before.Used &&`, `case false &&`}}},
	{"a receipt of an old home is taken", "TestMovingHome", []edit{
		{"features/network.Service.check", `home != u.Service`, `home == ""`}}},
	// Accounts
	{"a refused account is served", "TestRefusedAccounts", []edit{
		{"api.handlers.mayCall", `err = h.Gate.Check(c.ctx, did)`, `err = nil`}}},
	{"the streams of a refused account go on", "TestStreamsOfRefusedAccounts", []edit{
		{"events.Hub.End", `b.stop(why)`, `_, _ = b, why`}}},
	{"a late commit is missed", "people/accounts.TestGateMissesNoLateCommit", []edit{
		{"people/accounts.block", `UPDATE account_clock SET version = version + 1 RETURNING version`, `SELECT version + 1 AS version FROM account_clock`}}},
	// The operator's methods
	{"DNS rebinding (H11)", "cmd/mlsd.TestBrowsersCannotReadTheAdminListener", []edit{
		{"operator.Access.allow", `case !OwnHost(r, a.hosts):`, `case r.Host == "":`}}},
	{"an export has the secrets of answers (S1)", "cmd/mlsd.TestNoSecretLeaves", []edit{
		{"internal/redact.SecretAnswers", `nsid.RegisterPushTarget}`, `}`}}},
	{"a former member sees the convo move (S2)", "cmd/mlsd.TestFormerMemberSeesNothingMove", []edit{
		{"internal/redact.Hidden", `slices.Concat([]string{}, c[nobody], c[members])`, `append([]string{}, c[nobody]...)`}}},
	{"an open admin listener (H11)", "cmd/mlsd.TestOpenAdminListenerNeedsAToken", []edit{
		{"operator.NewAccess", `if t.Write == "" && !addr.IP.IsLoopback() {`, `if t.Write == "" && addr.IP.IsMulticast() {`}}},
	{"a claim survives the withdrawal", "TestWithdrawKeyPackages", []edit{
		{"keypackages.Withdraw", `state IN ('available', 'claimed', 'orphaned')`, `state = 'available'`}}},
	// Upgrades
	{"a migration without its version (X1)", "migrations.TestKilledAtCommit", []edit{
		{"migrations.driver.Run", `d.tx.Exec(d.ctx, string(sql))`, `d.tx.Exec(d.ctx, "COMMIT;"+string(sql)+";COMMIT;BEGIN")`}}},
	{"data is deleted under a node (X9)", "cmd/mlsd.TestDownUnderARunningServer", []edit{
		{"migrations.runner.down", `if r.refuse != nil {`, `if r.refuse != nil && n > 1 {`}}},
	// Erasure
	{"a record outlives its commit in a killed erasure", "cmd/mlsd.TestErasureKilled", []edit{
		{"features/erasure.eraseLog", `idem.Forget(ctx, j.tx, []syntax.DID{j.person.DID}, convo.String())`, `idem.Forget(ctx, j.tx, nil, convo.String())`}}},
	{"erased memberships can be linked", "cmd/mlsd.TestAdminAccountErase", []edit{
		{"internal/tombstone.Person.In", `p.of(convo[:])`, `p.of(convo[:0])`}}},
	// Sessions
	{"a session's mac is not compared", "TestForgedSessions", []edit{
		{"people/sessions.parse", `key == nil || !hmac.Equal(sum, key.mac(prefix, content))`, `key == nil || !hmac.Equal(sum, sum)`}}},
	{"an ended session is accepted", "TestDeleteSession", []edit{
		{"people/sessions.Service.Check", `case ended:`, `case ended && !remembers:`}}},
	{"a refresh token is good twice", "TestRefreshSession", []edit{
		{"people/sessions.stored.refresh", `case r.serial != serial:`, `case r.serial < serial:`}}},
	// Reports of abuse
	{"a report is bound to no reporter", "features/reports.TestSeal", []edit{
		{"features/reports.Binding", `reporter.String()`, `reporter.Method()`}}},
	// Disputes
	{"a single report makes a dispute", "convos/disputes.TestCountReports", []edit{
		{"convos/disputes.Count.Disputed", `c.Reports >= fewest && c.Reports*share`, `c.Reports*share`}}},
	// Transparency
	{"the sender is not in the leaf", "features/transparency.TestHeadIsThatOfTheLog", []edit{
		{"features/transparency.load", `e.Tag = tag`, `_ = tag`}}},
	{"waiting heads are not compared", "features/transparency/verifier.TestCheatingServersAreCaught", []edit{
		{"features/transparency/verifier.Verifier.continues", `if err != nil || ok {`, `if err != nil || ok || h.Size > 0 {`}}},
	// Attachments
	{"an old holder completes an attachment", "TestAttachmentTakeover", []edit{
		{"features/attachments.check.progress", `tag.RowsAffected() == 0`, `tag.RowsAffected() > 1`},
		{"idem.Store.finish", `AND fence = $5 AND state = 'processing'`, `AND fence >= $5`},
		{"features/attachments.check.complete", `WHERE id = $1 AND state = 'checking' AND fence = $2`, `WHERE id = $1 AND fence >= $2`}}},
	{"a late part changes what was checked", "TestAttachmentTakeover", []edit{
		{"features/attachments.Attachment.refusal", `return ErrChecking`, `return nil`}}},
}
