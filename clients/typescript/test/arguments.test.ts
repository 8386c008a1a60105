// Issue 31, item 7. Wrong arguments reject to their caller before anything is stored. Before, each of
// these calls was stored and could not be sealed: it never settled, and what was written later waited
// behind it, also in the next life.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Client } from "../src/client.js"
import type { ConvoId } from "../src/ids.js"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

const wrong: Readonly<Record<string, (phone: Client, convo: ConvoId) => Promise<unknown>>> = {
  // @ts-expect-error: a DID must have been checked
  "a convo with what is no DID": (phone) => phone.createConvo(["did:plc:no such person"]),
  "a message with what is no URI": (phone, convo) => phone.send(convo, bytesOf("wrong"), { embedUri: "not a:uri" }),
  // @ts-expect-error: a DID must have been checked
  "an addition of what is no DID": (phone, convo) => phone.add(convo, ["did:plc:no such person"]),
  // @ts-expect-error: a convo's id must be one
  "a message to what is no convo": (phone) => phone.send("nonsense", bytesOf("wrong")),
  "a convo with a name of 5,000 characters": (phone) => phone.createConvo([], { name: "x".repeat(5000) }),
}

for (const [name, call] of Object.entries(wrong)) {
  test(`rejects at once, and blocks nothing: ${name}`, { ...needsServer, timeout: 60_000 }, async () => {
    const [one, two] = await newAccounts(2)
    assert.ok(one && two)
    const store = new MemoryStore()
    const bob = await openPhone(two, new MemoryStore())
    await bob.replenish()
    const alice = await openPhone(one, store)
    const convo = await alice.createConvo([two])
    await bob.join(convo)
    await assert.rejects(call(alice, convo))
    assert.deepEqual([alice.outbox.pending(), await alice.outbox.refused()], [[], []])
    await (await alice.send(convo, bytesOf("in this life"))).sent
    await alice.close()
    const again = await openPhone(one, store)
    await (await again.send(convo, bytesOf("in the next one"))).sent
    await bob.sync(convo)
    assert.deepEqual(await textsOf(bob, convo), ["in this life", "in the next one"])
    await Promise.all([again.close(), bob.close()])
  })
}
