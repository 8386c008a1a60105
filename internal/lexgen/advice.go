package main

// advice says what a client does about an error. A key with a method in front is for that method
// alone. Links lead from docs/clients/api.
var advice = map[string]string{
	"AlreadyMember":       "If the person never joined, [invite it again](../../WELCOME.md#ways-back) in one commit. Else it is done",
	"CommitRequired":      "Make the commit with your MLS library, and send it along",
	"ConsumerTooSlow":     "Connect again at your cursor. Store events first, and process them later",
	"ConvoClosed":         "If `getConvo` names a `successorGroupId`, go on there ([COMMITS.md](../../COMMITS.md#proposals)). If not, the operator has closed the convo: it can be read and left",
	"ConvoDisputed":       "Discard the commit, read the log, and commit again after the `#disputeEvent` `ended`. If you could not process the commit, join again ([when a commit cannot be processed](../DISPUTES.md))",
	"ConvoNotFound":       "Check the id. If you are in the convo, the server has [lost writes](../../RECOVERY.md#how-to-notice)",
	"EpochMismatch":       "`is stale`: `getCommits`, apply, make it anew under a new key. `is ahead`: see the [retry rule](../../CLIENTS.md#the-retry-rule)",
	"ExpirationTooFar":    "Send an earlier `expires`, or none",
	"FutureCursor":        "Read the convos with `getConvos`, and connect without a cursor",
	"GroupAlreadyExists":  "Look in `getConvos`: your first attempt may have made it. Else take another group_id",
	"GroupInfoNotFound":   "Ask a member to [invite the device again](../../WELCOME.md#ways-back)",
	"IdempotencyConflict": "A bug in the client: it used the key for other content. The message names the fields",
	"InvalidCipherSuite":  "Take one of the [seven](TYPES.md#cipher-suites)",
	"InvalidCommit":       "Discard the commit, and correct what the message says ([COMMITS.md](../../COMMITS.md#what-is-checked))",
	"InvalidConfirmation": "Do the first step again, without `confirmationToken` and under a new key",
	"InvalidCursor":       "Begin again without a cursor",
	"InvalidDid":          "Send DIDs, not handles",
	"InvalidEpochRange":   "Ask from an epoch that the convo has reached (`getEpoch`), the lower one first",
	"InvalidGroupInfo":    "Send the GroupInfo of the new epoch, with tree and `external_pub` ([what libraries get wrong](../MLS-LIBRARIES.md#what-the-server-refuses))",
	"InvalidKeyPackage":   "Make another one, and correct what the message says ([what libraries get wrong](../MLS-LIBRARIES.md#what-the-server-refuses))",
	"InvalidMessage":      "Correct what the message says. Commits go to `submitCommit` and the other methods of commits",
	"InvalidPushTarget":   "Correct what the message says ([PUSH.md](../../PUSH.md))",
	"InvalidRefreshToken": "Buy another session with `createSession`",
	"InvalidTicket":       "Get another ticket",
	"InvalidWelcome":      "Discard the commit. Make one that adds KeyPackages which you have claimed, and its Welcome ([KEYPACKAGES.md](../../KEYPACKAGES.md))",
	"KeyPackageNotFound":  "Claim KeyPackages with `getKeyPackages`, and make the commit anew with those",
	"LastMember":          "Hide the convo in the app. `eraseMyAccount` would delete it",
	"NotMember":           "Stop, and keep what you have read. A member can add you again",
	"NotPermitted":        "Discard the commit ([who may change what](../../COMMITS.md#who-may-change-what))",
	"ReportsDisabled":     "Offer the person to block and to leave. The [PDS's moderation service](../REPORTS.md#if-the-service-takes-none) takes reports about accounts",
	"RequestInProgress":   "Wait for `Retry-After`, then send the same bytes under the same key",
	"SenderMismatch":      "Send the caller's own DID as `senderDid`",
	"TooManyBlocks":       "End another block with `unblockActor`",
	"TooManyDids":         "Ask for at most 100",
	"TooManyKeyPackages":  "Publish when `getKeyPackageStats` says `needsReplenish` ([QUOTAS.md](../../QUOTAS.md))",
	"TooManyMembers":      "Add fewer ([LIMITS.md](../../LIMITS.md))",
	"TooManyPushTargets":  "Remove a device that is gone with `unregisterPushTarget`",
	"UnknownReportKey":    "`getReportKey`, seal the report to the new key, and send it under a new key of idempotency",
	"WelcomeConsumed":     "If the device has joined, nothing. Else [come back](../../WELCOME.md#ways-back)",
	"WelcomeNotFound":     "If the device is not in the group, [come back](../../WELCOME.md#ways-back)",

	"reportCommit EpochMismatch": "Report commits that are in the log",
	"reportEpoch EpochMismatch":  "Report an epoch after the server has accepted its commit",
	"AttachmentIncomplete":       "Send the parts that the message names, then `completeAttachment`",
	"AttachmentNotFound":         "Check the id, and that it is the convo's. If it was deleted, the sender can upload it again",
	"AttachmentTooLarge":         "Split the file, or tell the user ([ATTACHMENTS.md](../ATTACHMENTS.md#limits))",
	"InvalidAsset":               "Correct `embedUri` or `embedType`. An attachment must be completed first ([ATTACHMENTS.md](../ATTACHMENTS.md))",
	"MessageTooLarge":            "Make it an [attachment](../ATTACHMENTS.md), and put its address and key into the message",

	"getAttachment InvalidAsset":            "Ask its sender to upload the file again",
	"putAttachmentPart InvalidAsset":        "Begin with `createAttachment`",
	"completeAttachment InvalidAsset":       "Compute size and SHA-256 of the ciphertext again, and begin with `createAttachment`",
	"completeAttachment RequestInProgress":  "Wait for `Retry-After`, then call it again",
	"deleteAttachment NotPermitted":         "Only its sender deletes an attachment",
	"getMessages InvalidCursor":             "The server does not have that entry: it has [lost writes](../../RECOVERY.md#how-to-notice)",
	"putAttachmentPart RequestInProgress":   "Wait for the answer of `completeAttachment`",
	"publishKeyPackages TooManyKeyPackages": "Send at most 100 at once",
}

func adviceOf(method, name string) string {
	if own, ok := advice[method+" "+name]; ok {
		return own
	}
	return advice[name]
}

// commonErrors says of the errors of every method when they come and what a client does.
var commonErrors = map[string]struct{ when, do string }{
	"InvalidRequest":       {"A field, the verb or the `Content-Type` is wrong. The message names it", "Correct the client. To repeat the request does not help"},
	"AuthMissing":          {"There is no token", "Send `Authorization: Bearer`"},
	"InvalidToken":         {"The token does not hold, was used before, or its [session](../SESSIONS.md) has ended", "The [retry rule](../../CLIENTS.md#the-retry-rule): the same bytes under the same key, with a fresh token or session"},
	"NotPermitted":         {"It is not the caller's right; the message says why", "Do not repeat it"},
	"Blocked":              {"The operator has blocked the account. From a method that invites: the caller itself has blocked the person", "[Stop, keep everything, tell the user](../../CLIENTS.md#errors)"},
	"AccountInactive":      {"The account is deactivated, suspended, taken down, deleted, or being erased; the message says which", "[Stop, keep everything, tell the user](../../CLIENTS.md#errors)"},
	"PayloadTooLarge":      {"The body is longer than any that the method takes", "Send less"},
	"RateLimitExceeded":    {"Too many requests of the account or the address", "Wait, then send the same bytes under the same key"},
	"QuotaExceeded":        {"A [quota](../../QUOTAS.md) of the day is used up; the message names it", "Tell the user. Send the same bytes under the same key after the time in the message"},
	"InternalServerError":  {"A defect of the server. The write may have been done", "Wait, then send the same bytes under the same key"},
	"MethodNotImplemented": {"The server has no such method, or its operator has not set up what the method needs; the message says which", "Do without it, or use a newer server"},
	"ServiceUnavailable":   {"The server cannot do it now. The write may have been done", "Wait, then send the same bytes under the same key"},
}
