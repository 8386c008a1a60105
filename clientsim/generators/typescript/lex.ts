// Makes calls with the schemas that @atproto/lex generated: node lex.js BASE FILE. The client
// validates the answers.

import { readFileSync } from "node:fs"
import { Client, jsonToLex } from "@atproto/lex"
import * as mls from "./generated/blue/catbird/mls.js"

interface Call {
  nsid: string
  kind: "query" | "procedure" | "event"
  params?: Record<string, unknown>
  body?: unknown
  token?: string
  event?: string
}

const [base, file] = process.argv.slice(2)

async function make(call: Call) {
  const name = call.nsid.slice(call.nsid.lastIndexOf(".") + 1)
  const schema = (mls as any)[name]
  const body = call.body === undefined ? undefined : jsonToLex(call.body as any)
  if (call.kind === "event") {
    schema[call.event!].parse(body)
    return
  }
  const client = new Client(
    { service: base, headers: { authorization: "Bearer " + call.token } },
    { validateRequest: true, validateResponse: true },
  )
  await client.xrpc(schema, (call.kind === "query" ? { params: call.params } : { body }) as any)
}

for (const call of JSON.parse(readFileSync(file, "utf8")) as Call[]) {
  const error = await make(call).then(() => "", (err) => String(err))
  console.log(JSON.stringify({ nsid: call.nsid, error }))
}
