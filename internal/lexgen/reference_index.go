package main

// The parts of the index around its lists.
const (
	indexHead = `# The API, method by method

For client developers: every method of ` + "`blue.catbird.mls.*`" + `, its fields, limits and errors, and a call that a test of mlsd runs. Start with
[CLIENTS.md](../../CLIENTS.md), which says how the methods play together and when to retry.

` + "```" + `
GET  /xrpc/blue.catbird.mls.getEpoch?convoId=0192f3a4-…    →  200 {"convoId": "0192f3a4-…", "currentEpoch": 7}
POST /xrpc/blue.catbird.mls.updateCursor                   →  404 {"error": "ConvoNotFound", "message": "…"}
` + "```" + `

- A query is a GET with parameters. A procedure is a POST with a JSON object, and ` + "`Content-Type: application/json`" + `, as its answer is. ` + "`Authorization: Bearer`" + ` has
  a service-auth token for the method, or a [session](../SESSIONS.md). Through a PDS: [CLIENTS.md](../../CLIENTS.md#how-to-call-it).
- The tables: *required* fields are always there, *optional* ones may be absent, and never are ` + "`null`" + `. What stands after the type is its limit; a value
  beyond it is ` + "`InvalidRequest`" + `, or the error that the method has for it. Ignore fields that you do not know; the server does so too.
- [How each field is encoded](../ENCODINGS.md). [Shared types](TYPES.md). The pages are made from the [lexicons](../../../lexicons).

## Methods

| method | does |
|---|---|`

	indexErrors = `
## Errors of every method

An error is ` + "`{\"error\": name, \"message\": text}`" + `. The page of a method has its own errors; each name has one status. Treat a name that you do not know by its
status. *Wait* says that the answer has ` + "`Retry-After`" + `, in seconds.

| status | error | wait | when | do |
|---|---|---|---|---|`

	indexPreparation = `
## Preparation

The examples talk to ` + "[`mlsd-dev`](../DEV.md)" + `, whose devices make the MLS objects. Start it in one terminal:

` + "```sh" + `
go run ./cmd/mlsd-dev
` + "```" + `

Paste this into another, with bash: it makes two people. Then paste the example of a page. Before the next one, paste this again.

` + "```bash" + `
mlsd=${MLSD:-http://127.0.0.1:8080}
dev() { curl -sS "$mlsd/dev/$1" -d "${2-}"; }  # mlsd-dev: what, JSON
part() { sed -E 's/.*"'$1'":(\{[^}]*\}|"[^"]*"|[^],}]*).*/\1/' <<<"$2"; }  # a field of a JSON text
plain() { part "$@" | tr -d '"'; }  # the same without quotes
token() { plain token "$(dev token '{"did":"'$1'","lxm":"blue.catbird.mls.'$2'"}')"; }  # of an account, for a method
xrpc() { curl -sS "$mlsd/xrpc/blue.catbird.mls.$2" -H "Authorization: Bearer $(token $1 $2)" -H 'Content-Type: application/json' "${@:3}"; }

# Alice's phone makes a convo with Bob, and sends a message. Bob's phone has not joined yet.
alice=$(plain did "$(dev accounts)")
bob=$(plain did "$(dev accounts)")
made=$(dev devices '{"did":"'$alice'"}')
phone=$(plain id "$made") device=$(plain deviceId "$made")
made=$(dev devices '{"did":"'$bob'"}')
convo=$(plain convoId "$(dev devices/$phone/create '{"dids":["'$bob'"]}')")
sent=$(dev devices/$phone/send '{"convoId":"'$convo'","text":"hello"}')
` + "```"
)
