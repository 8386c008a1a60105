package main

// mutant is a bug that a server had, put back.
type mutant struct {
	name  string // of the bug, with what it is put into where there are several
	test  string // that fails, or a subtest of it: of package api, or of the package before the dot
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
		{"api.Server.admit", `return verified, err } cl.caller, cl.token = token.Caller, &token`, `
		if token := strings.Split(r.Header.Get(echo.HeaderAuthorization), "."); len(token) == 3 {
			var claims struct{ Iss syntax.DID }
			raw, _ := base64.RawURLEncoding.DecodeString(token[1])
			if json.Unmarshal(raw, &claims) == nil {
				cl.caller = claims.Iss
				return true, nil
			}
		}
		return verified, err
	}
	cl.caller, cl.token = token.Caller, &token`}}},
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
	{"no second guard (commits)", "TestRawSecondInsert", []edit{
		{"migrations/000001_baseline.up.sql", `CREATE UNIQUE INDEX messages_commit_idempotency_key`, `CREATE INDEX messages_commit_idempotency_key`}}},
	{"a key is never free again", "TestKeyIsRetiredWithItsRecord", []edit{
		{"idem.Store.claim", `err = s.retire(ctx, tx, []UsedKey{{Caller: req.Caller.String(), NSID: req.NSID, Scope: req.Scope, Key: req.Key}})`, ``}}},
	{"the sweep leaves keys in use", "TestKeyIsRetiredWithItsRecord", []edit{
		{"idem.deleteExpired", `retire(ctx, tx, ended)`, `retire(ctx, tx, nil)`}}},
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
		{"messages.judge", `case s.recorded != nil:`, `case s.convo != nil && d.Epoch < s.convo.epoch-window:
		return &Result{Err: &EpochMismatchError{Epoch: d.Epoch, Current: s.convo.epoch}}
	case s.recorded != nil:`}}},
	{"member-before-key", "TestMemberBeforeKey", []edit{
		{"messages.judge", `case s.recorded != nil:`, `case s.hasLeft:
		return &Result{Err: ErrNotMember}
	case s.recorded != nil:`}}},
	{"member-before-key (leave)", "TestMemberBeforeKey", []edit{
		{"convos.leave", `return Advanced{Epoch: *c.leftEpoch}, nil`, `return Advanced{}, ErrNotMember`}}},
	{"cached-401", "TestCached401", []edit{
		{"idem.Store.Do", `answer.Body, err = effect(ctx, tx); err != nil {`, `answer.Body, err = effect(ctx, tx); err != nil {
		complete(tx, req, []byte(err.Error()))
		_ = tx.Commit(ctx)`}}},
	{"one hash for two requests", "TestDifferentRequestsHaveDifferentHashes", []edit{
		{"idem.Content.Hash", `h.Write(f.JSON)`, `h.Write(f.JSON[:min(len(f.JSON), 12)])`}}},
	{"a conflict without the key's end", "TestConflictSaysWhenTheKeyIsFree", []edit{
		{"idem.record.conflict", `Expires: r.expiresAt,`, ``}}},
	{"SQL made of a device's id", "TestSQLInAnyField", []edit{
		{"internal/push.Unregister", "device_id = $2`, did, device)", "device_id = '` + device + `'`, did)"}}},
	{"hash-changed", "TestRequestHashes", []edit{
		{"idem.Content.Hash", `h := sha256.New()`, `h := sha256.New()
	h.Write([]byte("v2"))`}}},
	{"hash-changed (bytes with padding)", "TestRequestHashes", []edit{
		{"api/lexcodec.Bytes.AppendJSON", "return append(dst, `\"}`...)", "return append(dst, `=\"}`...)"}}},
	{"hash-changed (what is stored)", "TestStoredHashes", []edit{
		{"api.handlers.write", `Input: input`, `Input: append(input[:len(input):len(input)], idem.Field{Name: "method", JSON: []byte("1")})`}}},
	{"hash-changed (push)", "internal/push.TestJobHash", []edit{
		{"internal/push.Job.content", `"job"`, `"id"`}}},
	{"no key, no retry", "TestOldClients", []edit{
		{"api.handlers.AddMembers", `key = input.KeyOr(key)`, `key = cmp.Or(key, "any")`},
		{"api.handlers.AddMembers", `return h.commit(c, convo, key,`, `return h.commit(c, convo, "",`}}},
	{"silence counts as success", "TestSilenceOfOldClients", []edit{
		{"welcome.Service.begin", `s.policy.OnExpiry == Consume`, `true`}}},
	{"a roster without a commit", "TestOldClients", []edit{
		{"convos.Add", `return Advanced{}, ErrCommitRequired`, `return Advanced{}, nil`}}},
	{"an alert that misses the first count", "internal/node.TestSeriesOfAlertsExist", []edit{
		{"api.Metrics.begin", `metric.Begin(m.transitions, …, "dispute", "attachment")`, ``}}},
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
	{"a claim answers with what was rolled back", "TestSessionLostAtCommitOfARepeatedWrite", []edit{
		{"api.handlers.GetKeyPackages", `if c.replayed || c.found {`, `if c.replayed {`}}},
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

	// Reads from a standby
	{"a standby that is behind is read", "internal/standby.TestStandbyIsBehind", []edit{
		{"internal/standby.session.lacks", `max(upTo-has, 0)`, `max(upTo-has, 0) * 0`}}},
	{"a removed member reads from a standby that is behind", "TestStandby/is_behind", []edit{
		{"internal/standby.session.lacks", `max(upTo-has, 0)`, `max(upTo-has, 0) * 0`}}},
	{"a read takes the answer to an earlier question", "internal/standby.TestReadsSeeEarlierWrites", []edit{
		{"internal/standby.Reads.await", `waiting := r.next`, `waiting := r.next
	if r.asked != nil {
		waiting = r.asked
	}`}}},
	{"WAL that is not flushed is forgotten", "internal/standby.TestCommitsDoNotWaitForTheDisk", []edit{
		{"internal/standby.flushed", `WHEN 'off'`, `WHEN 'no'`}}},
	{"a standby is asked whose account may not read", "internal/standby.TestAccountWithoutRights", []edit{
		{"internal/standby.session.failed", `s.deny()`, ``}}},
	{"a read that is repeated costs nothing on the standby", "TestRepeatedReadIsChargedOnce", []edit{
		{"api.Server.read", `max(highest, cl.charged)`, `cl.charged`}}},
	{"a promoted standby is read", "internal/standby.TestStandbyIsPromoted", []edit{
		{"internal/standby.session.lacks", `if !standby {`, `if false {`}}},
	{"a standby of the primary before is read", "internal/standby.TestStandbyOfThePrimaryBefore", []edit{
		{"internal/standby.prove", `there.id != here.id || !there.begun.Equal(here.begun)`, `false`}}},
	{"a generation of another timeline is proof", "internal/standby.TestPrimaryIsNotRecorded", []edit{
		{"internal/standby.prove", `AND g.timeline =`, `OR g.timeline =`}}},
	{"a standby of another database is read", "internal/standby.TestCheck", []edit{
		{"internal/standby.compare", `case here.system != there.system, here.database != there.database:`, `case here.system != there.system:`}}},
	{"rounds of workers are not counted (G1)", "cmd/mlsd.TestAlertsAreSilent", []edit{
		{"internal/worker.Rounds.add", `one.Rounds+1`, `one.Rounds`}}},
	{"a standby of another PostgreSQL is read", "cmd/mlsd.TestStandbyOfAnotherDatabase", []edit{
		{"internal/node.lifecycle.checkStandby", `errors.Is(err, standby.ErrNotStandby)`, `err != nil`}}},
	{"a read fails with the standby", "internal/standby.TestStandbyStops", []edit{
		{"internal/standby.session.failed", `return s.reads.Err() != nil || pgpool.Code(err) != "" || pgpool.Unavailable(err)`, `return false`}}},
	{"a read waits for a standby that hangs", "internal/standby.TestStandbyHangs", []edit{
		{"internal/standby.session.read", `defer context.AfterFunc(s.reads, cancel)()`, ``}}},
	{"an export lacks tables without WAL", "TestStandby/follows", []edit{
		{"internal/standby.session.failed", `pgpool.Code(err) != "" ||`, ``}}},
	{"a read has two servers", "internal/standby.TestNameLeadsElsewhere", []edit{
		{"internal/standby.open", `pool.ConnConfig.ValidateConnect = s.validate`, ``}}},

	// Usage of keys, and lifetimes that are set
	{"an account that is being erased leaves rows of requests", "TestWhoLeavesNoRow", []edit{
		{"api.identity.set", `standing.Status == accounts.Erasing`, `standing.Status == ""`}}},
	{"one caller fills the table of requests", "internal/requests.TestFlood", []edit{
		{"internal/requests.Recorder.fits", `r.callers[q.Caller] < perCaller`, `true`}}},
	{"callers without bound in memory", "internal/requests.TestMemoryIsBounded", []edit{
		{"internal/requests.top.add", `case len(t.entries) < t.limit:`, `case true:`}}},
	{"conflicts are forgotten with their callers", "internal/requests.TestConflictsAreKeptForAMonth", []edit{
		{"internal/requests/forget_callers.sql", `SELECT hour, kind, '', nsid, sum(n), sum(seconds), 0 FROM over WHERE`, `SELECT hour, kind, '', nsid, sum(n), sum(seconds), 0 FROM over WHERE false AND`}}},
	{"callers without bound in the table", "internal/requests.TestManyCallers", []edit{
		{"internal/requests/trim_callers.sql", `r.place > $2`, `r.place > 1000 * $2`}}},
	{"the callers with the fewest requests win", "internal/requests.TestManyCallers", []edit{
		{"internal/requests.top.sorted", `cmp.Compare(b.n, a.n)`, `cmp.Compare(a.n, b.n)`}}},
	{"many callers hide a steady one", "internal/requests.TestSteadyCaller", []edit{
		{"internal/requests/write_callers.sql", `coalesce(given_up.weight, 0)`, `0 * coalesce(given_up.weight, 0)`}}},
	{"requests of others are not counted", "internal/requests.TestManyCallers", []edit{
		{"internal/requests.callerColumns", `t.others[e.nsid] = t.others[e.nsid].plus(e.sum)`, `_ = e`}}},
	{"a row of the audit log for each conflict", "internal/requests.TestConflictsAreAudited", []edit{
		{"internal/requests.counter.newConflicts", `c.audited[e.caller] || len(c.audited) == auditedPerHour`, `false`}}},
	{"a reused key leaves no trace", "idem.TestReuseIsAudited", []edit{
		{"idem.reclaim", `fence FROM reused`, `fence FROM reused WHERE false`}}},
	{"a lost key goes unnoticed", "internal/invariants.TestRepeatedMessages", []edit{
		{"internal/invariants.repeatedMessages", `HAVING count(*) > 1`, `HAVING count(*) > 2`}}},
	{"a lifetime below its floor", "internal/node.TestSettings", []edit{
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
	{"an outsider's confirmation", "welcome.TestFirstAttempt", []edit{
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
	{"ended Welcomes pile up", "welcome.TestManyWelcomes", []edit{
		{"welcome.Add", `slices.Compact(people), keepEnded, trimEnded`, `slices.Compact(people), 1<<30, trimEnded`}}},
	{"any Welcomes that have ended are deleted", "welcome.TestTrimmed", []edit{
		{"welcome/trim.sql", `ORDER BY epoch DESC`, `ORDER BY epoch`}}},
	{"trimming waits", "welcome.TestTrimDoesNotWait", []edit{
		{"welcome/trim.sql", `FOR UPDATE SKIP LOCKED`, `FOR UPDATE`}}},
	{"a line of the log for every failed join", "welcome.TestFailuresOfAnOutsider", []edit{
		{"welcome.New", `log: ratelog.New(log)`, `log: func(*slog.Logger) *slog.Logger { return log }(ratelog.New(log))`}}},
	{"the sweep of Welcome bytes begins anew each round", "welcome.TestEraseGoesOn", []edit{
		{"welcome.bodySweep.batch", `s.looked, s.looks = last, s.looks+1`, `s.looks++`}}},
	{"the sweep of Welcome bytes reads all Welcomes of an epoch", "welcome.TestEraseReadsFew", []edit{
		{"migrations/000001_baseline.up.sql", `CREATE INDEX welcomes_live_of_epoch ON welcomes (convo_id, epoch) WHERE`, `CREATE INDEX welcomes_live_of_epoch ON welcomes (version) WHERE`}}},
	{"the Welcomes after the first batch keep the name of an erased person", "cmd/mlsd.TestErasureOfManyWelcomes", []edit{
		{"people/erasure.eraseRoster", `if err != nil || more {`, `if err != nil {`}}},
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
		{"welcome.lock", `FOR UPDATE`, ``}}},
	{"Welcomes are locked as the plan finds them", "welcome.TestOneOrderOfLocks", []edit{ // X6
		{"welcome.supersede", `ORDER BY w.id FOR`, `FOR`}}},
	{"a commit locks Welcomes in two steps", "TestCommitLocksWelcomesInOrder", []edit{ // X6
		{"convos.locked.advance", `welcome.QueueLock(batch, c.id, allowed.people(by, superseded))`, ``}}},
	{"stale-welcome", "TestStaleWelcome", []edit{
		{"welcome.Add", `AS r (id, did, device_id, ref)`, `AS r (id, did, device_id, ref)
		WHERE NOT EXISTS (SELECT FROM welcomes w WHERE w.convo_id = $1 AND w.recipient_did = r.did)`}}},
	{"first-recipient-only", "TestFirstRecipientOnly", []edit{
		{"welcome.Add", `n := len(to)`, `to = to[:1]; n := len(to)`}}},

	// Consent
	{"an outsider's invitation is no request", "TestRequestUntilAccepted", []edit{
		{"people/consent.standing.request", `!s.Shares || s.BlocksCompany`, `s.BlocksCompany`}}},
	{"a request counts as shared", "TestWhoSharesAConvo", []edit{
		{"people/consent/check.sql", `AND did = $1 AND left_at IS NULL AND requested_at IS NULL LIMIT 1`, `AND did = $1 AND left_at IS NULL LIMIT 1`}}},
	{"a check looks at all convos of a person", "people/consent.TestInvitedWithManyConvos", []edit{
		{"people/consent/check.sql", `LIMIT $5`, `LIMIT $5 + 1`}}},
	{"brought together with a blocked one unasked", "TestBroughtTogether", []edit{
		{"people/consent.standing.request", `!s.Shares || s.BlocksCompany`, `!s.Shares`}}},
	{"a block is told", "TestRefusalsLookTheSame", []edit{
		{"people/consent.standing.refuses", `if s.BlocksCaller { return true }`, ``}}},
	{"a refusal has KeyPackages", "TestRefusalsLookTheSame", []edit{
		{"convos.addWelcome", `distinct(append(slices.Clip(added), by), allowed.invited.Refused...)`, `append(slices.Clip(added), by)`}}},
	{"a refusal without a Welcome", "TestRefusedWithoutAWelcome", []edit{
		{"convos.Create", `n.Welcome == nil && len(invited.Refused) > 0`, `false`}}},
	{"a policy shuts members out", "TestPolicyWithinAConvo", []edit{
		{"people/consent.standing.refuses", `s.Accepted != nil && *s.Accepted`, `false`}}},
	{"an inviter's declined invitations do not count (S3)", "TestInvitationsOfOneInviter", []edit{
		{"convos/outsiders.sql", `greatest(open.of_inviter, day.of_inviter)`, `open.of_inviter`}}},
	{"an inviter's open invitations count for a day (S3)", "TestInvitationsOfOneInviter", []edit{
		{"convos/outsiders.sql", `greatest(open.of_inviter, day.of_inviter)`, `day.of_inviter`}}},
	{"invitations at once do not count each other (S3)", "TestInvitationsAtOnce", []edit{
		{"convos.countInvited", `pgpool.LockInvitations.Queue(batch, by.String())`, ``}}},
	{"an address invites with any number of DIDs (S3)", "TestInvitationsOfAnAddress", []edit{
		{"convos/outsiders.sql", `day.of_address`, `0`}}},
	{"a block declines nothing (S3)", "TestBlockDeclines", []edit{
		{"convos.decline", `WHERE m.did = $1 AND`, `WHERE false AND m.did = $1 AND`}}},
	{"an invitation overtakes a block", "TestBlockDeclinesWhatIsUnderWay", []edit{
		{"people/consent.Block", `pgpool.LockInvitations.Queue(batch, blocked.String())`, ``}}},
	{"a service repeats an invitation for nothing", "api.TestInvitationsToOneConvo", []edit{
		{"internal/network.Receive", `!before.Welcomed`, `!before.Invited`}}},
	{"one person moves a budget again and again", "api.TestOnePersonChangesABudgetOnce", []edit{
		{"internal/network.Answer", `(r.service, r.convo_id) <> ($2, $3)`, `false`}}},
	{"to leave with a block is no block at other services", "api.TestBlockFreesOpenInvitations", []edit{
		{"convos.Block", `network.Refuse(ctx, tx, did, blocked)`, `network.Refuse(ctx, tx, blocked, did)`}}},
	{"a reset makes one request two", "api.TestResetsDoNotFillInvitations", []edit{
		{"convos/outsiders.sql", `successor_id IS NOT NULL`, `false`}}},
	{"the creator learns of the Welcomes of a reset", "api.TestWelcomeStatusAfterAReset", []edit{
		{"welcome/confirm.sql", `WHEN c.predecessor_id IS NULL THEN`, `WHEN true THEN`}}},
	{"to commit does not accept", "TestRequestUntilAccepted", []edit{
		{"convos.locked.advance", "batch.Queue(`UPDATE members SET requested_at = NULL WHERE convo_id = $1 AND did = $2 AND requested_at IS NOT NULL`, c.id, by)", ``}}},
	{"to write does not accept", "internal/push.TestRequestsAreNotPushed", []edit{
		{"messages.transaction.queueConvos", `if t.states[i].isRequest {`, `if t.states[i].isRequest && last == nil {`}}},
	{"a request is pushed (messages)", "internal/push.TestRequestsAreNotPushed", []edit{
		{"internal/push/enqueue.sql", `AND m.requested_at IS NULL`, ``}}},
	{"a request is pushed (Welcome)", "TestRequestUntilAccepted", []edit{
		{"welcome.Add", `if !r.Request {`, `if true {`}}},
	{"others see the mark of a request", "TestStreamsMarkRequests", []edit{
		{"events.requests.marks", `mine := e.DID == did && (`, `mine := e.DID != "" && (`}}},

	// The database
	{"an empty parameter is NULL", "internal/pgpool.TestParameters", []edit{
		{"internal/pgpool.parameters.release", `p.buffer = make([]byte, 0, firstParameters)`, `p.buffer = nil`}}},
	{"parameters of the transaction before", "internal/pgpool.TestParameters", []edit{
		{"internal/pgpool.parameters.release", `p.values, p.formats, p.buffer = p.values[:0], p.formats[:0], p.buffer[:0]`, `p.buffer = p.buffer[:0]`}}},
	{"sessions that a pooler shares", "internal/pgpool.TestPooler", []edit{ // E11
		{"internal/pgpool.compareSessions", `others == session`, `others == 0`},
		{"internal/pgpool.compareSessions", `now != session`, `now == 0`}}},
	{"a primary that hangs keeps its statements", "internal/pgpool.TestPrimaryHangs", []edit{ // E7
		{"internal/pgpool.Primary.promoted", `c.address != address`, `false`}}},
	{"a COMMIT that waits for its standby is cancelled", "internal/pgpool.TestCommitIsNotCancelled", []edit{
		{"internal/pgpool.neverCancel", `connected.Load()`, `false`}}},
	{"parameters that a pooler refuses", "internal/pgpool.TestPooler", []edit{ // E11
		{"internal/pgpool.SetLater", `!atStart[name]`, `false`}}},
	{"a restore without the archive", "internal/localpg.TestRestoreToAMoment", []edit{
		{"internal/localpg.restoreCommand", `dir == ""`, `true`}}},
	{"a backup without its own WAL", "internal/localpg.TestBackupWhileRunning", []edit{
		{"internal/localpg.Manifest.baseBackup", `WAL true`, `WAL false`}}},

	// Epochs and membership
	{"a stale commit is many lost races", "TestOneStaleCommitIsOneLostRace", []edit{ // X7
		{"convos.RecordLoss", `least(m.lost_races, $4 - 1) + 1`, `m.lost_races + (c.epoch - $3)::integer`}}},
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
		{"convos.lockOpen", `case c.leftEpoch != nil:`, `case false:`}}},
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

	{"large messages share the shards", "messages.TestLargeMessages", []edit{
		{"messages.Log.first", `len(d.Body) > largeBody`, `len(d.Body) > 1<<30`}}},

	{"a failure in a request shows", "api.TestArrival", []edit{
		{"welcome/confirm.sql", `confirmed.failed AND NOT (SELECT request FROM recipient)`, `confirmed.failed`}}},
	{"the creator learns of the Welcomes of others", "api.TestArrival", []edit{
		{"welcome/confirm.sql", `coalesce(commit.sender_did, CASE`, `coalesce(NULL, CASE`}}},
	{"an arrival shows to who is blocked", "api.TestArrival", []edit{
		{"welcome/confirm.sql", `AND NOT EXISTS (SELECT FROM blocks WHERE did = $2 AND blocked_did = inviter.did)`, ``}}},
	{"all members learn of an arrival", "events.TestModel", []edit{
		{"events/find_events.sql", `kind NOT IN (5, 8)`, `kind <> 5`}}},

	// Post-quantum suites
	{"a KeyPackage of any suite has the largest size", "mls.TestLimitsFollowTheSuite", []edit{
		{"mls.ParseKeyPackage", `k.CipherSuite.Limits().KeyPackage`, `MaxKeyPackageSize`}}},
	{"a GroupInfo of any suite has the largest size", "mls.TestLimitsFollowTheSuite", []edit{
		{"mls.ParseGroupInfo", `g.CipherSuite.Limits().GroupInfo`, `MaxGroupInfoSize`}}},
	{"a leaf of any suite has the largest size", "mls.TestLimitsFollowTheSuite", []edit{
		{"mls.CipherSuite.verifyLeaf", `c.Limits().KeyPackage`, `MaxKeyPackageSize`}}},
	{"a commit of any suite has the largest size", "api.TestCommitOfAnotherSuite", []edit{
		{"convos.locked.checkCommit", `len(commit) > most`, `len(commit) > mls.MaxCommitSize`}}},
	{"a coefficient of ML-KEM may be q", "mls.TestMLKEMKeys", []edit{
		{"mls.isReduced", `uint16(b[1])>>4|uint16(b[2])<<4 >= q`, `uint16(b[1])>>4|uint16(b[2])<<4 > q`}}},
	{"a KEM's output is a public key", "mls.TestApply", []edit{
		{"mls.CipherSuite.validKEMOutput", `p.kem.outputSize && p.kem.validOutput(output)`, `p.kem.keySize && p.kem.validKey(output)`}}},

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
	{"messages in a closed convo (M3)", "TestReInitCloses", []edit{
		{"messages.judge", `case s.convo.isClosed:`, `case s.convo.isClosed && s.hasLeft:`}}},
	{"commits in a closed convo (M3)", "TestReInitCloses", []edit{
		{"convos.lockOpen", `return c, c.refuseClosed()`, `return c, nil`}}},
	{"an outsider is in the new group of a reset", "TestResetRefusals", []edit{
		{"convos.ResetConvo", `if i < 0 {`, `if i < -1 {`}}},
	{"a reset ignores a dispute", "TestResetInADispute", []edit{
		{"convos.locked.mayReset", `c.dispute != nil && (c.dispute.Caller || !reports)`, `c.dispute != nil && c.dispute.Caller`}}},
	{"a refusal does not name the successor", "TestReset", []edit{
		{"messages.Closed", `if successor == uuid.Nil {`, `if successor != uuid.Nil {`}}},
	{"a reset takes no receipts", "TestResetCarriesMembersOfOtherServices", []edit{
		{"convos.ResetConvo", `foreign: r.Foreign`, `foreign: nil`}}},
	{"closed before the key (M3)", "TestReInitCloses", []edit{
		{"messages.judge", `case s.recorded != nil:`, `case s.convo != nil && s.convo.isClosed:
		return &Result{Err: ErrConvoClosed}
	case s.recorded != nil:`}}},
	{"anyone is an external sender (M5)", "TestExternalProposal", []edit{
		{"convos.checkExternalSender", `case did != d.Sender.String():`, `case did == "":`}}},
	{"an outsider's proposal parses the group (S7)", "TestOutsidersProposalParsesNothing", []edit{
		{"convos.checkExternalSender", `if !listed {`, `if false {`}}},
	{"member-list-leak", "TestMemberListLeak", []edit{
		{"convos.Create", `if !inserted || deleted { return Convo{}, ErrGroupAlreadyExists`, `if !inserted {
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
	{"a convo's id in capitals", "TestOutsidersLearnNothing", []edit{
		{"api.convoID", `"ABCDEF"`, `"GHIJKL"`}}},
	{"removed member reads on", "TestRemovedMemberReadsNothing", []edit{
		{"convos.Authorise", `if left {`, `if left && m.Epoch < 0 {`}}},
	{"removed member reads on (messages)", "TestRemovedMemberReadsNothing", []edit{
		{"messages.reading.admit", `if left {`, `if left && last < 0 {`},
		{"messages/page_small.sql", `AND me.left_at IS NULL`, ``}}},
	{"member reads from before it joined", "TestRemovedMemberReadsNothing", []edit{
		{"messages/page_small.sql", `greatest(me.joined_seq, $3::bigint + 1)`, `$3::bigint + 1`}}},
	{"page without its membership", "TestOutsidersLearnNothing", []edit{
		{"messages/page_small.sql", `me.did = $2`, `me.role = 'creator' AND $2::text <> ''`}}},

	// Cursors
	{"a cursor goes back", "convos.TestCursorsTogether", []edit{
		{"convos/movecursors.sql", `a.furthest > a.cursor_seq`, `a.furthest <> a.cursor_seq`},
		{"convos/movecursors.sql", `m.cursor_seq < h.furthest`, `m.cursor_seq <> h.furthest`},
		{"convos/movecursors.sql", `greatest(m.cursor_seq, h.furthest)`, `h.furthest`}}},
	{"what was delivered goes back", "convos.TestCursorsTogether", []edit{
		{"convos/movecursors.sql", `a.furthest_delivered > greatest(a.cursor_seq, a.delivered_seq)`, `a.furthest_delivered <> greatest(a.cursor_seq, a.delivered_seq)`},
		{"convos/movecursors.sql", `greatest(m.cursor_seq, m.delivered_seq) < h.furthest_delivered`, `greatest(m.cursor_seq, m.delivered_seq) <> h.furthest_delivered`},
		{"convos/movecursors.sql", `greatest(m.delivered_seq, h.furthest_delivered)`, `h.furthest_delivered`}}},
	{"a cursor is shown without consent", "convos.TestShownCursors", []edit{
		{"convos/movecursors.sql", `AND EXISTS (SELECT FROM policies WHERE did = a.did AND share_cursors)`, ``}}},
	{"a request's cursor is shown", "convos.TestShownCursors", []edit{
		{"convos/movecursors.sql", `requested_at IS NULL AND EXISTS`, `EXISTS`}}},
	{"an outsider's cursor", "convos.TestCursorRefusals", []edit{
		{"convos/movecursors.sql", `c.id IS NULL OR m.did IS NULL THEN 'convo-not-found'`, `c.id IS NULL THEN 'convo-not-found' WHEN m.did IS NULL THEN 'not-member'`}}},
	{"a cursor ahead of the log", "convos.TestCursorRefusals", []edit{
		{"convos/movecursors.sql", `greatest(a.seq, a.delivered) > c.last_seq`, `greatest(a.seq, a.delivered) > c.last_seq + 1`}}},
	{"a refused cursor counts", "convos.TestCursorsTogether", []edit{
		{"convos/movecursors.sql", `max(seq) FILTER (WHERE status = 'moved')`, `max(seq)`}}},
	{"a busy cursor is waited for", "convos.TestBusyCursor", []edit{
		{"convos/movecursors.sql", `FOR NO KEY UPDATE SKIP LOCKED`, `FOR NO KEY UPDATE`}}},
	{"poison for all (cursors)", "convos.TestPoisonedCursor", []edit{
		{"convos.Cursors.Update", `case err != nil, r.status == cursorBusy:`, `case r.status == cursorBusy:`}}},

	{"cursors are seen without sharing", "TestGetCursors", []edit{
		{"people/consent/cursors.sql", `AND EXISTS (SELECT FROM policies WHERE did = $2 AND share_cursors)`, ``}}},
	{"a block hides no cursor", "TestGetCursors", []edit{
		{"people/consent/cursors.sql", `AND NOT EXISTS (SELECT FROM blocks WHERE did = m.did AND blocked_did = $2)`, ``}}},

	// Signals
	{"a signal reaches who has blocked its sender", "events.TestSignalsReachConnectedMembers", []edit{
		{"events/signals.Carrier.deliverPayload", `if slices.Contains(signal.Hidden, did) {`, `if slices.Contains(signal.Hidden, did) && did == signal.Sender {`}}},
	{"signals fill the buffers", "events.TestSignalsLeaveSpaceForEvents", []edit{
		{"events.buffer.offerSignal", `2*(b.queued+e.cost()) > size`, `b.queued+e.cost() > size`}}},
	{"a busy node delivers signals", "events/signals.TestSignalsAreDroppedFirst", []edit{
		{"events/signals.Carrier.deliver", `case c.cfg.Busy():`, `case subscriptions < 0:`}}},
	{"who shares no more is still seen", "TestViewersAfterWithdrawal", []edit{
		{"people/consent.Viewers.See", `v.sharing[mover] && `, ``}}},
	{"signals that were taken are lost silently", "events/signals.TestSignalsThatCannotBePassedOn", []edit{
		{"events/signals.Carrier.pass", `c.cfg.Metrics.Dropped(DroppedOffline, lost)`, `_ = lost`}}},
	{"one caller takes all signals", "events/signals.TestOneCallerCannotTakeAllSignals", []edit{
		{"events/signals.queue.take", `q.ofCaller.Take(signal.Sender, `, `q.ofCaller.Take(syntax.DID(signal.ConvoID.String()), `}}},
	{"one convo takes all signals", "events/signals.TestLimitsOfSignals", []edit{
		{"events/signals.queue.take", `q.ofConvo.Take(signal.ConvoID, `, `q.ofConvo.Take(uuid.New(), `}}},
	{"a former member signals", "TestRefusedSignals", []edit{
		{"messages.AuthoriseSignal", `case left:`, `case left && closed:`}}},
	{"a signal of another group", "TestRefusedSignals", []edit{
		{"messages.AuthoriseSignal", `!bytes.Equal(group, s.GroupID)`, `len(group) == 0`}}},
	{"a moved cursor goes back", "events/signals.TestMovedCursors", []edit{
		{"events/signals.queue.move", `max(m.Read, before.Read)`, `m.Read`}}},

	// KeyPackages
	{"double-claim", "TestDoubleClaim", []edit{
		{"keypackages/claim.sql", `FOR UPDATE SKIP LOCKED`, ``}}},
	{"double-claim (lapsed)", "TestOrphanedClaim", []edit{
		{"keypackages/end_claims.sql", `SET state = 'orphaned'`, `SET state = 'available', claimed_by = NULL`}}},
	{"drain", "TestDrain", []edit{
		{"keypackages/claim.sql", `>= $7 OR outsider`, `>= $7 + 1000000 OR outsider`}}},
	{"drain (at once)", "TestDrain", []edit{
		{"keypackages.Claim", `pgpool.LockClaims.Queue(&batch, r.Caller.String())`, ``}}},
	{"last resort beside a one-time KeyPackage", "keypackages.TestLastResort", []edit{
		{"keypackages/claim.sql", `AND NOT EXISTS (SELECT FROM claimed c WHERE (c.did, c.device_id) = (k.did, k.device_id))`, ``}}},
	{"expired-served", "TestExpiredServed", []edit{
		{"keypackages/claim.sql", `NOT last_resort AND not_after > clock_timestamp() AND ($2`, `NOT last_resort AND ($2`},
		{"keypackages/claim.sql", `NOT last_resort AND not_after > clock_timestamp() ORDER`, `NOT last_resort ORDER`}}},
	{"expired-served (last resort)", "TestExpiredServed", []edit{
		{"keypackages/claim.sql", `'available' AND last_resort AND not_after > clock_timestamp() AND ($2 = 0 OR cipher_suite = $2) AND NOT`, `'available' AND last_resort AND ($2 = 0 OR cipher_suite = $2) AND NOT`}}},
	{"locked-last-resort", "TestLockedLastResort", []edit{
		{"keypackages/claim.sql", `FROM key_packages k`, `FROM (SELECT * FROM key_packages FOR UPDATE SKIP LOCKED) k`}}},

	// Messages
	{"blind retry", "messages.TestUnknownOutcome", []edit{
		{"messages.worthAnotherTry", `return code == "40P01" || code == "40001"`, `return code != "40P01"`}}},
	{"a lost COMMIT is a failed one", "messages.TestLostCommit", []edit{
		{"messages.Log.transact", `if pgpool.OutcomeUnknown(err) {`, `if pgpool.OutcomeUnknown(err) && len(drafts) == 0 {`}}},
	{"a lost COMMIT loses its refusals", "messages.TestLostBatch", []edit{
		{"messages.Log.resolve", `results[i].Err != nil && !(conflict && missing[d.requestKey()])`, `results[i].Replayed && !conflict`}}},
	{"a lost message conflicts", "messages.TestConflictWithLostMessage", []edit{
		{"messages.Log.resolve", `!(conflict && missing[d.requestKey()])`, `!(conflict && len(missing) == 0)`}}},
	{"judged by an old snapshot", "messages.TestAppendedWhileWaiting", []edit{
		{"messages.transaction.queueReads", `batch.Queue(lock, args...).Query(t.readConvos)`, ``},
		{"messages.transaction.queueReads", `var tokens pgpool.Array[pgpool.UUID]`, `batch.Queue(lock, args...).Query(t.readConvos)
	var tokens pgpool.Array[pgpool.UUID]`}}},
	{"a change of the roster leaves the convo's row alone", "convos.TestCommitWithoutEvent", []edit{
		{"convos.locked.removeFromRoster", `, updated AS ( … ) INSERT INTO outbox`, ` INSERT INTO outbox`}}},
	{"a sender joins a busy convo", "messages.TestJoinedMeanwhile", []edit{
		{"messages.Log.write", `if wait && (err == nil || lost != nil) {`, `if wait && len(drafts) == 0 {`}}},
	{"a message from before is no replay (X4)", "messages.TestLostBatchIsLookedUp", []edit{
		{"messages.Log.resolve", `r.age > sinceBegan`, `r.age > sinceBegan+time.Hour`}}},
	{"another's row for one's own", "messages.TestLostBatch", []edit{
		{"messages.lookup", `r.request_hash = d.hash`, `r.request_hash IS NOT NULL`}}},
	{"answered before the COMMIT", "internal/pgpool.TestSendTx", []edit{
		{"internal/pgpool.sendTx", `_, err = p.GetResults()`, `_, _ = p.GetResults()`},
		{"internal/pgpool.sendTx", `err = closeErr`, `_ = closeErr`}}},
	{"nobody waits for a busy convo", "messages.TestSameKeyRunning", []edit{
		{"messages.lockConvos", `FOR NO KEY UPDATE`, `FOR NO KEY UPDATE SKIP LOCKED`}}},
	{"a former member waits for the convo", "messages.TestOutsidersDoNotWait", []edit{
		{"messages.lockConvos", `AND left_at IS NULL`, ``}}},
	{"the log stands still", "messages.TestConcurrentBatches", []edit{
		{"messages.transaction.queueConvos", `batch.Queue(advanceConvos, convos, seqs, t.now)`, ``}}},
	{"two messages of one batch have one seq", "messages.TestJudgeBatch", []edit{
		{"messages.judgeAll", `s.convo.lastSeq++`, `s.convo = &convo{lastSeq: s.convo.lastSeq + 1}`}}},
	{"a batch appends a repetition", "messages.TestJudgeBatch", []edit{
		{"messages.judgeAll", `ok && s.recorded == nil {`, `ok && s.recorded != nil {`}}},
	{"a repetition in the batch is a conflict", "messages.TestBatchIsJudgedRowByRow", []edit{
		{"messages.recordOf", `hash: d.Hash[:]`, `hash: d.Body`}}},
	{"a conflict names the wrong fields", "messages.TestBatchIsJudgedRowByRow", []edit{
		{"messages.recorded.differing", `!bytes.Equal(body[:], r.bodyHash)`, `bytes.Equal(body[:], r.bodyHash)`}}},
	{"a busy convo fails its neighbours", "messages.TestBusyConvoHoldsUpNoOther", []edit{
		{"messages.Log.write", `case pgpool.LockTimeout(err) && wait:`, `case pgpool.LockTimeout(err):`}}},
	{"a held convo is a failure", "messages.TestSameKeyRunning", []edit{
		{"messages.Log.write", `results = failed(drafts, ErrHeld)`, `results = failed(drafts, err)`}}},
	{"the queue keeps a caller that left", "messages.TestCallerHangsUp", []edit{
		{"internal/batch.Batcher.remove", `i >= 0`, `i > len(b.queue)`}}},
	{"unbounded queue", "messages.TestQueueIsBounded", []edit{
		{"messages.sends.begin", `case s.n > 0 &&`, `case s.n < 0 &&`}}},
	{"an outsider waits in the lane", "messages.TestOutsiderPassesTheLane", []edit{
		{"messages.Log.Send", `r, err := l.first(&d).Do(ctx, d)`, `r, err := Result{Err: ErrBusy}, error(nil)
	l.lanes.mu.Lock()
	waits := l.lanes.busy[d.ConvoID] != nil
	l.lanes.mu.Unlock()
	if !waits {
		r, err = l.first(&d).Do(ctx, d)
	}`}}},
	{"one shard", "messages.TestOtherShardGoesOn", []edit{
		{"messages.Log.shardOf", `uint64(len(l.lanes.shards))`, `uint64(len(l.lanes.shards)/2)`}}},
	{"commits expire", "messages.TestExpiry", []edit{
		{"messages/expire_batch.sql", `AND m.seq <= p.upto AND m.kind = 1`, `AND m.seq <= p.upto`}}},
	{"a hole in the log", "messages.TestExpiryInOrder", []edit{
		{"messages/expire_batch.sql", `bool_and(created_at < $2) OVER (ORDER BY seq)`, `created_at < $2`}}},
	{"the sweep of messages begins again", "messages.TestSweeperGoesOn", []edit{
		{"messages.Sweeper.round", `for {`, `e.after = uuid.UUID{}; for {`}}},
	{"an expired cursor is none", "messages.TestExpiry", []edit{
		{"messages.reading.admit", `at := timeOf(*r.Behind)`, `var at time.Time`}}},
	{"any cursor has expired", "messages.TestExpiry", []edit{
		{"messages.reading.admit", `if r.seqs.id(r.cursor, at) != *r.Behind {`, `if at.IsZero() {`}}},
	{"a token twice in one call", "internal/serviceauth.TestUsesOfOneCall", []edit{
		{"internal/serviceauth.UsedTokens.record", `delete(first, s.token)`, ``}}},
	{"a used token sends", "messages.TestTokens", []edit{
		{"messages.transaction.queueWrites", `s.isUsed = t.used[d.Token.ID()]`, ``},
		{"messages.useTokens", `$2::timestamptz[])`, `$2::timestamptz[]) ON CONFLICT DO NOTHING`}}},
	{"a token that is used meanwhile sends", "messages.TestTokenUsedMeanwhile", []edit{
		{"messages.useTokens", `$2::timestamptz[])`, `$2::timestamptz[]) ON CONFLICT DO NOTHING`}}},
	{"two messages of one batch have one token", "messages.TestTokens", []edit{
		{"messages.judgeAll", `tokens[token.id] || `, ``},
		{"messages.useTokens", `$2::timestamptz[])`, `$2::timestamptz[]) ON CONFLICT DO NOTHING`}}},
	{"a repeated draft keeps its token", "messages.TestFirstRequestHasAUsedToken", []edit{
		{"messages.judge", `case s.isUsed:`, `case s.isUsed && s.recorded == nil:`}}},
	{"a busy convo's messages are refused for their own tokens", "messages.TestTokenOfBusyConvo", []edit{
		{"messages.judgeAll", `&& j.results[i].Err != ErrBusy {`, `{`}}},
	{"a rolled-back draft uses its token", "messages.TestTokenOfBusyConvo", []edit{
		{"messages.Log.Send", `r, err = l.sendBusy(ctx, d)`, `d.Token = nil
		r, err = l.sendBusy(ctx, d)`}}},
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
	{"a forger uses up all look-ups", "internal/serviceauth.TestForgerLeavesLookups", []edit{
		{"internal/serviceauth.addressLimits.admit", `shares := []share{{from, lookupsOfAddress, ErrSpent}}`, `var shares []share`},
		{"internal/serviceauth.addressLimits.admit", `l.slots.UsedBy(from) == 0 {`, `l.slots.UsedBy(from) < 0 {`}}},
	{"forgers of many addresses use up all look-ups", "internal/serviceauth.TestForgersOfManyAddresses", []edit{
		{"internal/serviceauth.addressLimits.admit", `shares = append(shares, share{"did:"`, `_ = append(shares, share{"did:"`}}},
	{"a write takes an event along and does not send it", "TestWaitingEvents", []edit{
		{"api.another", `if n >= batchBytes { return nil }`, `if n >= batchBytes { s.More(); return nil }`}}},
	{"a large event is not counted", "events.TestMore", []edit{
		{"events.Subscription.More", `e.Size > largeEvent ||`, ``}}},
	{"an event is sent without its log entry", "events.TestMore", []edit{
		{"events.Subscription.More", `|| e.Kind.LogEntry() && e.Message() == nil`, ``}}},
	{"a write that takes too long is not cut", "TestSlowReaders", []edit{
		{"api.stream.watch", `k.sever()`, ``}}},
	{"what came with the handshake is dropped", "TestFrameWithTheHandshake", []edit{
		{"api.hijacker.Hijack", `io.MultiReader(bytes.NewReader(early), conn)`, `conn`},
		{"api.hijacker.Hijack", `r.Peek(len(early))`, `r.Peek(0)`}}},
	{"a confirmation after a block shows", "TestGetWelcomeStatus", []edit{
		{"welcome.statusRow.shown", `case joined:`, `case joined || r.ConfirmedAt != nil:`}}},
	{"a block ends a lease at once", "TestGetWelcomeStatus", []edit{
		{"welcome.statusRow.shown", `leased := r.State == InFlight || r.State == Consumed`, `leased := r.State == InFlight`}}},
	{"a join that fails in a request shows", "TestWelcomeStatusOfARequest", []edit{
		{"welcome.statusRow.shown", `seen(r.LastFailedAt)`, `r.LastFailedAt != nil`}}},
	{"everybody learns of a Welcome", "TestGetWelcomeStatus", []edit{
		{"welcome.Service.Statuses", `if r.Sent {`, `if true {`}}},
	{"one member decides about a forked epoch", "TestPublishGroupInfoNeedsAgreement", []edit{
		{"convos.PublishGroupInfo", `case forked:`, `case forked && false:`}}},
	{"one member overrules another's claim", "TestPublishGroupInfoNeedsAgreement", []edit{
		{"convos.locked.replaceGroupInfo", `, !overrules && group.vouchedBy != o.Caller:`, `:`}}},
	{"others' KeyPackages are listed", "TestOwnKeyPackagesAreTheCallers", []edit{
		{"keypackages.List", `WHERE did = $1 AND`, `WHERE ($1 <> '') AND`}}},
	{"answers that fit no request are a defect", "internal/pgpool.TestOutOfStep", []edit{
		{"internal/pgpool.Unavailable", `|| outOfStep(err)`, ``}}},
	{"a proxy's health checks use up its address", "TestHealthChecksOfProxies", []edit{
		{"api.limiter.page", `err == nil && limit.Within(ip, l.proxies)`, `err == nil && false && limit.Within(ip, l.proxies)`}}},
	{"a PDS pays for its users", "internal/serviceauth.TestPDSOfNewUsers", []edit{
		{"internal/serviceauth.addressLimits.admit", `if giveBack {`, `if giveBack && from == "" {`}}},
	{"bad signatures cost no look-up", "internal/serviceauth.TestBadSignaturesSpendTheBudget", []edit{
		{"internal/serviceauth.Validator.verifyWithKeyOfIssuer", `if err := charge.admit(ctx); err != nil {`, `if err := ctx.Err(); err != nil {`}}},
	{"a stale key while the server is busy", "internal/serviceauth.TestStaleKeyWhileBusy", []edit{
		{"internal/serviceauth.outage", `&& !errors.Is(err, ErrBusy)`, ``}}},
	{"5,000 who return are 5,000 reads", "internal/serviceauth.TestReturn", []edit{
		{"internal/serviceauth.newSharedKeys", `Batch: readsOfCall`, `Batch: 1`}}},
	{"5,000 who return are 5,000 look-ups", "internal/serviceauth.TestReturn", []edit{
		{"internal/serviceauth.newSharedKeys", `Queue: readsWaiting`, `Queue: readsOfCall`}}},
	{"others push out accounts that verified", "internal/serviceauth.TestVerifiedKeysStay", []edit{
		{"internal/serviceauth.CachedDirectory.Verified", `c.verified.Add(did, known)`, `c.others.Add(did, known)`}}},
	{"a key comes back after Forget", "internal/serviceauth.TestForget", []edit{
		{"internal/serviceauth.CachedDirectory.drop", `l.void = true`, ``}}},
	{"other nodes keep a forgotten key", "internal/serviceauth.TestForget", []edit{
		{"internal/serviceauth.CachedDirectory.readMarks", `if last.seen[did] != version {`, `if last.seen[did] > version {`}}},
	{"other nodes keep a replaced key", "internal/serviceauth.TestReplacedAndDeleted", []edit{
		{"internal/serviceauth/write_keys.sql", `version = k.version + CASE WHEN k.key <> excluded.key THEN 1 ELSE 0 END`, `version = k.version`}}},
	{"a token outlives its key", "internal/serviceauth.TestForgetEndsVerifiedTokens", []edit{
		{"internal/serviceauth.Validator.remembered", `key != nil && key.Equal(t.key)`, `key != nil || ok`}}},
	{"tarpits hold all slots", "internal/serviceauth.TestTarpitsHoldFewSlots", []edit{
		{"internal/limit.Queue.fits", `l.used+units <= q.Share`, `units <= q.Share`}}},
	{"known accounts of a domain use up those of all", "internal/serviceauth.TestKnownAccountsOfOneDomain", []edit{ // S4
		{"internal/serviceauth.source.admit", `if l.domain != "" {`, `if l.domain != "" && !l.known {`}}},
	{"sessions of a domain use up those of all", "internal/serviceauth.TestKnownAccountsOfOneDomain", []edit{ // S4
		{"internal/serviceauth.currentShares", `did.Method() == "web"`, `did == ""`}}},
	{"tarpits that verified hold all slots", "internal/serviceauth.TestTarpitsThatVerified", []edit{ // S4
		{"internal/serviceauth.source.get", `s.buckets.Charge(slowAnswers+l.domain, slowOfDomain, 1)`, ``}}},
	{"sessions of an address use up those of all", "internal/serviceauth.TestSessionsAreDividedByAddress", []edit{ // S6
		{"internal/serviceauth.currentShares", `"address " + from`, `"address " + did.String()`}}},
	{"a refused session is charged to its account", "internal/serviceauth.TestSessionsAreDividedByAddress", []edit{ // S6
		{"internal/serviceauth.takeAll", `buckets.Give(taken.key, taken.rate, 1)`, `_ = taken`}}},
	{"an address holds all connections", "internal/node.TestWaitingConnectionsOfAnAddress", []edit{ // S13
		{"internal/node.waiting.add", `of.Len() > w.maxOfAddress && !proxy`, `of.Len() > w.most && !proxy`}}},
	{"a proxy's connections are those of one client", "internal/node.TestWaitingConnectionsOfAll", []edit{ // S13
		{"internal/node.waiting.add", `&& !proxy`, `&& (proxy || !proxy)`}}},
	{"_health costs nothing", "api.TestPagesHaveARate", []edit{ // S13
		{"api.limiter.page", `l.chargeAddress(address)`, ``}}},
	{"a limit makes a signature wrong", "internal/serviceauth.TestBadSignaturesOfManyDIDs", []edit{ // S11
		{"internal/serviceauth.Validator.verifyWithKeyOfIssuer", `case errors.Is(err, ErrIssuer), errors.Is(err, ErrBusy):`, `case errors.Is(err, ErrIssuer):`}}},
	{"forgers use up the refreshes of all", "internal/serviceauth.TestRotationBesideForgers", []edit{ // S11
		{"internal/serviceauth.Validator.mayRefresh", `"address " + from`, `"address " + did.String()`}}},
	{"a failing host costs its caller nothing", "api.TestFailedLookupsAreCharged", []edit{
		{"api.chargesAddress", `errors.Is(err, serviceauth.ErrHost), `, ``}}},
	{"an outage is charged to callers", "api.TestFailedLookupsAreCharged", []edit{
		{"internal/serviceauth.Validator.checkSignature", `|| ctx.Err() == nil && notTheCallersFault(err)`, ``}}},
	{"messages wait with claims", "api.TestCheapPassesExpensive", []edit{
		{"api.Server.call", `if cl.route.expensive {`, `if cl.route.expensive || cl.route.Method.NSID != "" {`}}},
	{"claims do not wait", "api.TestCheapPassesExpensive", []edit{
		{"api.Server.call", `if cl.route.expensive {`, `if cl.route.expensive && cl.route.Method.NSID == "" {`}}},
	{"one caller has all turns", "api.TestAdmissionTakesTurns", []edit{
		{"internal/limit.Queue.next", `q.turns = append(q.turns, l)`, `q.turns = append([]*line{l}, q.turns...)`}}},
	{"requests that wait for a lock keep all others waiting", "api.TestAdmissionOfThoseWhoWait", []edit{
		{"api.expensiveRequest.start", `time.AfterFunc(admittedFor, r.next)`, `time.AfterFunc(time.Hour, r.next)`}}},
	{"an expensive request never makes way", "api.TestAdmissionOfThoseWhoWait", []edit{
		{"api.expensiveRequest.start", `r.early.Release(r.caller, 1)`, ``}}},
	{"late requests of a caller have no bound", "api.TestClaimsBehindALock", []edit{
		{"api.newAdmission", `Share: maxRunningOfCaller,`, ``}}},
	{"late requests of all callers have no bound", "api.TestLateRequestsAreBounded", []edit{
		{"api.newAdmission", `Size: int64(max(early, connections-cheapConnections)),`, `Size: 1000,`}}},
	{"KeyPackages are verified on a connection", "api.TestCostlyKeyPackages", []edit{
		{"keypackages.PublishAll", `len(batch) == 1 {`, `len(batch) > 0 {`}, {"keypackages.PublishAll", `batch[0].verify()`, `for i := range batch { if batch[i].parse() == nil { batch[i].verify() } }`}}},
	{"duplicates are verified again", "keypackages.TestBatchIsVerifiedOutside", []edit{
		{"keypackages.ownerStock.unverified", `&& !s.has(p.checked.kp)`, ``}}},
	{"a bad signature is found and published", "keypackages.TestPublishRefuses", []edit{
		{"keypackages.ownerStock.admit", `c.signatureErr != nil`, `c.parseErr != nil`}}},
	{"rejected KeyPackages count nothing", "api.TestRejectedKeyPackagesCount", []edit{
		{"api.giveBack", `r.Status == statusDuplicate`, `r.Status != statusPublished`}}},
	{"late requests cost nothing", "api.TestLateRequestsAreCharged", []edit{
		{"api.call.endExpensive", `c.spend(c.expensive.units())`, ``}}},
	{"a long lock costs a caller all its units", "api.TestLateRequestsAreCharged", []edit{
		{"api.expensiveRequest.units", `min(int(max(0, r.took-admittedFor)/unitLate), maxLateUnits)`, `int(max(0, r.took-admittedFor)/unitLate)`}}},
	{"a verification counts as an expensive request that runs", "api.TestOutsideMakesWay", []edit{
		{"api.call.outside", `c.expensive.end()`, ``}}},
	{"who hangs up is admitted for ever", "api.TestAdmissionOfTheGone", []edit{
		{"api.expensiveRequest.acquire", `r.running.Release(r.caller, 1)`, ``}}},
	{"the queue of expensive requests has no end", "api.TestAdmissionIsBounded", []edit{
		{"api.newAdmission", `MaxWaiting: maxWaiting,`, `MaxWaiting: 2*maxWaiting,`}}},
	{"one caller fills the queue of expensive requests", "api.TestAdmissionIsBounded", []edit{
		{"api.newAdmission", `, MaxWaitingOfKey: maxWaitingOfCaller`, ``}}},
	{"a batch of Welcomes takes no rest", "internal/batch.TestRests", []edit{
		{"internal/batch.Batcher.runAll", `b.limits.Rests && b.Waiting() > 0`, `false`}}},
	{"a lone item waits for a rest", "internal/batch.TestRests", []edit{
		{"internal/batch.Batcher.runAll", `b.limits.Rests && b.Waiting() > 0`, `b.limits.Rests`}}},
	{"a transaction for each getWelcome", "welcome.TestFetchedTogether", []edit{
		{"welcome.Service.Fetch", `if wait {`, `if wait || d.to.DID != "" {`}}},
	{"poison for all (fetches)", "welcome.TestFetchedTogether", []edit{
		{"welcome.attempt", `case n > 1:`, `case n > 0:`}}},
	{"a slow step is followed by as long a pause", "events.TestPauseAfter", []edit{
		{"events.pauseAfter", `min(max(took, minPause), maxPause)`, `max(took, minPause)`}}},
	{"messages wait for the memory of pages", "api.TestLargeRequestsLeaveMemory", []edit{
		{"api.newMemory", `limit.Bound{Above: maxSmall, Size: 512 * mib, Share: 64 * mib}`, `limit.Bound{Above: maxSmall, Size: 576 * mib, Share: 64 * mib}`}}},
	{"messages wait for the memory of larger bodies", "api.TestLargeRequestsLeaveMemory", []edit{
		{"api.newMemory", `limit.Bound{Above: maxTiny, Size: 320 * mib, Share: 64 * mib},`, ``}}},
	{"declared bodies take all memory", "api.TestDeclaredBodiesTakeNothing", []edit{
		{"api.firstPiece", `4 * kib`, `256 * kib`}, {"internal/limit.Memory.cutSlow", `r.transfer.set(time.Unix(1, 0))`, ``}}},
	{"who does not read keeps the memory", "internal/limit.TestSlowestIsCut", []edit{
		{"internal/limit.Memory.cutSlow", `r.transfer.set(time.Unix(1, 0))`, ``}}},
	{"small requests are cut for large ones", "internal/limit.TestLargeRequestsLeaveMemory", []edit{
		{"internal/limit.missing.inBoundsOf", `m[:r.bounds]`, `m`}}},
	{"an address holds all memory", "internal/limit.TestSlowShareOfAddress", []edit{
		{"internal/limit.Memory.cutSlow", `.queue.Size/slowShare`, `.queue.Size`}}},
	{"a refused ticket is used up", "api.TestRefusedTicketStays", []edit{
		{"api.handlers.subscriber", `holder, err := h.Tickets.Owner(c.ctx, *ticket, c.route.Method.NSID)`, `
			did, err := h.Tickets.Redeem(c.ctx, *ticket, c.route.Method.NSID)
			holder := events.Holder{DID: did}`}}},
	{"waiting for memory is slowness", "events.TestWaitForLargeEventsIsExcused", []edit{
		{"events.Subscription.acquireLarge", `defer func() { s.excuse(began, s.hub.now()) }()`, `_ = began`}}},

	// Events
	{"bigserial-gap", "events.TestBigserialGap", []edit{
		{"events.Sequencer.step", `WHERE id > $6 AND`, `WHERE id > greatest($6, (SELECT coalesce(max(stream_seq), 0) FROM events)) AND`}}},
	{"catchup-fills-live", "events.TestCatchupFillsLive", []edit{
		{"events.Subscription.advance", `s.mu.Unlock() if len(page) > 0 {`, `if s.queued > s.hub.cfg.Buffer {
		s.fail(ErrConsumerTooSlow)
	}
	s.mu.Unlock()
	if len(page) > 0 {`}}},
	{"lag-dropped", "events.TestLagDropped", []edit{
		{"events.registry.offer", `r.detach(b) b.place = e.StreamSeq - 1`, ``}}},
	{"per-type-cursor", "events.TestPerTypeCursor", []edit{
		{"events.catchUp.page", `page, total := found, 0`, `
	slices.SortStableFunc(found, func(a, b *Event) int { return cmp.Compare(a.Kind, b.Kind) })
	page, total := found, 0`}}},
	{"late-convo", "events.TestLateConvo", []edit{
		{"events.registry.publishMembership", `r.addConvo(b, e.ConvoID)`, ``}}},
	{"one-leader-lost", "events.TestOneLeaderLost", []edit{
		{"events.Sequencer.round", `time.Since(s.tried) >= electEvery`, `s.tried.IsZero()`}}},
	{"removed-still-streams", "events.TestRemovedStillStreams", []edit{
		{"events.registry.publishMembership", `if joined {`, `if joined || !joined {`}}},
	{"removed-still-streams (catching up)", "events.TestRemovedStillStreams", []edit{
		{"events.catchUp.replay", `membership{ch.convo, from, ch.at}`, `membership{ch.convo, from, c.upto}`}}},
	{"the roster is not the stream", "events.TestLateMembership", []edit{
		{"events.catchUp.begin", `c.rewind(changes)`, ``}}},
	{"a gap before the live events", "events.TestSixteenWriters", []edit{
		{"events.registry.attach", `r.offerMissed(b, r.memory.after(b.place))`, `r.offerMissed(b, nil)`}}},
	{"a filter hides a device", "events.TestWhoCountsAsConnected", []edit{
		{"events.Hub.Subscribe", `if r.Convos != nil { s.device`, `if r.Convos != nil && r.DeviceID == "" { s.device`}}},
	{"a reader of the table stops the stream", "events.TestReaderOfTheTable", []edit{
		{"events.Sequencer.round", `s.maintainDue = time.Now().Add(maintainAgain)`, `s.maintainDue = time.Now().Add(maintainAgain); return 0, err`}}},
	{"days are dropped in silence", "events.TestDroppedWhileCatchingUp", []edit{
		{"events.catchUp.findInTable", `first > c.place+1 ||`, `first > c.place+1 && first < 0 ||`}}},
	{"a lost event's place is as good as its successor's", "events.TestDatabaseGoesBack", []edit{
		{"events.generations.resolve", `if later.after < place {`, `if later.after < place && later.after < 0 {`}}},
	{"a reader of the table reads on in another generation", "events.TestCatchUpNoticesGeneration", []edit{
		{"events.catchUp.findInTable", `|| newest != c.of.newest().id`, ``}}},
	{"places of a generation that is not recorded", "events.TestSequencerRecordsGeneration", []edit{
		{"events.Sequencer.adopt", `all, err := checkServer(ctx, s.conn, now.of, s.onDump)`, `all, err := now.of, error(nil)`}}},
	{"a restored dump passes for its original", "events.TestDumpIsNoticed", []edit{
		{"events.server.agrees", `return s.or(o)`, `s.database, s.table = o.database, o.table; return s.or(o)`}}},
	{"a restored dump keeps the sessions that have ended since", "events.TestDumpIsNoticed", []edit{
		{"events.beginGeneration", `return also(ctx, tx)`, `return nil`}}},
	{"the leader does not see that the stream goes back", "events.TestDatabaseGoesBack", []edit{
		{"events.Sequencer.step", `AND $4 = (SELECT head FROM stream) AND $5 = (SELECT max(id) FROM generations)`, `AND $4::bigint >= 0 AND $5::bigint >= 0`},
		{"events.Sequencer.step", `return 0, errWentBack`, ``},
		{"events.Sequencer.adopt", `now.head < s.head || !elected`, `!elected`}}},
	{"the floor does not wait for low ids", "events.TestFloorWaitsForLowIDs", []edit{
		{"events.floor.seek", `len(f.writers) == 0`, `true`}}},
	{"a step tells no other node", "events.TestStepNotifiesOtherNodes", []edit{
		{"events.Sequencer.step", `WHERE id <> $7`, `WHERE id = $7`}}},
	{"a proposal loses its place", "messages.TestSharedRows", []edit{
		{"messages.transaction.queueEvents", `together = together && d.Kind == mls.ContentTypeApplication`, ``}}},
	{"a new hub does not remember what is not indexed", "events.TestHubRemembersWhatIsNotIndexed", []edit{
		{"events.remember", `from < s.head`, `from < 0`}}},
	{"the index goes on over the end of a day", "events.TestIndex", []edit{
		{"events/index_events.sql", `AND day = next.day`, ``}}},
	{"the window grows out of its type", "events.TestWindowHasABound", []edit{
		{"events.catchUp.move", `min(4*c.window, maxWindow)`, `4*c.window`}}},
	{"the index stands still after dropped days", "events.TestIndexAfterDroppedDays", []edit{
		{"events/index_events.sql", `stream_seq > next.before AND stream_seq <= next.before + $2`, `stream_seq > done.last AND stream_seq <= done.last + $2`}}},
	{"a reader goes on without the index", "events.TestReaderWaitsForIndex", []edit{
		{"events.catchUp.find", `c.waits = c.place >= indexed && !remembered`, `c.waits = false`}}},
	{"who subscribes at an idle hub gets what was there before", "events.TestSubscribeAtIdleHub", []edit{
		{"events.Subscription.start", `s.place = max(before, now.head)`, `s.place = before`}}},
	{"an idle hub leaves events unread for its first subscription", "events.TestHubReadsForItsSubscriptions", []edit{
		{"events.Hub.due", `len(h.all) > 0 && h.grown.Load() > h.head`, `len(h.all) > 1 && h.grown.Load() > h.head`}}},
	{"commit-without-event", "convos.TestCommitWithoutEvent", []edit{
		{"messages.AppendCommit", `, outboxed AS ( … ) SELECT seq`, ` SELECT seq`}}},

	// Push
	{"lost-fanout", "internal/push.TestLostFanout", []edit{
		{"messages.transaction.queuePushes", `d.Kind == mls.ContentTypeApplication {`, `d.Kind == 4 {`},
		{"messages.Log.transact", `return t.results, err`, `if err != nil {
		return t.results, err
	}
	for _, d := range drafts {
		_, err := l.db.Exec(ctx, "INSERT INTO push_convos VALUES ($1, $2, now()) ON CONFLICT DO NOTHING", d.ConvoID, d.Sender)
		if err != nil {
			return nil, err
		}
	}
	return t.results, err`}}},
	{"connected to a stream that stands still", "internal/push.TestNothingWasSent", []edit{
		{"internal/push.Worker.dueJobs", `next_attempt_at <= now() - $3::interval`, `$3::interval IS NULL`},
		{"events.Presence.renew", `(SELECT created_at FROM outbox WHERE id > (SELECT floor FROM stream) ORDER BY id LIMIT 1)`, `clock_timestamp()`}}},
	{"pushed before the commit", "internal/push.TestFanoutDuringCommit", []edit{
		{"messages.queuePushes", `DO UPDATE SET sender_did = excluded.sender_did WHERE false`, `DO NOTHING`}}},
	{"pushed before the commit (looked at first)", "internal/push.TestFanoutDuringCommit", []edit{
		{"messages.queuePushes", `AS s ON CONFLICT`, `AS s (convo, sender)
	WHERE NOT EXISTS (SELECT FROM push_convos p WHERE (p.convo_id, p.sender_did) = (convo, sender)) ON CONFLICT`}}},
	{"pushed before the commit (Welcome)", "internal/push.TestJobDuringDeposit", []edit{
		{"internal/push/enqueue.sql", `DO UPDATE SET … push_jobs.reason <> 'welcome'`, `DO NOTHING`}}},
	{"a heard job takes in a newer one", "internal/push.TestNewerJobSupersedes", []edit{
		{"internal/push.Worker.postpone", `EXISTS (SELECT FROM newer) THEN 'done'`, `EXISTS (SELECT FROM newer) THEN state`},
		{"internal/push.Worker.postpone", `CASE WHEN EXISTS (SELECT FROM newer) THEN clock_timestamp() END`, `NULL`}}},
	{"connected devices are skipped", "internal/push.TestMessageDuringDeferral", []edit{
		{"internal/push/enqueue.sql", `) d ORDER BY`, `) d WHERE NOT connected ORDER BY`}}},
	{"a deferral is not prolonged", "internal/push.TestMessageDuringDeferral", []edit{
		{"internal/push/enqueue.sql", `WHERE push_jobs.heard_by IS NOT NULL OR excluded`, `WHERE excluded`}}},
	{"presence outlives its lease", "internal/push.TestPresenceHidesNothingLongerThanItsLease", []edit{
		{"internal/push/enqueue.sql", `n.lease_expires_at > clock_timestamp() AND`, ``},
		{"internal/push.CallDisconnected", `n.lease_expires_at > clock_timestamp() AND`, ``},
		{"internal/push.Worker.endConnected", `n.lease_expires_at > clock_timestamp() AND`, ``},
		{"internal/push.Worker.dueJobs", `n.lease_expires_at > clock_timestamp() AND`, ``}}},
	{"a connection counts as delivery", "internal/push.TestPresenceHidesNothingLongerThanItsLease", []edit{
		{"internal/push.Worker.endConnected", `n.synced_at - $3::interval >= d.heard_by`, `$3::interval IS NOT NULL`}}},
	{"a connection counts too early", "internal/push.TestLateConnection", []edit{
		{"internal/push.Worker.endConnected", `p.since <= d.heard_by - $2::interval`, `$2::interval IS NOT NULL`},
		{"internal/push.Worker.dueJobs", `p.since <= d.heard_by - $4::interval`, `$4::interval IS NOT NULL`}}},
	{"hanging webhooks take all places", "internal/push.TestHangingWebhooks", []edit{
		{"internal/push.limits.admit", `l.dids[p.did] >= perDID, p.host != "" && l.hosts[p.host] >= perHost, p.unproven && l.unproven >= unproven`,
			`l.unproven < 0`}}},
	{"busy jobs hide the others", "internal/push.TestManyJobsOfOneHost", []edit{
		{"internal/push.Worker.dispatch", `w.queue.full && (left[host] > keepBusy || len(rest) > queueSize/2)`, `left[host] < 0`}}},
	{"a failing host is called on", "internal/push.TestFailingHostIsLeftAlone", []edit{
		{"internal/push.limits.report", `c.failures++`, ``}}},
	{"a webhook is called before it agrees", "internal/push.TestChallenge", []edit{
		{"internal/push/enqueue.sql", `FROM target WHERE state = 'active'`, `FROM target`},
		{"internal/push.Worker.dueJobs", `AND t.state = 'active'`, ``},
		{"internal/push.Worker.work", `t.State != Active`, `t.State == Failed`}}},
	{"any answer agrees", "internal/push.TestWrongAnswers", []edit{
		{"internal/push.Webhooks.challenge", `strings.TrimSpace(string(answer)) != text`, `!strings.Contains(string(answer), text)`}}},
	{"a call that was missed is forgotten", "internal/push.TestChallenge", []edit{
		{"internal/push.Worker.activate", `WHERE missed IS NOT NULL`, `WHERE false`}}},
	{"challenges without end", "internal/push.TestChallengeRates", []edit{
		{"internal/push.limits.chargeChallenge", `l.challenges.Take("host "+p.host, ofHost, 1); !ok`, `l.challenges.Take("host "+p.host, ofHost, 1); !ok && p.host == ""`}}},
	{"the fan-out takes any number of devices", "internal/push.TestFanOutIsBoundedInDevices", []edit{
		{"internal/push.takeConvos", `c.total <= $2)`, `c.total <= $2 OR true)`}}},
	{"a page of events without entries loads each alone", "events.TestCatchUpOfADeletedConvo", []edit{
		{"events.catchUp.page", `e.Message() == nil {`, `e.Message() == nil && false {`}}},
	{"one account's subscriptions take all places for readers", "events.TestCatchUpsOfOneAccountTakeTurns", []edit{
		{"events.Subscription.read", `{s.share.reading, s.hub.reading}`, `{s.hub.reading}`}}},
	{"a block that ends at once is not found", "people/consent.TestBlockWhileItEnds", []edit{
		{"people/consent.Block", `DO UPDATE SET did = excluded.did RETURNING`, `DO UPDATE SET did = excluded.did WHERE false RETURNING`}}},
	{"a content that is deleted at once is not found", "internal/attachments.TestAnnouncedWhileItIsDeleted", []edit{
		{"internal/attachments.Service.Create", `!errors.Is(err, pgx.ErrNoRows)`, `true`}}},
	{"a late answer to an erasure replaces a newer one", "TestErasureHoldsNoTransaction", []edit{
		{"people/erasure.Worker.tell", `AND moved_at = $2`, `AND $2::timestamptz IS NOT NULL`}}},
	{"an erasure that ends at once is not found", "people/erasure.TestBegunWhileOneEnds", []edit{
		{"people/erasure.Store.Begin", `case errors.Is(err, pgx.ErrNoRows):`, `case false:`}}},
	{"a browser that hangs up ends an action", "operator.TestHangUpEndsNoAction", []edit{
		{"operator.Service.Answer", `ctx = context.WithoutCancel(ctx)`, `_ = context.WithoutCancel(ctx)`}}},
	{"a full disk is a damaged tree", "internal/transparency.TestKeepFailsWithTheDatabase", []edit{
		{"internal/transparency.Service.keep", `errors.As(err, &refused)`, `errors.As(err, &refused) && false`}}},
	{"the fan-out does not end", "internal/push.TestFanOutEnds", []edit{
		{"internal/push.Worker.FanOut", `range roundBatches`, `range 1 << 30`}}},
	{"a refusal deletes a newer registration", "internal/push.TestRefusalOfAnOlderRegistration", []edit{
		{"internal/push.deleteTarget", `AND registration = $6`, `AND ($6::uuid IS NULL OR true)`}}},
	{"a connection without a cursor counts", "internal/push.TestConnectionWithoutCursor", []edit{
		{"internal/push/enqueue.sql", `AND (p.since < 'infinity' OR p.attached_since <= target.began)`, ``}}},
	{"a pid in other use stays in postmaster.pid", "internal/localpg.TestReusedPID", []edit{
		{"internal/localpg.cluster.stopOrphan", `strconv.Itoa(os.Getpid())`, `strconv.Itoa(file.pid)`}}},
	{"a start that shared memory prevents is not tried again", "internal/localpg.TestSharedMemoryOfKilledPostmaster", []edit{
		{"internal/localpg.cluster.run", `!errors.Is(err, errMemoryInUse) ||`, `err == nil || errors.Is(err, errMemoryInUse) ||`}}},
	{"an archive is not verified", "internal/localpg.TestDownloaderFailures", []edit{
		{"internal/localpg.downloader", `hex.EncodeToString(got[:]) != sum`, `len(got) != 32 && sum == hex.EncodeToString(got[:])`}}},
	{"a lapsed lease is renewed", "internal/push.TestNodeThatSlept", []edit{
		{"events.Presence.renew", `AND lease_expires_at > clock_timestamp()`, ``}}},

	// Quotas
	{"quota before key", "TestQuotas", []edit{
		{"api.handlers.write", `answer, err := h.Writes.Do(`, `if err := c.quota.Take(c.costs(key)...); err != nil {
		return err
	}
	answer, err := h.Writes.Do(`},
		{"api.handlers.write", `if err := c.quota.Take(c.costs(key)...); err != nil { return nil, err }`, ``}}},
	{"quota before key (messages)", "TestQuotas", []edit{
		{"messages.judge", `case s.recorded != nil:`, `case d.refusal != nil:
		return &Result{Err: d.refusal}
	case s.recorded != nil:`}}},
	{"quota before membership", "TestOutsidersSeeNoQuota", []edit{
		{"messages.judge", `case s.hasLeft:`, `case d.refusal != nil:
		return &Result{Err: d.refusal}
	case s.hasLeft:`}}},
	{"a failed write counts", "TestFailedWritesDoNotCount", []edit{
		{"api.handlers.write", `c.quota.Return()`, ``}}},
	{"a failed write counts (messages)", "TestFailedWritesDoNotCount", []edit{
		{"messages.returnUnused", `d.Quota.Return()`, `_ = d.Quota`}}},
	{"an address has no quota", "TestQuotas", []edit{
		{"internal/quota.Spending.takeBoth", `err := s.take(addressSubject, cost)`, `var err error`}}},
	{"a node that starts knows nothing", "internal/quota.TestNodesAddUp", []edit{
		{"internal/quota.Counter.add", `sums[row{who.String(), name}]`, `0 * int64(r)`}}},
	{"a full memory forgets counts", "internal/quota.TestMemoryIsBounded", []edit{
		{"internal/quota.Counter.evict", `case a.since.Load() != 0:`, `case a.since.Load() < 0:`}}},
	{"one KeyPackage has two invitations", "TestReceiptAtTwoServices", []edit{
		{"keypackages.UsedElsewhere.By", `case u.consumed:`, `case false:`},
		{"internal/network.Receive", `case before.Used &&`, `case false &&`}}},
	{"an inviter does not hear that a home has refused", "TestReceiptAtTwoServices", []edit{
		{"internal/network.Sender.end", `outcome == idem.Success`, `true`}}},
	{"a receipt of an old home is taken", "TestMovingHome", []edit{
		{"internal/network.Service.check", `home != u.Service`, `home == ""`}}},
	{"an invitation looks at all convos of the invited", "convos.TestInvitedWithManyConvos", []edit{
		{"convos/outsiders.sql", `ORDER BY convo_id DESC LIMIT $4`, `ORDER BY convo_id DESC LIMIT $4 + 1`}}},
	{"the invited are known", "TestInvitedAgainIsStillARequest", []edit{
		{"convos/outsiders.sql", `WHERE m.requested_at IS NULL`, `WHERE m.requested_at IS NULL OR true`}}},
	{"who has left is known", "TestInvitedAgainIsStillARequest", []edit{
		{"convos/outsiders.sql", `WHERE did = i.did AND left_at IS NULL ORDER`, `WHERE did = i.did ORDER`}}},

	// Accounts
	{"a refused account is served", "TestRefusedAccounts", []edit{
		{"api.handlers.mayCall", `err = h.Gate.Check(c.ctx, did)`, `err = nil`}}},
	{"every method serves inactive accounts", "TestRefusedAccounts", []edit{
		{"api.handlers.mayCall", `ok && slices.Contains(c.route.serves, inactive.Status)`, `ok && !slices.Contains(c.route.serves, "")`}}},
	{"the streams of a refused account go on", "TestStreamsOfRefusedAccounts", []edit{
		{"events.Hub.End", `b.stop(why)`, `_, _ = b, why`}}},
	{"a stream that begins while its account is refused", "TestSubscriptionThatBeginsTooLate", []edit{
		{"api.checked", `gate.Check(ctx, r.DID)`, `ctx.Err()`}}},
	{"KeyPackages of refused accounts", "TestKeyPackagesOfRefusedAccounts", []edit{
		{"keypackages.ClaimRequest.claimable", `len(r.Withheld) == 0`, `len(r.Withheld) >= 0`}}},
	{"pushed to a refused account", "internal/push.TestRefusedAccountIsNotCalled", []edit{
		{"internal/push.Worker.work", `len(withheld) > 0`, `len(withheld) > 1`}}},
	{"open to all until the refused accounts are known", "people/accounts.TestGateRefusesEverybodyUntilItIsLoaded", []edit{
		{"people/accounts.Gate.Check", `case !loaded:`, `case !loaded && did == "":`}}},
	{"a late commit is missed", "people/accounts.TestGateMissesNoLateCommit", []edit{
		{"people/accounts.Store.Block", `UPDATE account_clock SET version = version + 1 RETURNING version`, `SELECT version + 1 AS version FROM account_clock`}}},
	{"too many refused accounts are forgotten", "people/accounts.TestGateWithTooManyRefused", []edit{
		{"people/accounts.Gate.Check", `why = g.ask(ctx, did)`, `why = nil`}}},
	{"a relay fills the table", "people/accounts.TestStatusOfUnknownAccountsIsNotStored", []edit{
		{"people/accounts/set_status.sql", `OR s.status <> 'active' AND (`, `OR s.status <> 'active' OR (`}}},
	{"a relay repeats an old status", "people/accounts.TestOlderStatementsHaveNoEffect", []edit{
		{"people/accounts/set_status.sql", `excluded.status_seq > a.status_seq OR`, `excluded.status_seq <> 0 OR`}}},
	{"an account that came back is erased", "people/accounts.TestErasureIsDueAfterADelay", []edit{
		{"people/accounts/set_status.sql", `ELSE excluded.erase_after END`, `ELSE coalesce(excluded.erase_after, a.erase_after) END`}}},
	{"a limit has no end", "people/accounts.TestLimitEnds", []edit{
		{"people/accounts.Gate.Percent", `|| l.until != nil && !g.cfg.Now().Before(*l.until)`, ``}}},
	{"a node does not follow limits", "people/accounts.TestLimitOfTwoNodes", []edit{
		{"people/accounts.Gate.apply", `g.version, g.limited = version, limited`, `g.version = version`}}},
	{"a changed limit leaves the bucket as it is", "TestLimitedAccount", []edit{
		{"internal/limit.Buckets.change", `!ok || k.rate != r`, `!ok`}}},
	{"a limited account holds back counts of others' size", "internal/quota.TestScaledLimitHoldsBackLess", []edit{
		{"internal/quota.Counter.many", `c.limit(k, a, Resource(r))`, `c.limits[k][r]`}}},
	{"an empty list admits nobody", "people/accounts.TestBrokenAllowlist", []edit{
		{"people/accounts.parseList", `len(dids) == 0`, `dids == nil`}}},
	{"two nodes follow", "internal/relay.TestOneNodeFollows", []edit{
		{"internal/pgpool.NodeLock.try", `err != nil || !free`, `err != nil`}}},
	{"a long frame ends the connection", "internal/relay.TestGarbage", []edit{
		{"internal/relay.Follower.connection", `ws.SetReadLimit(-1)`, `ws.SetReadLimit(maxFrame)`}}},
	{"a cursor that the relay does not know is sent for ever", "internal/relay.TestGaps", []edit{
		{"internal/relay.Follower.receive", `cursor = 0`, `_ = cursor`}}},
	{"events since the stored cursor are left out", "internal/relay.TestReconnect", []edit{
		{"internal/relay.Source.from", `if cursor > 0 {`, `if cursor > 0 && s.kind == Jetstream {`}}},

	// Costs
	{"a new convo is judged in its transaction", "TestCostlyGroupInfo", []edit{
		{"api.handlers.CreateConvo", `if n.GroupInfo != nil {`, `if false {`}}},
	{"a commit is verified under the lock of its convo", "TestCostlyCommit", []edit{
		{"convos.verification.of", `n <= maxSignatures`, `n >= 0`}}},
	{"more leaves than KeyPackages are verified", "TestMoreLeavesThanKeyPackages", []edit{
		{"convos.NewConvo.judge", `err := n.checkWelcomed(tree); err != nil`, `err := n.checkWelcomed(tree); err != nil && false`}}},
	{"a verification is free", "TestVerificationIsCharged", []edit{
		{"api.handlers.verify", `c.spend(int(time.Since(begun) / unitVerification))`, `_ = begun`}}},
	{"one token claims again and again", "TestTokenOfAClaim", []edit{
		{"api.handlers.GetKeyPackages", `if used != nil {`, `if false {`}}},
	{"a claim without a key has no key", "TestTokenOfAClaim", []edit{
		{"api.call.useForClaim", `key = "token:" + hex.EncodeToString(id[:])`, `_ = hex.EncodeToString(id[:])`}}},
	{"the record of a claim is its answer", "TestClaimRecordIsSmall", []edit{
		{"api.handlers.GetKeyPackages", `return recordOf(taken, at)`, `return claimAnswer(taken), nil`}}},
	{"outsiders are not counted together", "keypackages.TestOutsiders", []edit{
		{"keypackages/claim.sql", `AND claimed_by_outsider`, `AND claimed_by_outsider AND claimed_by = $3`}}},
	{"claims of outsiders are counted beyond the budget", "keypackages.TestClaimCountsByIndex", []edit{
		{"keypackages/claim.sql", `LIMIT $10`, `LIMIT $10 + 1`}}},
	{"a claim looks at all convos of a person", "keypackages.TestOutsiderToAPersonWithManyConvos", []edit{
		{"keypackages/claim.sql", `LIMIT $11`, `LIMIT $11 + 1`}}},
	{"who adds a person to a convo is no outsider", "keypackages.TestOutsiderWithAConvo", []edit{
		{"keypackages/claim.sql", `WHERE m.requested_at IS NULL`, ``}}},

	// Clients

	// The operator's methods
	{"DNS rebinding (H11)", "cmd/mlsd.TestBrowsersCannotReadTheAdminListener", []edit{
		{"operator.Access.allow", `case !OwnHost(r, a.hosts):`, `case r.Host == "":`}}},
	{"pages of other sites (H11)", "cmd/mlsd.TestBrowsersCannotReadTheAdminListener", []edit{
		{"operator.Access.allow", `case crossSite(r):`, `case crossSite(r) && r.Host == "":`}}},
	{"DNS rebinding of mlsd-dev (S8)", "cmd/mlsd-dev/devserver.TestForeignNames", []edit{
		{"cmd/mlsd-dev/devserver.Server.protect", `if s.cfg.OwnHost(r) {`, `if r.Host != "" {`}}},
	{"the read token writes (H11)", "cmd/mlsd.TestAdminTokens", []edit{
		{"operator.Access.allow", `case allowed < level:`, `case allowed < min(level, Read):`}}},
	{"a browser's session has no end", "operator.TestSession", []edit{
		{"operator.Access.session", `time.Now().Unix() >= expiry`, `expiry == 0`}}},
	{"a browser's session is not signed", "operator.TestForgedSessions", []edit{
		{"operator.Access.session", `hmac.Equal([]byte(mac), []byte(a.mac(level, text)))`, `mac != "" || text == ""`}}},
	{"wrong tokens cost no time", "operator.TestWrongTokensAreSlowed", []edit{
		{"operator.Access.levelOf", `; !ok {`, `; !ok && token == "" {`}}},
	{"wrong tokens of one address count for all (S14)", "operator.TestWrongTokensAreSlowed", []edit{
		{"operator.Access.levelOf", `address = limit.Network(host)`, `address = host[:0]`}}},
	{"a tombstone for one member, an account for another (S15)", "internal/transparency/verifier.TestCheatingServersAreCaught", []edit{
		{"internal/transparency/verifier.Verifier.memberHead", `err = v.compareSenders(ctx, tombstones, from)`, `_ = tombstones`}}},
	{"who was erased meanwhile is an accusation (S15)", "internal/transparency/verifier.TestErasedBetweenTwoReaders", []edit{
		{"internal/transparency/verifier.Verifier.compareSenders", `if !strings.HasPrefix(mine, erasedPrefix) {`, `if mine == "" {`}}},
	{"an export has the secrets of answers (S1)", "cmd/mlsd.TestNoSecretLeaves", []edit{
		{"internal/redact.SecretAnswers", `nsid.RegisterPushTarget}`, `}`}}},
	{"a former member sees the convo move (S2)", "cmd/mlsd.TestFormerMemberSeesNothingMove", []edit{
		{"internal/redact.Hidden", `slices.Concat([]string{}, c[nobody], c[members])`, `append([]string{}, c[nobody]...)`}}},
	{"an export leaves no record (S10)", "cmd/mlsd.TestReadingAnExportIsRecorded", []edit{
		{"operator.accountExport", `Write: true, Archive: true`, `Archive: true`}}},
	{"the token for metrics reads (S10)", "operator.TestMetricsToken", []edit{
		{"operator.Access.allow", `case allowed == Metrics && level > Metrics:`, `case allowed == Metrics && level > Read:`},
		{"operator.Access.allow", `case allowed < level:`, `case allowed < level && allowed != Metrics:`}}},
	{"the console tells DIDs", "operator/console.TestNoPageTellsDIDs", []edit{
		{"operator/console.Request.DID", `if r.Full || len(parts) < 3`, `if !r.Full || len(parts) < 3`}}},
	{"inspect tells DIDs", "cmd/mlsd.TestInspectReservations", []edit{
		{"operator.Service.Ask", `!c.flag("dids")`, `c.flag("dids")`}}},
	{"DIDs in full leave no record", "operator/console.TestDIDsInFullAreRecorded", []edit{
		{"operator/console.Console.reveal", `if err := c.Operator.RecordShown(r.Context(), req.subject(), operator, reason); err != nil {`,
			`if err := r.Context().Err(); err != nil || operator+reason == "" {`}}},
	{"the read token acts in the console", "operator/console.TestActions", []edit{
		{"operator/console.readOrder", `if o.Write && !req.Write {`, `if o.Write && req.Path == "" {`}}},
	{"a dropped push job is called", "internal/push.TestDropAndRetryDead", []edit{
		{"internal/push.Drop", `greatest(attempts, $3)`, `least(attempts, $3)`}}},
	{"an open admin listener (H11)", "cmd/mlsd.TestOpenAdminListenerNeedsAToken", []edit{
		{"operator.NewAccess", `if t.Write == "" && !addr.IP.IsLoopback() {`, `if t.Write == "" && addr.IP.IsMulticast() {`}}},
	{"a claim survives the withdrawal", "TestWithdrawKeyPackages", []edit{
		{"keypackages.Withdraw", `state IN ('available', 'claimed', 'orphaned')`, `state = 'available'`}}},
	{"a deleted group comes back", "cmd/mlsd.TestAdminConvoDelete", []edit{
		{"convos.Create", `if !inserted || deleted {`, `if !inserted {`}}},
	{"a deletion leaves records", "cmd/mlsd.TestAdminConvoDelete", []edit{
		{"convos.Remover.Remove", `if err := forgetRecords(ctx, tx, convo, creator, key); err != nil {`, `if err := ctx.Err(); err != nil {`}}},
	{"a deletion of a log takes all bytes at once", "messages.TestPurgeInBatches", []edit{
		{"messages.Purge", `WHERE total <= $3 OR nth = 1`, `WHERE total > 0 OR nth > $3`}}},
	{"one deletion that fails stops all", "convos.TestRemoverGoesOn", []edit{
		{"convos.Remover.RunOnce", `if ctx.Err() != nil {`, `if err != nil {`}}},
	{"a deletion that was cut off is done", "cmd/mlsd.TestAdminConvoDeleteKilledHalfWay", []edit{
		{"convos/delete.sql", `INSERT INTO deleted_convos (id, group_hash, deleted_at) SELECT id, $2, clock_timestamp() FROM convo`, `INSERT INTO deleted_convos (id, group_hash, deleted_at, purged_at) SELECT id, $2, clock_timestamp(), clock_timestamp() FROM convo`}}},

	// Upgrades
	{"a migration without its version (X1)", "migrations.TestKilledAtCommit", []edit{
		{"migrations.driver.Run", `d.tx.Exec(d.ctx, string(sql))`, `d.tx.Exec(d.ctx, "COMMIT;"+string(sql)+";COMMIT;BEGIN")`}}},
	{"data is deleted under a node (X9)", "cmd/mlsd.TestDownUnderARunningServer", []edit{
		{"migrations.runner.down", `if r.refuse != nil {`, `if r.refuse != nil && n > 1 {`}}},
	{"an old mlsd serves with any schema (O10)", "migrations.TestNewerSchema", []edit{
		{"migrations.State.Serves", `s.MinBinary > binary`, `s.MinBinary > 1000*binary`}}},

	// Erasure
	{"a record outlives its commit in a killed erasure", "cmd/mlsd.TestErasureKilled", []edit{
		{"people/erasure.eraseLog", `idem.Forget(ctx, j.tx, []syntax.DID{j.person.DID}, convo.String())`, `idem.Forget(ctx, j.tx, nil, convo.String())`}}},
	{"an erasure leaves records", "cmd/mlsd.TestAdminAccountErase", []edit{
		{"people/erasure.eraseLog", `idem.Forget(ctx, j.tx, []syntax.DID{j.person.DID}, convo.String())`, `idem.Forget(ctx, j.tx, nil, convo.String())`},
		{"people/erasure.steps", `{name: "records", run: rows("idempotency_keys", idem.Erase)},`, ``}}},
	{"erased memberships can be linked", "cmd/mlsd.TestAdminAccountErase", []edit{
		{"internal/tombstone.Person.In", `p.of(convo[:])`, `p.of(convo[:0])`}}},
	{"erasure is a way around a block", "people/accounts.TestBlockOutlivesErasure", []edit{
		{"people/accounts.Gate.why", `return g.refused[tombstone.Hash(did)]`, `return nil`}}},
	{"an erased account is refused for ever", "people/accounts.TestErasing", []edit{
		{"people/accounts.Gate.apply", `g.dropErased(changed)`, ``}}},
	{"a sweep that fails stops those behind it", "internal/worker.TestSweepsAreIndependent", []edit{
		{"internal/worker.Sweeper", `if ctx.Err() != nil {`, `if failed != nil {`}}},
	{"a batch begins at the end of its round", "people/erasure.TestNoBatchIsCutOff", []edit{
		{"people/erasure.Worker.RunOnce", `limited && time.Until(end) < batchReserve`, `limited && time.Until(end) < 0`}}},
	{"an erasure that fails again and again comes soon", "people/erasure.TestPauseAfterAFailure", []edit{
		{"people/erasure.Worker.postpone", `least($3, greatest($2, clock_timestamp() - coalesce(moved_at, begun_at)))`, `least($3::interval, $2::interval)`}}},
	{"each erasure reads a table alone", "people/erasure.TestErasuresReadTogether", []edit{
		{"people/erasure.Worker.batch", `w.try(ctx, togetherMost)`, `w.try(ctx, 1)`}}},
	{"an erasure that joins others ends with them", "people/erasure.TestErasuresReadTogether", []edit{
		{"people/erasure.lap.move", `l.again || l.joined == place{}`, `true`}}},
	{"an erasure that joins others begins anew", "people/erasure.TestErasuresReadTogether", []edit{
		{"people/erasure.scan.gather", `begin(parsePlace(at))`, `begin(place{})`}}},
	{"an erasure that fails stops those that read with it", "people/erasure.TestOneOfManyErasuresFails", []edit{
		{"people/erasure.Worker.batch", `len(j.with) > 0`, `len(j.with) > 0 && false`}}},
	{"a search takes a longer DID for the person's", "people/erasure.TestNamed", []edit{
		{"people/erasure.named", `'^[a-zA-Z0-9._:%-]*[a-zA-Z0-9_:%-]'`, `'^[a-zA-Z0-9_:-]*[a-zA-Z0-9_:-]'`}}},
	{"a confirmation token is good for any account", "TestConfirmationTokens", []edit{
		{"people/erasure.confirmationHash", `did.String() + " " + token`, `" " + token`}}},
	{"a confirmation token is good for ever", "TestConfirmationTokens", []edit{
		{"people/erasure.Store.Confirm", `case expired:`, `case expired && token == "":`}}},
	{"a repeated erasure has lost its first answer", "TestEraseMyAccount", []edit{
		{"api.handlers.EraseMyAccount", `if err == nil {
			c.replayed = true`, `if err == nil && c.standing == nil {
			c.replayed = true`}}},
	{"an export has the ciphertext of others", "TestExportMyData", []edit{
		{"people/archive/messages.sql", `CASE WHEN own THEN (to_jsonb`, `CASE WHEN own OR last THEN (to_jsonb`}}},
	{"an export forgets what exceeds its bytes", "TestExportOfLargeMessages", []edit{
		{"people/archive/messages.sql", `WHERE (own OR last) AND (before = 0 OR`, `WHERE (own OR last) AND (last OR before = 0 OR`}}},
	{"an erased member's leaf stays", "cmd/mlsd.TestAdminAccountErase", []edit{
		{"convos.leave", `if errors.Is(err, ErrTargetNotMember) {`, `if errors.Is(err, ErrTargetNotMember) && self {`}}},

	// Sessions
	{"a session's mac is not compared", "TestForgedSessions", []edit{
		{"internal/sessions.parse", `key == nil || !hmac.Equal(sum, key.mac(prefix, content))`, `key == nil || !hmac.Equal(sum, sum)`}}},
	{"a refresh token is a bearer", "TestForgedSessions", []edit{
		{"internal/sessions.macKey.mac", `h.Write([]byte(prefix))`, ``}}},
	{"an expired session is accepted", "TestOldSessions", []edit{
		{"internal/sessions.Service.Check", `!s.cfg.Now().Before(session.Expires)`, `s.cfg.Now().IsZero()`}}},
	{"an ended session is accepted", "TestDeleteSession", []edit{
		{"internal/sessions.Service.Check", `case ended:`, `case ended && !remembers:`}}},
	{"a node trusts old news of sessions", "TestOldSessions", []edit{
		{"internal/sessions.Service.fresh", `s.cfg.Now().Sub(s.read) <= trustFor`, `true`}}},
	{"a session acts for another device", "TestSessionOfAnotherDevice", []edit{
		{"api.call.actsFor", `*device != c.session.Device`, `*device == ""`}}},
	{"a session publishes for another device", "TestSessionOfAnotherDevice", []edit{
		{"keypackages.Publication.checkPublisher", `kp.DeviceID() != p.Device`, `kp.DeviceID() == ""`}}},
	{"a session joins with another device", "TestSessionJoinsWithItsDevice", []edit{
		{"convos.locked.permit", `a.DeviceID() != allowed.device`, `a.DeviceID() == ""`}}},
	{"a session buys another", "TestWhatAStolenSessionCannotDo", []edit{
		{"api.handlers.admitSession", `if c.route.noSession {`, `if c.route.noSession && c.caller != "" {`}}},
	{"a replaced key refreshes sessions", "TestSessionsOfAReplacedKey", []edit{
		{"internal/sessions.stored.refresh", `case accountKey != identity.Key.DIDKey():`, `case accountKey == "":`}}},
	{"a replaced key buys sessions", "TestSessionsOfAReplacedKey", []edit{
		{"internal/sessions.Service.Create", `!identity.Key.Equal(token)`, `token == nil`}}},
	{"a session outlives its account's key", "TestSessionsEndWithTheirAccount", []edit{
		{"internal/sessions/end_replaced.sql", `account_key IS DISTINCT FROM k.key`, `account_key < k.key AND account_key > k.key`}}},
	{"a session is refreshed for a week", "internal/sessions.TestSessionLastsHours", []edit{ // S5
		{"internal/sessions.sessionLife", `6 * time.Hour`, `7 * 24 * time.Hour`}}},
	{"ended sessions are never remembered again", "internal/sessions.TestTooManyEndedSessions", []edit{ // S6
		{"internal/sessions.Service.forgetExpired", `s.version = 0`, ``}}},
	{"a refresh token is good twice", "TestRefreshSession", []edit{
		{"internal/sessions.stored.refresh", `case r.serial != serial:`, `case r.serial < serial:`}}},
	{"a stream outlives its session", "TestStreamsOfASession", []edit{
		{"internal/sessions.Service.apply", `s.tell(id)`, ``}}},
	{"a stream outlives its bearer", "TestStreamEndsWithItsBearer", []edit{
		{"internal/sessions.Service.Watch", `ended(invalid(reasonExpired))`, ``}}},
	// Reports of abuse
	{"an outsider reports", "TestWhoReports", []edit{
		{"people/reports.mayReport", `return messages.ErrConvoNotFound`, `return nil`}}},
	{"a former member reports for ever", "TestWhoReports", []edit{
		{"people/reports.mayReport", `left_at > clock_timestamp() - $3::interval`, `left_at > clock_timestamp() - 1000 * $3::interval`}}},
	{"a wrong report tells an outsider of a convo", "TestWhoReports", []edit{
		{"people/reports.Add", `if err := mayReport(ctx, tx, r.Convo, r.Reporter); err != nil {`, `if r.KeyID != key.ID() {
			return Receipt{}, ErrUnknownKey
		}
		if err := mayReport(ctx, tx, r.Convo, r.Reporter); err != nil {`}}},
	{"a repeated report is another one", "TestReport", []edit{
		{"people/reports.Add", `sha256.Sum256(r.Sealed)`, `sha256.Sum256([]byte(uuid.NewString()))`}}},
	{"reports fill the disk", "TestReportBytes", []edit{
		{"people/reports.Add", `minCharge) > most`, `minCharge) > 2*most`}}},
	{"reports are summed beside each other", "TestReportBytes", []edit{
		{"people/reports.Add", `pgpool.LockReports.Wait(ctx, tx, "")`, `ctx.Err()`}}},
	{"small reports cost nothing", "TestReportBytes", []edit{
		{"people/reports.sumOpen", `greatest(size, $1::integer)`, `greatest(size, $1::integer * 0)`}}},
	{"closed reports fill the quota", "TestClosedReportsMakeRoom", []edit{
		{"people/reports.sumOpen", ` WHERE state = 'open'`, ``}}},
	{"the sum of reports reads them", "people/reports.TestSumReadsNoReports", []edit{
		{"people/reports.sumOpen", `greatest(size, $1::integer)`, `greatest(octet_length(sealed), $1::integer)`}}},
	{"a refused report is free", "TestRefusedReportsCount", []edit{
		{"api.handlers.ReportConvo", `full.Quota == quota.ReportBytes`, `full.Quota == ""`}}},
	{"a repeated report takes no record", "TestRepeatedReportsTakeRecords", []edit{
		{"api.handlers.ReportConvo", `c.quota.Give(quota.Cost{Of: quota.Bytes, N: int64(len(in.SealedReport))})`, `c.quota.Return()`}}},
	{"repeated reports count nothing", "TestRepeatedReportsCount", []edit{
		{"api.handlers.ReportConvo", `if receipt.Repeated {`, `if receipt.Repeated {
			c.quota.Give(quota.Cost{Of: quota.Reports, N: 1})`}}},
	{"a repeated report waits for the others", "TestRepeatedReportsWaitForNone", []edit{
		{"people/reports.Add", `r.Reporter) if first, err := lookUp(ctx, tx, binding, digest[:]); err != nil || first.Repeated {`, `r.Reporter)
		if first, err := lookUp(ctx, tx, binding, digest[:]); err != nil || first.Repeated && most < 0 {`}}},
	{"a report that waited is not looked up again", "TestRepeatedReportsWaitForNone", []edit{
		{"people/reports.Add", `return Receipt{}, err } if first, err := lookUp(ctx, tx, binding, digest[:]); err != nil || first.Repeated {`, `return Receipt{}, err
		}
		if first, err := lookUp(ctx, tx, binding, digest[:]); err != nil || first.Repeated && most < 0 {`}}},
	{"one address fills the reports", "internal/quota.TestReportsOfAnAddress", []edit{
		{"internal/quota.Limits.of", `r == Reports && most != 0`, `r == Reports && most < 0`}}},
	{"what closed reports reveal is kept", "TestClosedReportsAreCleared", []edit{
		{"people/reports.Sweeps", `closed_at < now() - $2::interval OR (`, `(closed_at < now() - $2::interval AND `}}},
	{"a deep report is printed", "people/reports.TestDeepReport", []edit{
		{"people/reports.Printable", `nesting(document) > maxNesting`, `nesting(document) > 10000`}}},
	{"open reports are kept for ever", "TestReportsEnd", []edit{
		{"people/reports.Sweeps", `WHERE reported_at <`, `WHERE state = 'closed' AND reported_at <`}}},
	{"a report is bound to no reporter", "people/reports.TestSeal", []edit{
		{"people/reports.Binding", `reporter.String()`, `reporter.Method()`}}},
	{"a report commands the terminal", "people/reports.TestPrintable", []edit{
		{"people/reports.Printable", `unicode.IsPrint(r)`, `r >= ' '`}}},
	{"a report opens as another's", "cmd/mlsd.TestOpenReport", []edit{
		{"people/reports.Sealed.Check", `!bytes.Equal(s.Binding, Binding(s.Convo, s.Reporter))`, `len(s.Binding) != len(Binding(s.Convo, s.Reporter))`}}},
	{"an erasure leaves a report without a reporter", "cmd/mlsd.TestAdminAccountErase", []edit{
		{"people/reports.Erase", `SET reporter = t.name`, `SET reporter = ''`}}},
	// mlsd-dev
	{"everybody reaches mlsd-dev", "cmd/mlsd-dev.TestDevRefuses", []edit{
		{"cmd/mlsd-dev.checkExposure", `case !expose:`, `case false:`}}},
	{"mlsd-dev on a real service's settings", "cmd/mlsd-dev.TestDevRefuses", []edit{
		{"cmd/mlsd-dev.checkDevelopment", `r.prefix) {`, `r.prefix) && s.Variable != "MLSD_DATABASE_URL" {`}}},
	{"a reset keeps rows", "cmd/mlsd-dev.TestDevEmpties", []edit{
		{"cmd/mlsd-dev/empty.sql", `EXECUTE format('DELETE FROM %s', t.name);`, `NULL;`}}},
	{"a lost answer is not carried out", "cmd/mlsd-dev/devserver.TestLoseAnswerAndCut", []edit{
		{"cmd/mlsd-dev/devserver.Fault.loseAnswer", `service.ServeHTTP(&discarding{ResponseWriter: w, header: http.Header{}}, r) panic`, `panic`}}},
	{"a fault meets every caller", "cmd/mlsd-dev/devserver.TestFaultsOfACaller", []edit{
		{"cmd/mlsd-dev/devserver.faults.strike", `one.DID == caller`, `one.DID != caller`}}},
	{"a website resets mlsd-dev", "cmd/mlsd-dev/devserver.TestRoutes", []edit{
		{"cmd/mlsd-dev/devserver.Server.protect", `h = http.NewCrossOriginProtection().Handler(h)`, ``}}},

	// Disputes
	{"each account counts in a dispute", "TestOneLiarDisputesNothing", []edit{
		{"people/disputes.CountReports", `root := roots.rootOf(p.DID)`, `root := p.DID`},
	}},
	{"a circle of inviters counts", "people/disputes.TestCountReports", []edit{
		{"people/disputes.inviters.rootOf", `s.found[did] = ""`, `s.found[did] = did`},
	}},
	{"a single report makes a dispute", "people/disputes.TestCountReports", []edit{
		{"people/disputes.Count.Disputed", `c.Reports >= fewest && c.Reports*share`, `c.Reports*share`},
	}},
	{"a dispute lets ordinary commits through", "TestDispute", []edit{
		{"convos.locked.checkDispute", `if allowed.joins && !c.dispute.Caller {`, `if !c.dispute.Caller {`},
	}},
	{"a dispute lets its committer go on", "TestDispute", []edit{
		{"convos.locked.checkDispute", `if allowed.joins && !c.dispute.Caller {`, `if allowed.joins {`},
	}},
	{"a dispute is not published", "TestDispute", []edit{
		{"people/disputes.locked.report", `return true, c.tell(ctx, tx, outbox.Disputed, r.Epoch, committer)`, `return true, nil`},
	}},
	{"a single member replaces the GroupInfo", "TestGroupInfoOfTheMajority", []edit{
		{"people/disputes.EpochOutcome.compare", `agreeing >= fewest && agreeing > counted(false)`, `agreeing > counted(false)`},
	}},
	{"each dispute has ten minutes of its own", "TestTwoLiarsCannotHoldAConvo", []edit{
		{"people/disputes.beginDispute", `clock_timestamp() + $6::interval - spent FROM past`, `clock_timestamp() + $6::interval FROM past`},
	}},
	{"a dispute ends twice", "TestOperatorEndsADispute", []edit{
		{"people/disputes.End", `if !open {`, `if !open && committer == "" {`},
	}},
	{"helpers replace the GroupInfo", "TestHelpersDoNotReplaceTheGroupInfo", []edit{
		{"people/disputes.EpochOutcome.compare", `agreeing := counted(true)`, `agreeing := out.Agreeing`},
	}},
	{"who came after a commit disputes it", "TestLateComersHaveNoVoice", []edit{
		{"people/disputes/people.sql", `m.joined_seq < $3`, `$3::bigint > 0`},
	}},
	// Transparency
	{"the sender is not in the leaf", "internal/transparency.TestHeadIsThatOfTheLog", []edit{
		{"internal/transparency.load", `e.Tag = tag`, `_ = tag`}}},
	{"expired messages take their leaves along", "internal/transparency.TestRetentionKeepsTheTree", []edit{
		{"messages/expire_batch.sql", `(NOT $5 OR seq`, `(NOT $5 OR true OR seq`}}},
	{"an erased sender gets another tag", "internal/transparency.TestErasureKeepsTheTree", []edit{
		{"internal/transparency.EraseSender", `SELECT $1, $3, tag FROM`, `SELECT $1, $3, sha256(tag) FROM`}}},
	{"heads of a database whose generation has not begun", "internal/transparency.TestWentBack", []edit{
		{"events.Generation", `!by.agrees(here)`, `!by.agrees(here) && id < 0`}}},
	{"the epoch of a commit's leaf is the next one", "TestMembersVerifyTheLog", []edit{
		{"internal/transparency.loadEntries", `e.Epoch--`, ``}}},
	{"waiting heads are not compared", "internal/transparency/verifier.TestCheatingServersAreCaught", []edit{
		{"internal/transparency/verifier.Verifier.continues", `if err != nil || ok {`, `if err != nil || ok || h.Size > 0 {`}}},
	{"a mismatch is a lie at once", "internal/transparency/verifier.TestEntriesReadBeforeAFailover", []edit{
		{"internal/transparency/verifier.Verifier.doubtUnder", `if v.s.Doubted {`, `if true {`}}},
	// Attachments
	{"an attachment of before is read by who joined later", "TestAttachmentReaders", []edit{
		{"internal/attachments.find", `a.Seq < w.First`, `a.Seq < 0`}}},
	{"the content of an attachment is not compared", "TestAttachmentOtherContent", []edit{
		{"internal/attachments.check.work", `[sha256.Size]byte(c.hash.Sum(nil)) != c.a.SHA256`, `c.hash == nil`}}},
	{"an old holder completes an attachment", "TestAttachmentTakeover", []edit{
		{"internal/attachments.check.progress", `tag.RowsAffected() == 0`, `tag.RowsAffected() > 1`},
		{"idem.Store.finish", `AND fence = $5 AND state = 'processing'`, `AND fence >= $5`},
		{"internal/attachments.check.complete", `WHERE id = $1 AND state = 'checking' AND fence = $2`, `WHERE id = $1 AND fence >= $2`}}},
	{"what was checked is checked again", "TestAttachmentTakeover", []edit{
		{"internal/attachments.check.begin", `if digest == nil {`, `if c.checked = 0; true {`}}},
	{"a message names an attachment that is not complete", "TestAttachment", []edit{
		{"internal/attachments.CanName", `a.State != Complete`, `a.State == Failed`}}},
	{"a repeated message opens its attachment to later members", "TestAttachmentReaders", []edit{
		{"internal/attachments.Name", `SET seq = greatest(a.seq, m.seq)`, `SET seq = (SELECT last_seq FROM convos WHERE id = $2)`},
		{"internal/attachments.Name", `AND (a.seq < m.seq OR a.kept_from < m.created_at)`, ``}}},
	{"downloads are not charged", "TestDownloadIsCharged", []edit{
		{"api.Server.download", `int(sent/unitBytes)`, `0`}}},
	{"a download takes the memory of small answers", "TestDownloadsHaveTheirOwnMemory", []edit{
		{"api.Server.call", `pool = s.memory.streams`, `pool = s.memory.answers`}}},
	{"a retry of a message is refused for its attachment", "TestAttachment", []edit{
		{"api.handlers.SendMessage", `		if draft.InvalidAsset, err = h.checkNamed(c, convo, attachment); err != nil {
			return err
		}`, `
		if draft.InvalidAsset, err = h.checkNamed(c, convo, attachment); err != nil {
			return err
		}
	if draft.InvalidAsset != nil {
		return draft.InvalidAsset
	}`}}},
	{"a late part changes what was checked", "TestAttachmentTakeover", []edit{
		{"internal/attachments.Attachment.refusal", `return ErrChecking`, `return nil`}}},
	{"the sweeper deletes what other databases have", "TestAttachmentSweep", []edit{
		{"internal/attachments.Sweeper.orphans", `s.store.List(ctx, prefix, s.listed, sweepObjects)`, `s.store.List(ctx, prefix[:0], s.listed, sweepObjects)`}}},
	{"a copy of the files of a database deletes what its original has", "TestSweepOfACopiedDatabase", []edit{
		{"internal/attachments.claim.is", `c.started == other.started && `, ``}}},
	{"a copy in the same PostgreSQL deletes what its original has", "TestSweepOfACopiedDatabase", []edit{
		{"internal/attachments.claim.is", `c.database == other.database && `, ``}}},
	{"a store is taken over from a database that lives", "TestSweepOfACopiedDatabase", []edit{
		{"internal/attachments.Sweeper.claim", `own.mayReplace(found) && age >= claimLife`, `own.mayReplace(found)`}}},
	{"who takes a store over deletes at once", "TestSweepOfACopiedDatabase", []edit{
		{"internal/attachments.Sweeper.claim", `return false, s.writeClaim(ctx, name, own)`, `return true, s.writeClaim(ctx, name, own)`}}},
	{"a claim is not renewed", "TestSweepOfACopiedDatabase", []edit{
		{"internal/attachments.Sweeper.claim", `age >= claimRenewal`, `age < 0`}}},
	{"a part of a client that hangs up is not recorded", "TestPartOfAClientThatHangsUp", []edit{
		{"internal/attachments.Service.keep", `context.WithoutCancel(ctx)`, `ctx`}}},
	{"an object whose record failed stays", "TestPartThatIsNotRecorded", []edit{
		{"internal/attachments.Service.discardUnnamed", `case !named:`, `case false:`}}},
	{"an object that is a part is deleted", "TestPartThatIsNotRecorded", []edit{
		{"internal/attachments.Service.discardUnnamed", `case !named:`, `default:`}}},
	{"parts that are sent again cost nothing", "TestUploadQuota", []edit{
		{"api.handlers.PutAttachmentPart", `return c.quota.Take(quota.Cost{Of: quota.UploadedBytes, N: bytes})`, `_ = quota.UploadedBytes; return nil`}}},
	{"a repeated deletion wakes the sweeper", "TestReplayedDeletionWakesNobody", []edit{
		{"api.handlers.DeleteAttachment", `!c.replayed`, `true`}}},
	{"a round deletes one batch", "internal/attachments.TestSweepDeletesAllAtOnce", []edit{
		{"internal/attachments.Sweeper.clear", `return more, s.forget(ctx, conn, ids, gone)`, `return false, s.forget(ctx, conn, ids, gone)`}}},
	{"a round ends one batch", "internal/attachments.TestSweepDeletesAllAtOnce", []edit{
		{"internal/worker.Statement", `n >= SweepRows`, `n > SweepRows`}}},
	{"objects are deleted one after the other", "internal/attachments.TestSweepDeletesInParallel", []edit{
		{"internal/attachments.Sweeper.deleteAll", `g.SetLimit(deletions)`, `g.SetLimit(1)`}}},
	{"deletions take the time of the orphans", "internal/attachments.TestSweepHasTimeForOrphans", []edit{
		{"internal/attachments.Sweeper.orphans", `s.shares.orphans`, `s.shares.clear`}}},
	{"a listing of a directory keeps all names", "internal/attachments/filestore.TestListIsBounded", []edit{
		{"internal/attachments/filestore.first", `names = names[:min(limit, len(names))]`, ``}}},
	{"a listing ends at directories without objects", "internal/attachments/filestore.TestListIsBounded", []edit{
		{"internal/attachments/filestore.Store.List", `len(dirs) < limit`, `true`}}},
	{"a member's head of an earlier generation is not compared", "internal/transparency/verifier.TestCheatingServersAreCaught", []edit{
		{"internal/transparency/verifier.Verifier.memberHead", `err = v.earlier(ctx, text, h, from)`, `return nil`}}},
	{"a member's head under another key is no finding", "internal/transparency/verifier.TestCheatingServersAreCaught", []edit{
		{"internal/transparency/verifier.Verifier.unknownKey", `if hash == 0 {`, `if hash != 0 {`}}},
	{"a verifier asks later than those in other languages", "internal/transparency/verifier.TestVectors", []edit{
		{"internal/transparency/verifier.Verifier.Entry", `if v.s.Unheaded >= AskEvery {`, `if v.s.Unheaded > AskEvery {`}}},
	{"a tag needs no salt", "internal/transparency/verifier.TestCheatingServersAreCaught", []edit{
		{"internal/transparency/verifier.Verifier.learnSender", `case one.Salt == nil && !erased:`, `case false && !erased:`}}},
	{"the last entry is hashed for each head", "internal/transparency.TestLastEntryIsHashedOnce", []edit{
		{"internal/transparency/load.sql", `CASE WHEN e.seq > w.size OR e.version <> w.version THEN sha256(e.body) END`, `sha256(e.body)`}}},
	{"the last entry is not compared", "internal/transparency.TestNoHeadOfAnotherLog", []edit{
		{"internal/transparency/load.sql", `e.version <> w.version`, `w.version = ''`}}},
	{"the last entry fills a reading", "internal/transparency.TestLargestEntries", []edit{
		{"internal/transparency/load.sql", `THEN 0 ELSE octet_length(body) END`, `THEN octet_length(body) ELSE octet_length(body) END`}}},
	{"a log that has not grown is read in every round", "internal/transparency.TestRoundsReadNothingAgain", []edit{
		{"internal/transparency.Service.due", `t.looked = now`, ``}}},
	{"a round reads without a bound", "internal/transparency.TestReadingIsBoundedInSum", []edit{
		{"internal/transparency/load.sql", `> greatest($6::bigint, e.bytes)`, `> greatest($6::bigint, e.bytes) + 1000000000000`}}},
	{"a log that was not read has expired", "internal/transparency.TestReadingIsBoundedInSum", []edit{
		{"internal/transparency.tree.take", `if p.cut {`, `if p.cut && p.last == 0 {`}}},
	{"hashing costs nothing", "TestHeadsAreCharged", []edit{
		{"internal/transparency.Service.catchUp", `*hashed += p.hashed`, ``}}},
	{"one damaged log stops the retention", "internal/transparency.TestRetentionGoesOn", []edit{
		{"internal/transparency.Service.keep", `return false, s.skip(ctx, conn, t, "cannot keep leaves: messages of the convo do not expire", err)`, `return false, err`}}},
	{"messages of a damaged log expire", "internal/transparency.TestRetentionGoesOn", []edit{
		{"internal/transparency.Service.Keep", `if ok {`, `if ok || !ok {`}}},
	{"a second head of a log that was changed", "internal/transparency.TestNoHeadOfAnotherLog", []edit{
		{"internal/transparency.Service.keepsPromise", `if root != h.Root {`, `if root != h.Root && h.Size < 0 {`}}},
	{"stored leaves are replaced", "internal/transparency.TestStoredLeavesStay", []edit{
		{"internal/transparency.compareTile", `if err == nil && !same {`, `if false {`}}},
	{"a head says more than the event", "internal/transparency.TestPiggybackedHeads", []edit{
		{"internal/transparency.Service.EventHead", `t.head.Size > seq ||`, ``}}},
	{"heads of before a change of the keys are still sent", "internal/transparency.TestPiggybackedHeadsAreSignedAnew", []edit{
		{"internal/transparency.Service.current", `t.head != nil && t.head.ring == s.ring.Load()`, `t.head != nil`}}},
	{"the newest key signs alone", "internal/transparency.TestClientsFollowARotation", []edit{
		{"internal/transparency.Service.loadKeys", `append(ring.signers, signer)`, `append(ring.signers[:0], signer)`}}},
	{"a key is retired before devices know the next one", "internal/transparency.TestRetireIsRefused", []edit{
		{"internal/transparency.Service.RetireKey", `if r.Early && !early {`, `if false {`}}},
	{"the last key is retired", "internal/transparency.TestRetireIsRefused", []edit{
		{"internal/transparency.keyring.canDoWithout", `k.ID == id ||`, ``}}},
	{"a leaked key is given to new devices", "internal/transparency.TestWithheldKey", []edit{
		{"internal/transparency.Service.given", `return k.Withheld`, `return false`}}},
	{"the DID document has keys that sign no more", "TestDIDDocumentHasTheLogKeys", []edit{
		{"internal/transparency.Service.Published", `return !k.Signs`, `return false`}}},
}
