package clientsim

import "context"

// Scenario is one story with a promise at its end. Run plays it and notes what
// it sees broken; the checker goes over everything afterwards.
type Scenario struct {
	Name string
	// About is one line for --list.
	About string
	// Control is set where the server has to be killed or restarted, to call
	// this machine, or to see time pass, which only works with a server of the
	// simulator's own.
	Control bool
	Run     func(context.Context, *World) error
}

// Scenarios lists every scenario, in the order in which they run.
func Scenarios() []Scenario {
	return []Scenario{
		{Name: "lost-answer-send", About: "the answer to sendMessage is lost after the commit", Run: LostAnswerSend},
		{Name: "lost-answer-create", About: "the answer to createConvo is lost after the commit", Run: LostAnswerCreate},
		{Name: "lost-answer-add", About: "the answer to addMembers is lost after the commit", Run: LostAnswerAdd},
		{Name: "lost-answer-publish", About: "the answer to publishKeyPackage is lost after the commit", Run: LostAnswerPublish},
		{Name: "lost-answer-get-welcome", About: "the answer to getWelcome is lost: fetched again, same bytes, same lease", Run: LostAnswerGetWelcome},
		{Name: "lost-answer-confirm", About: "the answer to confirmWelcome is lost: confirmed again", Run: LostAnswerConfirm},
		{Name: "lost-answer-leave", About: "the answers to leaveConvo are lost: of who leaves, and of who commits the removal", Run: LostAnswerLeave},
		{Name: "lost-answer-cursor", About: "the answer to updateCursor is lost: said again, and it never moves back", Run: LostAnswerCursor},
		{Name: "twice-at-once", About: "every write arrives twice at the same time", Run: TwiceAtOnce},
		{Name: "hundred-at-once", About: "one sendMessage arrives a hundred times at the same time", Run: HundredAtOnce},
		{Name: "claim-at-once", About: "eight callers claim an account's four KeyPackages at the same time", Run: ClaimAtOnce},
		{Name: "claims-two-servers", About: "sixteen callers claim on two servers with one database, ten times what there is", Control: true, Run: ClaimsTwoServers},
		{Name: "keys-exhausted", About: "KeyPackages are used up: last resort, missing, refilled, and a caller that has had enough", Run: KeysExhausted},
		{Name: "no-key", About: "the same writes twice without any key: the natural guards", Run: NoKey},
		{Name: "key-other-body", About: "a key is reused with another body: a conflict that names the fields", Run: KeyOtherBody},
		{Name: "key-other-caller", About: "a key is reused by another caller: two separate writes", Run: KeyOtherCaller},
		{Name: "retry-after-epoch", About: "a message is retried after the epoch moved", Run: RetryAfterEpoch},
		{Name: "retry-after-leave", About: "a message and a leave are retried after the sender left", Run: RetryAfterLeave},
		{Name: "welcome-app-killed", About: "the app dies between fetching its Welcome and joining, within the grace", Run: WelcomeAppKilled},
		{Name: "welcome-after-grace", About: "the same, and the grace runs out", Control: true, Run: WelcomeAfterGrace},
		{Name: "welcome-silence", About: "where silence counts as success: consumed after the grace, released after a reported failure", Control: true, Run: WelcomeSilence},
		{Name: "confirm-twice", About: "a Welcome is confirmed twice, late, and first with false", Run: ConfirmTwice},
		{Name: "two-devices", About: "one DID has two devices, each with a Welcome of its own", Run: TwoDevices},
		{Name: "same-epoch", About: "two members commit in the same epoch: one wins, the other learns the epoch", Run: SameEpoch},
		{Name: "contended-commits", About: "eight members commit at once, epoch after epoch: one commit per epoch, and nobody starves", Run: ContendedCommits},
		{Name: "leave-twice", About: "a member leaves twice, its removal is committed, and it returns", Run: LeaveTwice},
		{Name: "external-rejoin", About: "a device loses its state and comes back by external commit, with another key and with its own", Run: ExternalRejoin},
		{Name: "own-device", About: "a member adds a second device of its own, and a third one lets itself in", Run: OwnDevice},
		{Name: "removed-cannot-return", About: "a removed member and a stranger try external commits and GroupInfos", Run: RemovedCannotReturn},
		{Name: "hidden-handshakes", About: "encrypted and readable commits, with and without GroupInfo: what the server says it could check", Run: HiddenHandshakes},
		{Name: "malicious-commit", About: "a member submits commits of other times, groups and members, damaged ones, and ones beyond its rights", Run: MaliciousCommit},
		{Name: "malicious-add", About: "a member adds whom it does not name, with KeyPackages and Welcomes that are not for them", Run: MaliciousAdd},
		{Name: "malicious-group-info", About: "a member sends GroupInfos that are forged, damaged or of another epoch", Run: MaliciousGroupInfo},
		{Name: "malicious-key-package", About: "KeyPackages of others, damaged ones, and a used init_key are published", Run: MaliciousKeyPackage},
		{Name: "big-group", About: "a group of many members, some with several devices, added in batches", Run: BigGroup},
		{Name: "create-existing", About: "createConvo with a group that exists: replay, or refusal without a leak", Run: CreateExisting},
		{Name: "metadata", About: "a convo's name and a message's embed come back as they were sent", Run: Metadata},
		{Name: "killed-before-commit", About: "the server is killed before COMMIT, restarted, and asked again", Control: true, Run: KilledBeforeCommit},
		{Name: "killed-after-commit", About: "the server is killed between COMMIT and the answer, restarted, and asked again", Control: true, Run: KilledAfterCommit},
		{Name: "push", About: "phones that fetch only when they are called: bursts, a Welcome, registered and unregistered twice", Control: true, Run: Push},
		{Name: "push-receiver-fails", About: "the receiver of pushes answers 500, 503 and nothing, refuses one, and is gone", Control: true, Run: PushReceiverFails},
		{Name: "push-killed", About: "the server is killed at every step from a message's COMMIT to the record of its push", Control: true, Run: PushKilled},
		{Name: "live-basic", About: "streams tell messages, commits, people who come and go, Welcomes and KeyPackages to whom they concern", Run: LiveBasic},
		{Name: "live-late-convo", About: "open streams tell of convos that are made and joined later, and of nothing from before", Run: LiveLateConvo},
		{Name: "live-removed", About: "a stream tells a member of its removal, and of nothing after it", Run: LiveRemoved},
		{Name: "live-slow", About: "a stream is not read while more is sent than a server keeps for it", Run: LiveSlow},
		{Name: "live-reconnect", About: "streams on two servers are dropped all the time, and a server is restarted", Control: true, Run: LiveReconnect},
		{Name: "live", About: "many write and many listen on two servers: dropped, slow, coming and going, with kills of the leader and of the database", Control: true, Run: Live},
		{Name: "live-idle", About: "many listen to nothing, and then a message goes to many: what it costs, and how long it takes", Control: true, Run: LiveIdle},
		{Name: "expired-key", About: "writes are repeated when their keys have expired: the natural guards", Control: true, Run: ExpiredKey},
		{Name: "long-conversation", About: "joins, leaves, messages and faults at random, from the printed seed", Run: LongConversation},
	}
}
