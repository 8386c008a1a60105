package main

// call is what the page of a method says of calling it, besides what its lexicon says. The commands
// are for bash, after those of the index. A test runs them.
type call struct {
	repeat  string // what a repetition does, and the guard behind it
	prepare string // commands before the call
	bearer  string // alice's or bob's name, or the bearer itself
	params  string // name=value, with spaces between
	input   string // the members of a JSON object, one on each line
	// command is the call itself, where curl needs something special. Its answer is a text.
	command string
	answer  string
}

// What many repetitions do.
const (
	repeatQuery  = "It changes nothing."
	repeatCommit = "With an `idempotencyKey` the first answer comes again, for 7 days. Without one, the same bytes are the same request. Later the epoch is the guard: `EpochMismatch`."
	repeatState  = "With an `idempotencyKey` the first answer comes again, for 24 hours. Without one, a repetition changes nothing. It can undo a later change, so send a key."
)

// prepareAttachment announces a file of two parts, and prepareParts sends them.
const (
	prepareAttachment = `work=$(mktemp -d)
head -c 1500000 /dev/urandom >"$work/file"  # the ciphertext
created=$(xrpc $alice createAttachment -d '{"convoId":"'$convo'","size":1500000,"sha256":"'$(sha256sum "$work/file" | cut -d ' ' -f 1)'"}')
attachment=$(plain attachmentId "$created")`
	prepareParts = `for part in 1 2; do
  dd if="$work/file" of="$work/part" bs=1048576 skip=$((part - 1)) count=1 status=none
  curl -sS "$mlsd/xrpc/blue.catbird.mls.putAttachmentPart?convoId=$convo&attachmentId=$attachment&part=$part" -o /dev/null \
    -H "Authorization: Bearer $(token $alice putAttachmentPart)" -H 'Content-Type: application/octet-stream' --data-binary @"$work/part"
done`
)

// calls are all methods, by the last part of the NSID.
var calls = map[string]call{
	"acceptConvo": {
		repeat: repeatState,
		bearer: "bob",
		input: `"convoId": "$convo",
"idempotencyKey": "accept-1"`,
		answer: `{"accepted": true}`,
	},
	"addMembers": {
		repeat: repeatCommit,
		prepare: `carol=$(plain did "$(dev accounts)")
tablet=$(dev devices '{"did":"'$carol'"}')  # it publishes KeyPackages
add=$(dev devices/$phone/draftInvite '{"convoId":"'$convo'","dids":["'$carol'"]}')  # a commit and a Welcome`,
		bearer: "alice",
		input: `"convoId": "$convo",
"didList": ["$carol"],
"commit": $(part commit "$add"),
"welcomeMessage": $(part welcomeMessage "$add"),
"groupInfo": $(part groupInfo "$add"),
"idempotencyKey": "add-carol"`,
		answer: `{"success": true, "newEpoch": 2, "seq": 2}`,
	},
	"blockActor": {
		repeat: repeatState,
		bearer: "bob",
		input: `"did": "$alice",
"idempotencyKey": "block-1"`,
		answer: `{"blockedAt": "2026-11-22T09:30:00.123Z"}`,
	},
	"completeAttachment": {
		repeat:  "Takes no key: the attachment is the key. A repetition gets the same answer.",
		prepare: prepareAttachment + "\n" + prepareParts,
		bearer:  "alice",
		input: `"convoId": "$convo",
"attachmentId": "$attachment"`,
		answer: `{"attachmentId": "0192f3a6-…", "uri": "mlsd:attachment/0192f3a6-…", "size": 1500000}`,
	},
	"confirmWelcome": {
		repeat:  "Takes no key. The Welcome's state is the guard: a second report of success changes nothing.",
		prepare: `welcome=$(xrpc $bob getWelcome -G -d convoId=$convo)`,
		bearer:  "bob",
		input: `"convoId": "$convo",
"keyPackageRef": $(part keyPackageRef "$welcome"),
"success": true`,
		answer: `{"confirmed": true, "state": "consumed"}`,
	},
	"createAttachment": {
		repeat: "With an `idempotencyKey` the first answer comes again, for 24 hours. Without one, and later, the SHA-256 is the guard: the same attachment, in its present state.",
		prepare: `work=$(mktemp -d)
head -c 1500000 /dev/urandom >"$work/file"  # the ciphertext
size=$(wc -c <"$work/file" | tr -d ' ')
sha256=$(sha256sum "$work/file" | cut -d ' ' -f 1)`,
		bearer: "alice",
		input: `"convoId": "$convo",
"size": $size,
"sha256": "$sha256",
"idempotencyKey": "file-1"`,
		answer: `{"attachmentId": "0192f3a6-…", "uri": "mlsd:attachment/0192f3a6-…", "partSize": 1048576, "partCount": 2, "state": "uploading"}`,
	},
	"createConvo": {
		repeat:  "With an `idempotencyKey` the first answer comes again, for 7 days. Without one, the same bytes are the same request. Later the group_id is the guard: `GroupAlreadyExists`.",
		prepare: `group=$(dev devices/$phone/draftCreate '{"dids":["'$bob'"]}')  # an MLS group with Bob's device`,
		bearer:  "alice",
		input: `"groupId": $(part groupId "$group"),
"cipherSuite": $(part cipherSuite "$group"),
"initialMembers": ["$bob"],
"welcomeMessage": $(part welcomeMessage "$group"),
"groupInfo": $(part groupInfo "$group"),
"metadata": {"name": "Lunch"},
"idempotencyKey": "create-1"`,
		answer: `{"id": "0192f3a4-…", "groupId": "8c1f…", "creator": "did:plc:…", "epoch": 1, "cipherSuite": "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519",
 "members": [{"did": "did:plc:…", "joinedAt": "2026-11-22T09:30:00.123Z", "…": "…"}, "…"],
 "createdAt": "2026-11-22T09:30:00.123Z", "metadata": {"name": "Lunch"}, "lastSeq": 0, "commitLevel": "verified", "…": "…"}`,
	},
	"createSession": {
		repeat: "Takes no key: each call buys another session. At most 50 are good at a time.",
		bearer: "alice",
		input:  `"deviceId": "$device"`,
		answer: `{"session": "mlss1_AAAAAQ…", "expiresAt": "2026-11-22T10:30:00.000Z", "refreshToken": "mlsr1_AAAAAQ…", "endsAt": "2026-11-29T09:30:00.000Z"}`,
	},
	"deleteAttachment": {
		repeat:  "With an `idempotencyKey` the first answer comes again, for 24 hours. Without one, and later: `AttachmentNotFound`.",
		prepare: prepareAttachment,
		bearer:  "alice",
		input: `"convoId": "$convo",
"attachmentId": "$attachment",
"idempotencyKey": "delete-1"`,
		answer: `{"deleted": true}`,
	},
	"deleteSession": {
		repeat: "Takes no key: what has ended stays ended.",
		bearer: "alice",
		input:  `"deviceId": "$device"`,
		answer: `{"success": true}`,
	},
	"eraseMyAccount": {
		repeat: "The first step makes another token each time; with an `idempotencyKey` it gets the first one, for an hour. The second step gets its first answer for a week: the token is its key.",
		bearer: "bob",
		answer: `{"erasing": false, "confirmationToken": "…", "expiresAt": "2026-11-22T09:40:00.123Z",
 "held": {"convos": 1, "keyPackages": 3, "devices": 1, "pushTargets": 0, "pendingWelcomes": 1}}`,
	},
	"exportMyData": {
		repeat: repeatQuery,
		bearer: "alice",
		params: "limit=2",
		answer: `{"records": [{"type": "…", "data": "{…}"}, "…"], "cursor": "…"}`,
	},
	"getAttachment": {
		repeat: repeatQuery,
		prepare: prepareAttachment + "\n" + prepareParts + `
completed=$(xrpc $alice completeAttachment -d '{"convoId":"'$convo'","attachmentId":"'$attachment'"}')`,
		command: `curl -sS -G "$mlsd/xrpc/blue.catbird.mls.getAttachment" -H "Authorization: Bearer $(token $bob getAttachment)" \
  -d convoId=$convo -d attachmentId=$attachment -o "$work/got"
curl -sS -D - -o /dev/null -G "$mlsd/xrpc/blue.catbird.mls.getAttachment" -H "Authorization: Bearer $(token $bob getAttachment)" \
  -H 'Range: bytes=1000000-' -d convoId=$convo -d attachmentId=$attachment
cmp "$work/file" "$work/got" && echo the same`,
		answer: `HTTP/1.1 206 Partial Content
…Content-Range: bytes 1000000-1499999/1500000
the same`,
	},
	"getAttachmentStatus": {
		repeat:  repeatQuery,
		prepare: prepareAttachment,
		bearer:  "alice",
		params:  "convoId=$convo attachmentId=$attachment",
		answer: `{"attachmentId": "0192f3a6-…", "uri": "mlsd:attachment/0192f3a6-…", "state": "uploading", "size": 1500000,
 "partSize": 1048576, "partCount": 2, "parts": []}`,
	},
	"getBlocks": {
		repeat:  repeatQuery,
		prepare: `blocked=$(xrpc $bob blockActor -d '{"did":"'$alice'"}')`,
		bearer:  "bob",
		params:  "limit=50",
		answer:  `{"blocks": [{"did": "did:plc:…", "createdAt": "2026-11-22T09:30:00.123Z"}]}`,
	},
	"getCommits": {
		repeat:  repeatQuery,
		prepare: `rotated=$(dev devices/$phone/commit '{"convoId":"'$convo'"}')`,
		bearer:  "bob",
		params:  "convoId=$convo fromEpoch=2",
		answer: `{"convoId": "0192f3a4-…",
 "commits": [{"epoch": 2, "sender": "did:plc:…", "commitData": {"$bytes": "AAEAAQ…"}, "createdAt": "2026-11-22T09:30:00.123Z"}]}`,
	},
	"getConvo": {
		repeat: repeatQuery,
		bearer: "bob",
		params: "convoId=$convo",
		answer: `{"convo": {"id": "0192f3a4-…", "epoch": 1, "request": true, "invitedBy": "did:plc:…", "lastSeq": 1, "unread": 1, "…": "…"}}`,
	},
	"getConvos": {
		repeat: repeatQuery,
		bearer: "bob",
		params: "limit=50 requests=true",
		answer: `{"conversations": [{"id": "0192f3a4-…", "request": true, "invitedBy": "did:plc:…", "…": "…"}]}`,
	},
	"getCursorPolicy": {
		repeat: repeatQuery,
		bearer: "alice",
		answer: `{"shareCursors": "nobody"}`,
	},
	"getCursors": {
		repeat: repeatQuery,
		bearer: "alice",
		params: "convoId=$convo",
		answer: `{"cursors": [], "sharing": false}`,
	},
	"getEpoch": {
		repeat: repeatQuery,
		bearer: "alice",
		params: "convoId=$convo",
		answer: `{"convoId": "0192f3a4-…", "currentEpoch": 1}`,
	},
	"getGroupInfo": {
		repeat: repeatQuery,
		bearer: "alice",
		params: "convoId=$convo",
		answer: `{"groupInfo": {"$bytes": "AAEABA…"}, "epoch": 1}`,
	},
	"getInvitationPolicy": {
		repeat: repeatQuery,
		bearer: "alice",
		answer: `{"policy": "everyone"}`,
	},
	"getKeyPackageStats": {
		repeat: repeatQuery,
		bearer: "bob",
		params: "cipherSuite=MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519",
		answer: `{"available": 1, "claimed": 0, "consumed": 1, "lastResort": 1, "threshold": 20, "needsReplenish": true,
 "byCipherSuite": [{"cipherSuite": "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", "available": 1, "…": "…"}],
 "byDevice": [{"deviceId": "6b1f…", "available": 1, "needsReplenish": true, "…": "…"}], "…": "…"}`,
	},
	"getKeyPackages": {
		repeat: "It claims. With an `idempotencyKey` the same KeyPackages come again, for 30 minutes, as long as the claim lasts. Without one, each call claims others; under a service-auth token a copy of the request gets the first answer.",
		bearer: "alice",
		params: "dids=$bob convoId=$convo idempotencyKey=claim-1",
		answer: `{"keyPackages": [{"did": "did:plc:…", "keyPackage": "AAEABQ…", "cipherSuite": "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519",
  "keyPackageRef": "6a2f…", "deviceId": "6b1f…", "lastResort": false, "claimExpiresAt": "2026-11-22T10:00:00.123Z"}]}`,
	},
	"getLogHead": {
		repeat: "It changes nothing. Each call signs anew.",
		bearer: "alice",
		params: "convoId=$convo senders=$alice",
		answer: `{"head": "did:web:…/0192f3a4-…\n1\n…", "keys": ["did:web:…+…+A…"], "senders": [{"did": "did:plc:…", "salt": {"$bytes": "…"}, "tag": {"$bytes": "…"}}]}`,
	},
	"getLogProof": {
		repeat: repeatQuery,
		bearer: "alice",
		params: "convoId=$convo seq=1 size=1",
		answer: `{"hashes": [], "leaf": {"$bytes": "…"}}`,
	},
	"getMessages": {
		repeat: repeatQuery,
		bearer: "bob",
		params: "convoId=$convo sinceSeq=0 messageType=all limit=50",
		answer: `{"messages": [{"id": "0192f3a5-…", "convoId": "0192f3a4-…", "sender": "did:plc:…", "ciphertext": {"$bytes": "AAEAAh…"}, "epoch": 1, "seq": 1,
  "createdAt": "2026-11-22T09:30:00.123Z", "messageType": "application"}], "lastSeq": 1}`,
	},
	"getReportKey": {
		repeat: repeatQuery,
		bearer: "bob",
		answer: `{"keyId": "…", "publicKey": {"$bytes": "…"}, "algorithm": "HPKE-Base-X25519-HKDF-SHA256-AES-256-GCM"}`,
	},
	"getSubscriptionTicket": {
		repeat: "Takes no key: each call makes another ticket.",
		bearer: "alice",
		answer: `{"ticket": "…", "url": "ws://…", "expiresAt": "2026-11-22T09:31:00.123Z"}`,
	},
	"getWelcome": {
		repeat: "It gets the same Welcome until one is confirmed: the Welcome's state is the guard.",
		bearer: "bob",
		params: "convoId=$convo",
		answer: `{"convoId": "0192f3a4-…", "welcome": "AAEAAw…", "keyPackageRef": "6a2f…", "state": "in_flight",
 "graceExpiresAt": "2026-11-22T09:35:00.123Z", "epoch": 1, "request": true}`,
	},
	"leaveConvo": {
		repeat: "Leaving again without a commit gets the same answer. With a commit: with an `idempotencyKey`, or with the same bytes, the first answer comes again for 7 days. Later the epoch is the guard.",
		bearer: "bob",
		input: `"convoId": "$convo",
"idempotencyKey": "leave-1"`,
		answer: `{"success": true, "newEpoch": 1}`,
	},
	"processExternalCommit": {
		repeat: repeatCommit,
		prepare: `tablet=$(plain id "$(dev devices '{"did":"'$alice'"}')")
enter=$(dev devices/$tablet/draftRejoin '{"convoId":"'$convo'"}')  # an external commit`,
		bearer: "alice",
		input: `"convoId": "$convo",
"commit": $(part commit "$enter"),
"groupInfo": $(part groupInfo "$enter"),
"idempotencyKey": "tablet-1"`,
		answer: `{"newEpoch": 2, "seq": 2}`,
	},
	"publishKeyPackage": {
		repeat:  "With an `idempotencyKey` the first answer comes again, for 24 hours. Without one, and later, the KeyPackageRef is the guard: the same answer.",
		prepare: `made=$(dev devices/$phone/draftPublish)  # a KeyPackage`,
		bearer:  "alice",
		input: `"keyPackage": $(part keyPackage "$made"),
"cipherSuite": $(part cipherSuite "$made"),
"idempotencyKey": "publish-1"`,
		answer: `{"keyPackageRef": "6a2f…"}`,
	},
	"publishKeyPackages": {
		repeat: "With an `idempotencyKey`, which names the whole batch, the first answer comes again, for 24 hours. Without one, and later, the KeyPackageRef is the guard: `duplicate`.",
		prepare: `one=$(dev devices/$phone/draftPublish)
two=$(dev devices/$phone/draftPublish)`,
		bearer: "alice",
		input: `"keyPackages": [
  {"keyPackage": $(part keyPackage "$one"), "cipherSuite": $(part cipherSuite "$one")},
  {"keyPackage": $(part keyPackage "$two"), "cipherSuite": $(part cipherSuite "$two")}
],
"idempotencyKey": "batch-1"`,
		answer: `{"results": [{"keyPackageRef": "6a2f…", "status": "published"}, {"keyPackageRef": "91c0…", "status": "published"}]}`,
	},
	"putAttachmentPart": {
		repeat:  "Takes no key: the part with the same bytes again changes nothing. Once the attachment is complete the answer is that of the stored part.",
		prepare: prepareAttachment,
		command: `curl -sS "$mlsd/xrpc/blue.catbird.mls.putAttachmentPart?convoId=$convo&attachmentId=$attachment&part=1" \
  -H "Authorization: Bearer $(token $alice putAttachmentPart)" -H 'Content-Type: application/octet-stream' \
  --data-binary @<(head -c 1048576 "$work/file")`,
		answer: `{"part":1,"sha256":"…"}`,
	},
	"refreshSession": {
		repeat:  "Takes no key. For two minutes a repetition gets the first answer, byte for byte. Later it ends the session: two clients have its refresh token.",
		prepare: `bought=$(xrpc $alice createSession -d '{"deviceId":"'$device'"}')`,
		bearer:  `$(plain session "$bought")`,
		input:   `"refreshToken": $(part refreshToken "$bought")`,
		answer:  `{"session": "mlss1_AAAAAQ…", "expiresAt": "2026-11-22T11:20:00.000Z", "refreshToken": "mlsr1_AAAAAQ…", "endsAt": "2026-11-29T09:30:00.000Z"}`,
	},
	"registerPushTarget": {
		repeat: repeatState,
		bearer: "alice",
		input: `"deviceId": "$device",
"kind": "webhook",
"url": "https://push.example.com/mls",
"idempotencyKey": "push-1"`,
		answer: `{"secret": "…", "state": "pending"}`,
	},
	"reportConvo": {
		repeat: "With an `idempotencyKey` the first answer comes again, for 24 hours. Without one, and later, the bytes are the guard: the same sealed bytes are the same report.",
		prepare: `key=$(xrpc $bob getReportKey)
sealed=$(head -c 400 /dev/urandom | base64 | tr -d '\n=')  # an app seals its report with HPKE: see REPORTS.md`,
		bearer: "bob",
		input: `"convoId": "$convo",
"reason": "harassment",
"sealedReport": {"\$bytes": "$sealed"},
"keyId": $(part keyId "$key"),
"idempotencyKey": "report-1"`,
		answer: `{"reportId": "0192f3a5-…", "reportedAt": "2026-11-22T09:30:00.123Z"}`,
	},
	"sendMessage": {
		repeat:  "With an `idempotencyKey`, or with the same bytes, the first answer comes again as long as the message is kept. The same bytes under another key are another message.",
		prepare: `message=$(dev devices/$phone/encrypt '{"convoId":"'$convo'","text":"how are you?"}')`,
		bearer:  "alice",
		input: `"convoId": "$convo",
"senderDid": "$alice",
"epoch": $(part epoch "$message"),
"ciphertext": $(part ciphertext "$message"),
"idempotencyKey": "message-2"`,
		answer: `{"messageId": "0192f3a5-…", "receivedAt": "2026-11-22T09:30:00.123Z", "seq": 2, "epoch": 1}`,
	},
	"sendSignal": {
		repeat:  "Takes no key and keeps nothing. Do not repeat it: a signal that got lost is old.",
		prepare: `typing=$(dev devices/$phone/encrypt '{"convoId":"'$convo'","text":"{\"typing\":true}"}')`,
		bearer:  "alice",
		input: `"convoId": "$convo",
"payload": $(part ciphertext "$typing")`,
		answer: `{"carried": true}`,
	},
	"setCursorPolicy": {
		repeat: repeatState,
		bearer: "bob",
		input: `"shareCursors": "members",
"idempotencyKey": "cursors-1"`,
		answer: `{"shareCursors": "members"}`,
	},
	"setInvitationPolicy": {
		repeat: repeatState,
		bearer: "bob",
		input: `"policy": "shared",
"idempotencyKey": "policy-1"`,
		answer: `{"policy": "shared"}`,
	},
	"streamConvoEvents": {
		repeat:  "Connect again at the last cursor: over all connections every event comes at least once.",
		command: `curl -sS -N -m 2 -G "$mlsd/xrpc/blue.catbird.mls.streamConvoEvents" -H "Authorization: Bearer $(token $alice streamConvoEvents)" -d cursor=0 || [ $? = 28 ]`,
		answer: `event: membershipEvent
id: …
data: {"by":"did:plc:…","change":"joined","convoId":"…","createdAt":"…","cursor":"…","did":"did:plc:…","epoch":1,"seq":0}
…
event: messageEvent
id: …
data: {"cursor":"…","message":{"ciphertext":{"$bytes":"AAEAAh…"},"convoId":"…","messageType":"application",…}}`,
	},
	"reportCommit": {
		repeat:  "Takes no key. An account reports a commit once: a repetition changes nothing.",
		prepare: `rotation=$(dev devices/$phone/commit '{"convoId":"'$convo'"}')  # a commit by Alice, which Bob cannot process`,
		bearer:  "bob",
		input: `"convoId": "$convo",
"epoch": 2,
"reason": "undecryptable"`,
		answer: `{"recorded": true, "disputed": false}`,
	},
	"reportEpoch": {
		repeat:  "Takes no key. The newest report of an account counts, so a repetition changes nothing.",
		prepare: `hash=$(head -c 32 /dev/zero | base64)  # SHA-256 of the epoch_authenticator that the MLS library has`,
		bearer:  "alice",
		input: `"convoId": "$convo",
"epoch": 1,
"authenticatorHash": {"\$bytes": "$hash"}`,
		answer: `{"recorded": true, "agreeing": 1, "forked": false, "disputed": false}`,
	},
	"submitCommit": {
		repeat:  repeatCommit,
		prepare: `rotation=$(dev devices/$phone/draftCommit '{"convoId":"'$convo'"}')  # a commit that rotates its keys`,
		bearer:  "alice",
		input: `"convoId": "$convo",
"commit": $(part commit "$rotation"),
"groupInfo": $(part groupInfo "$rotation"),
"idempotencyKey": "rotation-1"`,
		answer: `{"newEpoch": 2, "seq": 2}`,
	},
	"subscribeConvoEvents": {
		repeat:  "A ticket is good for one connection. Connect again with another one at the last cursor: over all connections every event comes at least once.",
		prepare: `ticket=$(plain ticket "$(xrpc $alice getSubscriptionTicket -X POST)")`,
		command: `curl -sS -D - -o /dev/null -m 1 --http1.1 "$mlsd/xrpc/blue.catbird.mls.subscribeConvoEvents?cursor=0&ticket=$ticket" -H 'Connection: Upgrade' \
  -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==' || [ $? = 28 ]`,
		answer: `HTTP/1.1 101 Switching Protocols`,
	},
	"unblockActor": {
		repeat: repeatState,
		bearer: "bob",
		input: `"did": "$alice",
"idempotencyKey": "unblock-1"`,
		answer: `{"success": true}`,
	},
	"unregisterPushTarget": {
		repeat: repeatState,
		bearer: "alice",
		input: `"deviceId": "$device",
"idempotencyKey": "push-off-1"`,
		answer: `{"removed": false}`,
	},
	"updateCursor": {
		repeat: "Takes no key. The largest position counts, so a repetition changes nothing.",
		bearer: "alice",
		input: `"convoId": "$convo",
"seq": 1`,
		answer: `{"seq": 1, "delivered": 1}`,
	},
	"withdrawKeyPackages": {
		repeat: "With an `idempotencyKey` the first answer comes again, for 24 hours. Without one, and later, a KeyPackage is withdrawn once: `withdrawn: 0`.",
		bearer: "alice",
		input: `"deviceId": "$device",
"idempotencyKey": "lost-phone"`,
		answer: `{"withdrawn": 3}`,
	},
}
