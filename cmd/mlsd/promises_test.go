package main

import (
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// promise is a promise of a page, in a few words, and the tests that would break with it.
type promise struct{ says, tests string }

// promises returns the promises of pages, which stand there below "Shown by".
func promises() map[string][]promise {
	return map[string][]promise{
		"SECURITY.md": {
			{"[entitlement](#in-scope): non-members and former members", "TestOutsidersLearnNothing TestFormerMemberSeesNothingMove TestRemovedMemberReadsNothing TestGlobalKey TestEntitlement"},
			{"exactly once", "TestHundredAtOnce TestKillBetweenCommitAndAnswer TestKillAtRandom"},
			{"MLS at the server", "TestVerifiedCommit TestOneCommitPerEpoch TestPublishRefusals TestGhost"},
			{"tokens and sessions", "TestValidateRefusesForms TestUseAcrossNodes TestForgedSessions TestOldSessions TestDeleteSession TestSessionOfAnotherDevice"},
			{"the server as a weapon", "TestDNSRebinding TestRedirectIsNotFollowed TestWebhookDialer TestChallenge TestChallengesAreBounded TestDomainOfAService"},
			{"resources", "TestSlowestIsCut TestForgerLeavesLookups TestKnownAccountsOfOneDomain TestNobodyStarves TestQuotas"},
			{"secrets in logs, answers and spans", "TestNoSecretLeaves TestLogNamesNobody TestAuditHoldsNoContent TestStreamFails TestTraceOfMessage"},
			{"[1, 2](#trust-model): what the server sees", "TestAuditHoldsNoContent TestStoredHashes"},
			{"3: a caller is the `iss`; what a session stands for", "TestSubImpersonation TestReplayBeforeAuth TestSession TestWhatAStolenSessionCannotDo TestSessionLastsHours"},
			{"4: who says what an account is", "TestResolve TestForget TestLifeOfAnAccount"},
			{"5: a PDS acts for its users", "TestThroughAPDS"},
			{"6: what is checked of commits; a server that lies is noticed", "TestVerifiedCommit TestCheatingServersAreCaught"},
			{"7: keys that sign sessions, heads, and for other services", "TestRotation TestRestored TestClientsFollowARotation TestLogNamesNobody TestServiceKey TestServiceKeyCommand TestDIDDocumentHasTheServiceKeys"},
			{"8: the admin listener, and who reads exports", "TestReadingAnExportIsRecorded TestWrongTokensAreSlowed TestBrowsersCannotReadTheAdminListener TestAdminTokens TestOpenAdminListenerNeedsAToken TestSessionCookie TestOtherSitesAreRefused"},
			{"9: pushes carry no content", "TestPushCarriesNoContent"},
			{"10: other services", "TestNeighboursAreChosen TestServiceThatNobodyChose TestReceiptsRefused TestErasureByAFormerHome FuzzOtherServices"},
			{"11: `X-Forwarded-For`", "TestProxies TestWaitingConnectionsOfAll"},
		},
		"docs/ACCOUNTS.md": {
			{"a request of an account that is refused has no effect", "TestRefusedAccounts TestRefusedTokenIsNotUsedUp TestGateRefusesEverybodyUntilItIsLoaded TestWhoLeavesNoRow"},
			{"a convo keeps an admin who is served", "TestHandOverFromARefusedAdmin TestAdminsAreRefusedAtOnce TestHeirs"},
			{"usually within a second: tickets, sessions (after five at the latest), streams, pushes, KeyPackages", "TestSubscriptionThatBeginsTooLate TestSessionsEndWithTheirAccount TestStreamsOfRefusedAccounts TestRefusedAccountIsNotCalled TestKeyPackagesOfRefusedAccounts TestGateOfTwoNodes"},
			{"exports and erasures of accounts that are refused", "TestMyDataOfRefusedAccounts"},
			{"a part of the rate", "TestLimitedAccount TestAdminAccountLimit"},
			{"more refused accounts than a node remembers", "TestGateWithTooManyRefused TestGateWithoutItsDatabase"},
			{"[whom the node admits](#whom-the-node-admits)", "TestModeAllowlist TestAllowlist TestBrokenAllowlist TestAllowlistAgain TestBrokenAdmitFile TestModeClosed TestClosedNode"},
			{"[what the network says](#what-the-network-says-of-accounts): events and their effect", "TestLifeOfAnAccount TestStatesOfCopiesHaveNoEffect TestIdentities TestJetstream TestAccountsOfAPDS TestBlockAndStatusAreApart"},
			{"one node follows, and goes on where another ended", "TestOneNodeFollows TestReconnect TestLostSession"},
			{"what a relay can do", "TestStatusOfUnknownAccountsIsNotStored TestOlderStatementsHaveNoEffect TestGarbage TestReactivate TestAdminAccountReactivate"},
			{"what it does not say: tokens end within an hour, sessions within six", "TestValidateRefusesCheaply TestSessionLastsHours"},
			{"gaps are counted", "TestGaps"},
			{"[the tables](#the-tables): no row means active", "TestAdminAccountShow TestErasureEndsALimit TestSeek TestAdminRelaySeek"},
		},
		"docs/ERASURE.md": {
			{"[what an erasure does](#what-an-erasure-does): nothing names the account; others keep their data", "TestAdminAccountErase TestEraseMyAccount TestErasureOfManyWelcomes TestErasureKeepsTheTree TestAttachmentErasure TestNamed TestPrivacyPage"},
			{"the account is refused meanwhile, and can begin anew", "TestErasing TestBegunWhileOneEnds TestBlockOutlivesErasure TestErasureEndsALimit"},
			{"[what it does not do](#what-it-does-not-do)", "TestAdminAccountErase TestErasureSparesOtherDevices"},
			{"[when](#when-an-account-is-erased): after a deletion, unless the account comes back", "TestDeletedAccountIsErased TestErasureIsDueAfterADelay TestReturnBeatsErasure TestErasureCanBeSwitchedOff"},
			{"[the two steps](#how-an-account-erases-itself): tokens, repetitions, keys, quotas", "TestConfirmationTokens TestEraseStepsHaveKeysOfTheirOwn TestConfirmedAtOnce TestEraseWithoutQuota TestSweep"},
			{"whom both methods serve", "TestMyDataOfRefusedAccounts"},
			{"[other services](NETWORK.md#invitations) are asked to erase the account, and believe its home alone", "TestErasureIsToldToOtherServices TestErasureHoldsNoTransaction TestErasureByHome"},
			{"[a job](#a-job) loses and repeats nothing; many jobs read the tables together", "TestErasureKilled TestErasuresOnSeveralNodes TestErasuresReadTogether TestOneOfManyErasuresFails TestPauseAfterAFailure TestNoBatchIsCutOff"},
			{"[for clients](#for-clients): answers to retries", "TestEraseMyAccount"},
			{"[an export](#export) has all that is held, and nothing of others", "TestNoSecretLeaves TestFormerMemberSeesNothingMove TestReadingAnExportIsRecorded TestAdminAccountExport TestExportMyData TestExportSaysNothingOfOthers TestExportHidesTheStore TestSealedBytesAreNotRead"},
			{"its pages: order, bounds, cursors, price", "TestExportOfManyRows TestExportOfLargeMessages TestExportCursors TestPositions TestExportIsCharged"},
		},
		"docs/LIMITS.md": {
			{"[rates](#rates) of a DID, of an address, of pages; a debt is one bucket", "TestRateLimits TestPagesHaveARate TestBucketsDebt TestBuckets"},
			{"what a request of [each method](#methods) costs; a failed one pays too; a question comes before the work", "TestOutsidersProposalParsesNothing TestExternalProposalIsExpensive TestCosts TestMethods TestDownloadIsCharged TestExportIsCharged TestHeadsAreCharged TestVerificationIsCharged TestReceiptsAreCharged TestLateRequestsAreCharged TestFailedLookupsAreCharged TestUnauthenticatedOpenings"},
			{"an account's own rate", "TestLimitedAccount"},
			{"[requests](#requests): sizes of bodies and objects, members of a convo", "TestLargestMessage TestHostileSize TestOversizedBodyIsDrained"},
			{"connections that wait", "TestWaitingConnectionsOfAnAddress TestWaitingConnectionsOfAll"},
			{"speeds of bodies and answers; the rest of a refused body", "TestTransferPace TestUploadDeadline TestSlowReadersLoseTheirPlace TestDrainDeadline"},
			{"memory of bodies and answers, by caller, address and size", "TestMemory TestLargeRequestsLeaveMemory TestSlowUploads TestDeclaredBodiesTakeNothing TestSlowestIsCut TestSlowShareOfAddress TestDownloadsHaveTheirOwnMemory TestPausesDoNotHideSlowTransfers"},
			{"a page", "TestPageBytes TestConvoBytes TestLargePagesTakePlaces TestLargePagesAsk"},
			{"request ids, log lines", "TestRequestIDs TestLeftOut TestManyMessages"},
			{"[look-ups](#look-ups) of unknown accounts, by address", "TestForgerLeavesLookups TestForgersOfManyAddresses TestPDSOfNewUsers TestForgerIsLimited TestTarpitsHoldFewSlots TestSourceLimits"},
			{"look-ups of accounts that verified before, by domain", "TestKnownAccountsOfOneDomain TestTarpitsThatVerified"},
			{"look-ups after bad signatures, by address", "TestBadSignaturesAreNoAmplifier TestBadSignaturesOfManyDIDs TestBadSignaturesSpendTheBudget TestRotationBesideForgers"},
			{"look-ups for sessions, by account, address and domain", "TestSessionsAreDividedByAddress TestKnownAccountsOfOneDomain"},
			{"sessions, and those that have ended", "TestSessionsOfAnAccountAreBounded TestTooManyEndedSessions"},
			{"keys in memory and in the database", "TestVerifiedKeysStay TestSweepKeys"},
			{"tokens that are checked at once", "TestUrgent"},
			{"signals and cursors", "TestLimitsOfSignals TestOneCallerCannotTakeAllSignals TestSignalsLeaveSpaceForEvents TestMovedCursors"},
			{"expensive requests", "TestAdmissionTakesTurns TestAdmissionOfThoseWhoWait TestLateRequestsAreBounded TestAdmissionIsBounded TestOutsideMakesWay TestCheapPassesExpensive TestClaimsBehindALock"},
			{"verifications", "TestVerificationPlaces TestCostlyGroupInfo TestCostlyCommit TestCostlyKeyPackages TestMoreLeavesThanKeyPackages"},
			{"heads, pages of exports, confirmation tokens", "TestLargestEntries TestExportOfManyRows TestConfirmationTokens"},
			{"claims and their records; KeyPackages of a device", "TestTokenOfAClaim TestClaimRecordIsSmall TestBudget TestDrain TestInvitedWithManyConvos"},
			{"look-ups of services and homes, by caller and address", "TestFindingHasARate TestSlowHomes TestSlowHomesOfReceipts TestSlowHomesOfErasures"},
			{"[other services](#other-services): calls by home, rounds, budgets", "TestSilentHostIsOneHome TestSilentHomesDelayNobody TestDueIsBounded TestHomeAway TestBudget TestBudgetIsShared TestInvitationsToOneConvo"},
			{"[accounts](#accounts)", "TestGateWithTooManyRefused TestTooManyLimits TestPauseAfterAFailure TestErasuresReadTogether"},
			{"writes that wait", "TestQueueIsBounded TestLargeMessages TestExpiryInBatches TestHundredCursors TestUsesOfOneCall TestCost"},
			{"[events and push](#events-and-push): openings, subscriptions, tickets", "TestOpenings TestOpeningsTakeTurns TestWaitingOpenings TestLimits TestOldestGivesWay TestTicketsOfOneDID TestRefusedTicketStays"},
			{"readers that are slow; large events; catch-ups", "TestPatience TestSlowReaders TestSlowReadersOfEventStreams TestLargeEventsOfOneDID TestWaitForLargeEventsIsExcused TestCatchUpsOfOneAccountTakeTurns"},
			{"reports, disputes, blocks", "TestReportsAreBounded TestTwoLiarsCannotHoldAConvo TestBlocks TestReportBytes"},
			{"calls and challenges of webhooks", "TestPlaces TestHangingWebhooks TestChallengeRates TestChallengesAreBounded TestCircuit TestPlacesForget TestFanOutIsBoundedInDevices"},
			{"[the relay](#the-relay)", "TestGarbage TestSlowDatabase TestStatusOfUnknownAccountsIsNotStored"},
			{"[operators' requests](#operators-requests)", "TestCheckOutlivesTimeouts TestWrongTokensAreSlowed TestPurgeInBatches TestAdminConvoDelete"},
		},
		"docs/NETWORK.md": {
			{"services choose each other; a client hears a sentence", "TestNeighboursAreChosen TestTrust"},
			{"[a receipt](#what-each-side-checks): who takes it, and how often", "TestConvoAcrossServices TestReceipt TestReceiptsRefused TestReceiptAtTwoServices TestReceiptsOfAClaim FuzzReceipt"},
			{"the service's key, and another one", "TestServiceKey TestServiceKeyCommand TestDIDDocumentHasTheServiceKeys"},
			{"a host that names no service is not called", "TestDomainOfAService"},
			{"[invitations](#invitations): what a home takes, and what a person sees", "TestInvitationToAnotherService TestInvitationIsThereOnce TestRefusedInvitations TestBlockedInvitation TestLastResortIsARequest"},
			{"budgets of domains and of inviters", "TestInvitationBudgets TestInvitationsToOneConvo TestOneAccountHasAPartOfTheBudget TestBudget TestBudgetIsShared TestMadeUpInvitationsStopNobody"},
			{"homes that are away, slow or silent; hosts that change", "TestHomeAway TestHangingHome TestSilentHomesDelayNobody TestSilentHostIsOneHome TestDueIsBounded TestHomeThatMoves"},
			{"`withdrawn` and `ended`", "TestInvitationEnds TestInvitationIsReset TestInvitationEndsBeforeItArrives TestInvitationEndsInAnyOrder TestErasedInviterEndsInvitations"},
			{"erasures: who is told, and who is believed", "TestErasureIsToldToOtherServices TestErasureByHome TestErasureByAFormerHome TestErasureByAStaleKey"},
			{"[moving home](#moving-home)", "TestMovingHome"},
			{"[what a look-up costs](#what-a-look-up-costs), and how old an answer may be", "TestServicesAreRemembered TestRefreshOfAFailingService TestNowIsNow TestFindingHasARate TestSlowHomes TestErasureByAStaleKey"},
			{"[what a hostile service can do](#what-a-hostile-service-can-do): texts, requests, calls", "FuzzOtherServices TestTextOfOthers TestRefusedInvitations TestInvitationBudgets TestInvitationsOfOneInviter TestSilentHomesDelayNobody"},
			{"[a service that nobody chose](#a-service-that-nobody-chose)", "TestServiceThatNobodyChose"},
		},
		"docs/QUOTAS.md": {
			{"[what counts](#what-counts)", "TestQuotas TestAddressShare TestConvoQuota TestAttachmentQuota TestUploadQuota TestRejectedKeyPackagesCount TestRepeatedReportsCount"},
			{"invitations", "TestOpenInvitations TestInvitationsOfOneInviter TestInvitationsIntoOneConvo TestInvitationsAtOnce TestInvitationsOfAnAddress"},
			{"reports", "TestReportBytes TestClosedReportsMakeRoom TestReportsOfAnAddress"},
			{"[what a day can fill](#what-a-day-can-fill)", "TestDiskOfADay"},
		},
		"docs/TRANSPARENCY.md": {
			{"[what a member can be sure of](#what-a-member-can-be-sure-of)", "TestCheatingServersAreCaught TestHonestServerIsNotAccused TestRandomHonestServiceIsNotAccused TestMadeUpHeadOfAMember TestMembersVerifyTheLog"},
			{"[a head](#a-head), [a leaf](#a-leaf): their bytes", "TestPage TestVectors TestHeadHasOneForm"},
			{"tags: each convo has salts of its own, and an erasure deletes them", "TestErasureKeepsTheTree TestErasedAccountReturns"},
			{"[what a client does](#what-a-client-does): heads and proofs", "TestLogProofRange TestEdgeAgreesWithTlog TestHeadIsThatOfTheLog"},
			{"[what it says](#what-it-says) of each way to cheat", "TestCheatingServersAreCaught"},
			{"[after a restore](#after-a-restore)", "TestRestoreIsNoLie TestWentBack TestAcknowledgedBeforeTheFirstHead TestLostBeforeTheFirstHead TestAcknowledgedBeforeAnotherGeneration TestEntriesReadBeforeAFailover TestFailoverBetweenTwoQuestions TestKeysAreLost"},
			{"[another key](#another-key)", "TestClientsFollowARotation TestAwayOverTheWholeRotation TestRetireIsRefused TestSecondKeyIsLearned TestWithheldKey TestAdminLogKeys"},
			{"the keys of the DID document", "TestMultikey TestDIDDocumentHasTheLogKeys"},
			{"[what the server keeps](#what-the-server-keeps)", "TestRetentionKeepsTheTree TestStoredLeavesStay TestKeepFailsWithTheDatabase TestLongLog TestLastEntryIsHashedOnce"},
		},
		"docs/clients/SESSIONS.md": {
			{"[what to do](#what-to-do): a refresh that is repeated; `InvalidRefreshToken`; another session", "TestSession TestRefreshSession TestLateRepetitionOfRefresh TestSessionLastsHours TestDeleteSession TestDeleteLostSession"},
			{"[what a session is not good for](#what-a-session-is-not-good-for)", "TestWhatAStolenSessionCannotDo TestSessionOfAnotherDevice TestSessionJoinsWithItsDevice TestDeviceOfASession TestNoSecretLeaves"},
			{"[replays](#replays) meet the idempotency key", "TestSession TestRetryChangesNothing"},
			{"[when it ends](#when-it-ends): its hour, its six hours", "TestOldSessions TestSessionLastsHours"},
			{"`deleteSession`, on all nodes", "TestDeleteSession TestSessionsOfTwoNodes TestPagesSayHowLongNodesTrust"},
			{"with its account, with its key, with the fiftieth, with a stolen refresh token", "TestSessionsEndWithTheirAccount TestReplacedKeys TestSessionsOfAReplacedKey TestSessionsOfAnAccountAreBounded TestRefreshSession"},
			{"after a restore; on a node that reads nothing", "TestDatabaseGoesBack TestStaleNode"},
			{"[streams](#streams) end with it", "TestStreamsOfASession TestStreamEndsWithItsBearer"},
			{"a request under a session uses up no token", "TestSession"},
			{"[what a thief can do](#what-a-thief-can-do)", "TestWhatAStolenSessionCannotDo TestSessionsOfAReplacedKey TestLateRepetitionOfRefresh"},
		},
		"docs/operating/TRACES.md": {
			{"a message is one trace", "TestTraceOfMessage"},
			{"without `MLSD_TRACES_URL` nothing is spent", "TestOffCostsNothing"},
			{"[the server decides](#what-to-know) what is traced", "TestUnauthenticatedDoNotSample TestTraceparent TestHostileTraceparent"},
			{"a batch has one trace; what follows on the same node", "TestShared TestCauses TestDetached"},
			{"a span says nothing about people", "TestTraceOfMessage TestFailedStatement TestBeginning"},
			{"a collector that is away costs nothing but its spans; its headers stay secret", "TestCollectorHangs TestCollectorNeverAnswers TestAnswersOfCollectors TestBadHeaders"},
			{"[from a latency to its trace](#from-a-latency-to-its-trace)", "TestTraceOfMessage"},
		},
	}
}

// The pages have the promises of the table.
func TestPromisesPage(t *testing.T) {
	for path, all := range promises() {
		rows := "| promise | tests |\n|---|---|\n"
		for _, p := range all {
			rows += "| " + p.says + " | `" + strings.Join(strings.Fields(p.tests), "`, `") + "` |\n"
		}
		moduletest.Table(t, path, "Shown by", rows)
	}
}
