// Opening a device with one call.

import assert from "node:assert/strict"
import { execFileSync } from "node:child_process"
import { test } from "node:test"
import { fileURLToPath } from "node:url"
import { openDevice } from "../src/device.js"
import { asDid } from "../src/ids.js"
import { accountsOf } from "./support/everyone.js"
import { MemoryStore } from "../src/store.js"

const alice = asDid("did:plc:alice")
const transport = { call: () => Promise.reject(new Error("nothing is called")) }

test("a store keeps its device", async () => {
  const store = new MemoryStore()
  const first = await openDevice({ did: alice, accounts: accountsOf(asDid("did:plc:alice")), store, transport })
  const id = await first.deviceId()
  await first.close()
  let told = ""
  const again = await openDevice({ did: alice, accounts: accountsOf(asDid("did:plc:alice")), store, transport: (deviceId) => ((told = deviceId), transport) })
  assert.deepEqual([await again.deviceId(), told], [id, id])
  await again.close()
  await assert.rejects(openDevice({ did: asDid("did:plc:bob"), accounts: accountsOf(asDid("did:plc:alice")), store, transport }), /the device of did:plc:alice/)
})

test("a store gets no device of what is no DID", async () => {
  const store = new MemoryStore()
  await assert.rejects(openDevice({ did: "alice" as typeof alice, accounts: accountsOf(asDid("did:plc:alice")), store, transport }), /Invalid DID/)
  assert.deepEqual(await store.list(""), [])
})

test("in Node, ts-mls is corrected before it is loaded", () => {
  const program = fileURLToPath(new URL("support/opened.js", import.meta.url))
  assert.equal(execFileSync(process.execPath, [program], { encoding: "utf8" }), "true\n")
})
