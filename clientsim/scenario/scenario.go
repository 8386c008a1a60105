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
		{Name: "welcome-damaged", About: "a Welcome is damaged inside: its devices report it, and come back by external commit or a new invitation", Run: WelcomeDamaged},
		{Name: "welcome-silence-killed", About: "silence counts as success, and the app dies before it keeps its Welcome: it comes back", Control: true, Run: WelcomeSilenceKilled},
		{Name: "contended-commits", About: "eight members commit at once, epoch after epoch: one commit per epoch, and none starves", Run: ContendedCommits},
		{Name: "disputed", About: "an encrypted commit is garbage to half of 8 to 50 members: they report it, and come back by external commit", Run: Disputed},
		{Name: "reset", About: "30 members, a split group, lost answers and a kill: several members reset it at once, and all go on in one successor", Control: true, Run: Reset},
		{Name: "mls-libraries", About: "groups whose members use different MLS libraries, with readable, encrypted and mixed handshakes", Agents: true, Run: Libraries},
		{Name: "large-library-group", About: "a group of --members devices of another MLS library, in cipher suite 1 and X-Wing: sizes and times", Agents: true, Run: LargeLibraryGroup},
		{Name: "malicious-commit", About: "a member submits commits of another time, group or member, damaged, or beyond its rights", Run: MaliciousCommit},
		{Name: "bad-proposals", About: "a member proposes what no commit should contain: all can commit, and it is removed", Run: BadProposals},
		{Name: "bad-proposals-libraries", About: "the same, with members of other MLS libraries", Agents: true, Run: BadProposalsLibraries},
		{Name: "verified-log", About: "members check the log against signed heads, and compare the heads inside encrypted messages", Run: VerifiedLog},
		{Name: "attachments", About: "encrypted files are uploaded to two servers that are killed, into a store that fails: each is there whole, once", Control: true, Run: Attachments},
		{Name: "push", About: "phones that fetch only when they get a push: bursts, and a Welcome", Control: true, Run: Push},
		{Name: "live", About: "many write and many listen on two servers, with dropped, slow and new members, and kills of leader and database", Control: true, Run: Live},
		{Name: "roles", About: "members make and demote admins at random, and admins leave, with lost answers and kills: the model knows each answer", Control: true, Run: Roles},
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
