// A server loses its newest writes: messages, a commit, and a person who was added. The devices make
// it good: docs/RECOVERY.md. They check its log, and do not accuse it.
//
// TEST_MESSAGES is how many messages each device sends, 15 by default.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Client } from "../src/client.js"
import type { ConvoId } from "../src/ids.js"
import { logChecks } from "../src/log-checks.js"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { bytesOf, hastyClock, openPhone, textsOf } from "./support/phone.js"
import { needsBinary, Server } from "./support/server.js"

// A device waits for others for ten minutes or more, of which a slow machine needs some.
const clock = hastyClock(5)

const count = Number(process.env.TEST_MESSAGES ?? 15)

async function send(phone: Client, convo: ConvoId, name: string, from: number, to: number): Promise<void> {
  for (let i = from; i < to; i++) await (await phone.send(convo, bytesOf(`${name} ${i}`))).sent
}

test(`${count} messages each, of which the server loses some`, { ...needsServer, ...needsBinary }, async () => {
  const server = await Server.start()
  try {
    const dids = await newAccounts(3)
    const phones = await Promise.all(dids.map((did) =>
      openPhone(did, new MemoryStore(), {
        transport: transportOf(did, server.url, server.did), clock, logChecks: logChecks(server.did),
      })))
    const [a, b, c] = phones
    const [, bob, carol] = dids
    assert.ok(a && b && c && bob && carol)
    await b.replenish()
    const convo = await a.createConvo([bob])
    await b.join(convo)
    const third = Math.floor(count / 3)
    await send(a, convo, "a", 0, third)
    await send(b, convo, "b", 0, third)
    await Promise.all([a.sync(convo), b.sync(convo)])
    await server.backUp()

    await send(a, convo, "a", third, 2 * third)
    await c.replenish()
    await a.add(convo, [carol])
    await c.join(convo)
    await send(c, convo, "c", 0, count)
    await b.update(convo)
    await send(a, convo, "a", 2 * third, count)
    await b.sync(convo)
    await send(b, convo, "b", third, count)
    await a.sync(convo)
    await server.restore()

    // Each device notices it when it reads or writes next.
    const last = await a.send(convo, bytesOf(`a ${count}`))
    await Promise.all([b, c].map((phone) => phone.sync(convo)))
    await Promise.all(phones.map((phone) => phone.recover(convo)))
    await Promise.all(phones.map((phone) => phone.outbox.idle())) // what had to be encrypted again
    await last.sent
    for (const phone of phones) await phone.sync(convo)
    const names = [...range("a", count + 1), ...range("b", count), ...range("c", count)].sort()
    for (const phone of [a, b]) {
      assert.deepEqual((await textsOf(phone, convo)).sort(), names)
      assert.deepEqual(await phone.lostItems(convo), [])
    }
    for (const phone of phones) {
      const found = await phone.logChecks?.check(convo)
      assert.deepEqual(found?.filter(({ kind }) => kind !== "wentBack"), [], "the server went back, and did not lie")
    }
    const groups = await Promise.all(phones.map((phone) => phone.group(convo)))
    assert.deepEqual(groups[1], groups[0])
    assert.deepEqual(groups[2], groups[0])
    console.log(`restored: ${names.length} messages, a commit and an addition: 0 lost, 0 doubled`)
    await Promise.all(phones.map((phone) => phone.close()))
  } finally {
    await server.end()
  }
})

function range(name: string, length: number): string[] {
  return Array.from({ length }, (_, i) => `${name} ${i}`)
}
