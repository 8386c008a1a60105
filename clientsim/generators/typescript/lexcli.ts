// Makes calls with the client that @atproto/lex-cli generated: node lexcli.js BASE FILE. The client
// validates the answers.

import { readFileSync } from "node:fs"
import { jsonToLex } from "@atproto/lexicon"
import * as generated from "./generated/index.js"

interface Call {
  nsid: string
  kind: "query" | "procedure" | "event"
  params?: Record<string, unknown>
  body?: unknown
  token?: string
  event?: string
}

const [base, file] = process.argv.slice(2)

const capital = (name: string) => name[0].toUpperCase() + name.slice(1)

async function make(call: Call) {
  const name = call.nsid.slice(call.nsid.lastIndexOf(".") + 1)
  if (call.kind === "event") {
    const module = (generated as any)["BlueCatbirdMls" + capital(name)]
    const result = module["validate" + capital(call.event!)](jsonToLex(call.body as any))
    if (!result.success) throw result.error
    return
  }
  const client = new generated.AtpBaseClient({ service: base, headers: { authorization: "Bearer " + call.token } })
  const methods = client.blue.catbird.mls as any
  if (call.kind === "query") await methods[name](call.params)
  else if (call.body === undefined) await methods[name]()
  else await methods[name](jsonToLex(call.body as any), { encoding: "application/json" })
}

for (const call of JSON.parse(readFileSync(file, "utf8")) as Call[]) {
  const error = await make(call).then(() => "", (err) => String(err))
  console.log(JSON.stringify({ nsid: call.nsid, error }))
}
