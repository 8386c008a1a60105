package scenario

import (
	"context"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
)

// Scenario is one test of promises. Run plays the scenario and reports the broken promises that it
// sees. After Run, the checks compare everything.
type Scenario struct {
	Name string
	// About is one line for --list.
	About string
	// Control is set for a scenario that kills or restarts the server, receives its pushes, or makes
	// time pass. Such a scenario needs a server of our own.
	Control bool
	// Agents is set for a scenario that needs agents of other MLS libraries.
	Agents bool
	// Upgrade is set for a scenario that needs several binaries of the server.
	Upgrade bool
	// Standby is set for a scenario that needs an installed PostgreSQL, to make a standby.
	Standby bool
	// Patroni is set for a scenario that needs Patroni, etcd, and a network of its own.
	Patroni bool
	// Cores is set for a scenario that needs root, to limit the processor time of servers.
	Cores bool
	// Failover bounds one failover of the scenario. 0 means failoverLimit.
	Failover time.Duration
	Run      func(context.Context, *testbed.World)
}

// Scenarios lists every scenario, in the order in which they run.
func Scenarios() []Scenario {
	var all []Scenario
	for _, f := range writeFaults() {
		all = append(all, f.scenario())
	}
	return append(all, []Scenario{
		{Name: "claim-at-once", About: "eight callers claim ten times what two accounts have, at the same time", Run: ClaimAtOnce},
		{Name: "claims-two-servers", About: "sixteen callers claim ten times what there is, on two servers with one database", Control: true, Run: ClaimsTwoServers},
		{Name: "keys-exhausted", About: "KeyPackages run out: last resort, missing, refilled, and a caller at its limit", Run: KeysExhausted},
		{Name: "no-key", About: "the same writes twice without any key: other checks prevent duplicates", Run: NoKey},
		{Name: "key-other-body", About: "a key is reused with another body: a conflict that names the fields", Run: KeyOtherBody},
		{Name: "key-other-caller", About: "a key is reused by another caller: two separate writes", Run: KeyOtherCaller},
		{Name: "retry-after-epoch", About: "a message is retried after the epoch moved", Run: RetryAfterEpoch},
		{Name: "retry-after-leave", About: "a message and a leave are retried after the sender left", Run: RetryAfterLeave},
		{Name: "welcome-after-grace", About: "the app dies between fetching its Welcome and joining, and the grace runs out", Control: true, Run: WelcomeAfterGrace},
		{Name: "welcome-silence", About: "silence counts as success: a Welcome is consumed after the grace, or released after a failure", Control: true, Run: WelcomeSilence},
		{Name: "welcome-damaged", About: "a Welcome is damaged inside: its devices report it, and come back by external commit or a new invitation", Run: WelcomeDamaged},
		{Name: "welcome-silence-killed", About: "silence counts as success, and the app dies before it keeps its Welcome: it comes back", Control: true, Run: WelcomeSilenceKilled},
		{Name: "confirm-twice", About: "a Welcome is confirmed twice, late, and first with false", Run: ConfirmTwice},
		{Name: "two-devices", About: "one DID has two devices, each with its own Welcome", Run: TwoDevices},
		{Name: "same-epoch", About: "two members commit in the same epoch: one wins, the other learns the epoch", Run: SameEpoch},
		{Name: "contended-commits", About: "eight members commit at once, epoch after epoch: one commit per epoch, and none starves", Run: ContendedCommits},
		{Name: "leave-twice", About: "a member leaves twice, its removal is committed, and it returns", Run: LeaveTwice},
		{Name: "external-rejoin", About: "a device loses its state and rejoins by external commit, with another key and with its own", Run: ExternalRejoin},
		{Name: "own-device", About: "a member adds a second device of its own, and a third one joins by external commit", Run: OwnDevice},
		{Name: "removed-cannot-return", About: "a removed member and an outsider try external commits and GroupInfos", Run: RemovedCannotReturn},
		{Name: "hidden-handshakes", About: "encrypted and readable commits, with and without GroupInfo: what the server could check", Run: HiddenHandshakes},
		{Name: "disputed", About: "an encrypted commit is garbage to half of 8 to 50 members: they report it, and come back by external commit", Run: Disputed},
		{Name: "reset", About: "30 members, a split group, lost answers and a kill: several members reset it at once, and all go on in one successor", Control: true, Run: Reset},
		{Name: "mls-libraries", About: "groups whose members use different MLS libraries, with readable, encrypted and mixed handshakes", Agents: true, Run: Libraries},
		{Name: "large-library-group", About: "a group of --members devices of another MLS library, in cipher suite 1 and X-Wing: sizes and times", Agents: true, Run: LargeLibraryGroup},
		{Name: "malicious-commit", About: "a member submits commits of another time, group or member, damaged, or beyond its rights", Run: MaliciousCommit},
		{Name: "malicious-add", About: "a member adds accounts that it does not name, with wrong KeyPackages and Welcomes", Run: MaliciousAdd},
		{Name: "malicious-group-info", About: "a member sends GroupInfos that are forged, damaged or of another epoch", Run: MaliciousGroupInfo},
		{Name: "malicious-key-package", About: "KeyPackages of others, damaged ones, and a used init_key are published", Run: MaliciousKeyPackage},
		{Name: "big-group", About: "a group of many members, some with several devices, added in batches", Run: BigGroup},
		{Name: "create-existing", About: "createConvo with a group that exists: a replay, or a refusal that reveals nothing", Run: CreateExisting},
		{Name: "metadata", About: "a convo's name and a message's embed come back as they were sent", Run: Metadata},
		{Name: "verified-log", About: "members check the log against signed heads, and compare the heads inside encrypted messages", Run: VerifiedLog},
		{Name: "attachments", About: "encrypted files are uploaded to two servers that are killed, into a store that fails: each is there whole, once", Control: true, Run: Attachments},
		{Name: "push", About: "phones that fetch only when they get a push: bursts, a Welcome, repeated registrations", Control: true, Run: Push},
		{Name: "spammer", About: "an outsider invites many people and writes to them: requests that nobody is pushed, blocks and policies", Control: true, Run: Spammer},
		{Name: "push-receiver-fails", About: "the receiver of pushes answers 500, 503, 400, 410 and nothing", Control: true, Run: PushReceiverFails},
		{Name: "push-killed", About: "the server is killed at every step from a message's COMMIT to the record of its push", Control: true, Run: PushKilled},
		{Name: "live-basic", About: "streams show messages, commits, roster changes, Welcomes and KeyPackages to the right accounts only", Run: LiveBasic},
		{Name: "live-late-convo", About: "open streams show convos that are made and joined later, and nothing older", Run: LiveLateConvo},
		{Name: "live-removed", About: "a stream shows a member its removal, and nothing after it", Run: LiveRemoved},
		{Name: "signals", About: "typing and moved cursors reach who is connected, on two servers, and nobody else; nothing of them is stored", Control: true, Run: Signals},
		{Name: "live-slow", About: "a stream is not read while more is sent than a server keeps for it", Run: LiveSlow},
		{Name: "live-reconnect", About: "streams on two servers are dropped all the time, and a server is restarted", Control: true, Run: LiveReconnect},
		{Name: "live", About: "many write and many listen on two servers, with dropped, slow and new members, and kills of leader and database", Control: true, Run: Live},
		{Name: "network", About: "people of three services invite each other, while links lose packets and services are killed", Control: true, Run: Network},
		{Name: "network-growth", About: "how many messages a second one, two and three services take, each with few cores", Control: true, Cores: true, Run: NetworkGrowth},
		{Name: "rolling-upgrade", About: "two servers are replaced by other versions, one at a time, under load, and one goes back", Control: true, Upgrade: true, Run: RollingUpgrade},
		{Name: "failover", About: "the primary of two servers crashes or hangs under load, again and again; its synchronous standby takes over", Control: true, Standby: true, Run: Failover},
		{Name: "failover-async", About: "the standby takes over without the newest writes: how many are lost, and who is told", Control: true, Standby: true, Run: FailoverAsync},
		{Name: "patroni", About: "three PostgreSQL under Patroni: the primary is killed, frozen, full, cut off, switched over", Control: true, Patroni: true, Failover: patroniEach, Run: Patroni},
		{Name: "restored-backup", About: "the server is restored to an earlier moment, and its clients make good what it lost", Control: true, Run: RestoredBackup},
		{Name: "restored-pgbackrest", About: "pgBackRest restores an outside PostgreSQL to an earlier moment, in another directory", Control: true, Patroni: true, Run: RestoredBackrest},
		{Name: "long-conversation", About: "random joins, leaves, messages and faults, from the printed seed", Run: LongConversation},
	}...)
}

// withSettings plays with a server that has other settings, and then restores the usual settings.
func withSettings(ctx context.Context, w *testbed.World, settings map[string]string,
	play func(context.Context, *testbed.World)) {
	Check(w.Restart(ctx, settings))
	play(ctx, w) // after a failure, Config.play restarts the server
	Check(w.Restart(ctx, nil))
}

// unlimited is [testbed.Unlimited] for steps. A load has few people, who invite each other more
// often than the quotas allow.
func unlimited(ctx context.Context, w *testbed.World) map[string]string {
	return Must(testbed.Unlimited(ctx, w.Server.Binary()))
}
