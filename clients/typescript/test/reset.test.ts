// A convo that is reset goes on under another id: docs/clients/DISPUTES.md.

import assert from "node:assert/strict"
import { randomBytes } from "node:crypto"
import { test } from "node:test"
import { Api } from "../src/api.js"
import { base64url } from "../src/bytes.js"
import type { Client } from "../src/client.js"
import { systemClock } from "../src/clock.js"
import type { ConvoId, Did } from "../src/ids.js"
import { TsMls } from "../src/mls-ts.js"
import { MemoryStore } from "../src/store.js"
import { clearFaults, needsServer, newAccounts, plan, transportOf } from "./support/dev.js"
import { bytesOf, openPhone, suite, textsOf } from "./support/phone.js"
import * as mls from "#lexicons"

const options = { ...needsServer, timeout: 180_000 }

interface Device {
  readonly did: Did
  readonly client: Client
  readonly moved: ConvoId[]
  /** Waits until the app has heard that the convo goes on elsewhere. */
  goesOn(): Promise<ConvoId>
}

async function open(did: Did, store = new MemoryStore()): Promise<Device> {
  const moved: ConvoId[] = []
  let wake = () => {}
  const client = await openPhone(did, store, {
    events: {
      onMoved: (_, successor) => {
        moved.push(successor)
        wake()
      },
    },
  })
  const goesOn = async () => {
    while (moved[0] === undefined) await new Promise<void>((resolve) => (wake = resolve))
    return moved[0]
  }
  return { did, client, moved, goesOn }
}

// reset replaces the convo's group by one of another device of did's, with the devices of some members.
async function reset(did: Did, convoId: ConvoId, members: readonly Did[]): Promise<ConvoId> {
  const api = new Api(transportOf(did), systemClock, new AbortController().signal)
  const library = await TsMls.create(did, suite)
  const { keyPackages } = await api.query(mls.getKeyPackages.main, { dids: [...members], cipherSuite: suite, convoId })
  const group = await library.stage(await library.create(randomBytes(16)), {
    add: keyPackages.map(({ keyPackage }) => Buffer.from(keyPackage, "base64url")),
  })
  assert.ok(group.welcome)
  const { convo } = await api.procedure(mls.resetConvo.main, {
    convoId, reason: "forked", groupInfo: group.groupInfo, welcomeMessage: base64url(group.welcome),
  })
  return convo.id as ConvoId
}

test("devices go on in the successor: by an event, a refusal, and the log", options, async () => {
  const [a, b, c, d] = await newAccounts(4)
  assert.ok(a && b && c && d)
  const offline = new MemoryStore()
  const [alice, bob, carol, dave] = [await open(a), await open(b), await open(c), await open(d, offline)]
  const all = [alice, bob, carol, dave]
  for (const { client } of all) await client.replenish()
  const convo = await alice.client.createConvo([b, c, d])
  for (const { client } of all.slice(1)) {
    await client.join(convo)
    await (await client.send(convo, bytesOf("I am here"))).sent
  }
  await dave.client.close()
  bob.client.listen()

  const next = await reset(a, convo, [a, b]) // carol and dave have no device in the new group
  assert.equal(await bob.goesOn(), next)
  const late = await carol.client.send(convo, bytesOf("late"))
  const also = await carol.client.send(convo, bytesOf("and one more"))
  await Promise.all([late.sent, also.sent])
  assert.equal(await carol.goesOn(), next)
  await alice.client.syncAll()
  assert.equal(await alice.goesOn(), next)
  const again = await open(d, offline)
  await again.client.syncAll()
  assert.equal(await again.goesOn(), next)
  await (await again.client.send(next, bytesOf("from dave"))).sent

  for (const { client } of [alice, bob, carol]) await client.sync(next)
  for (const { client } of [alice, bob]) {
    assert.deepEqual(await textsOf(client, next), ["late", "and one more", "from dave"])
  }
  const old = await textsOf(bob.client, convo) // what came after bob had joined, up to the end
  assert.deepEqual(old, ["I am here", "I am here", "I am here"])
  assert.equal((await bob.client.items(convo)).at(-1)?.kind, "reset")
  await alice.client.syncAll()
  for (const { moved } of [alice, bob, carol, again]) assert.deepEqual(moved, [next])
  await Promise.all([alice, bob, carol, again].map(({ client }) => client.close()))
})

test("a message whose answer was lost stays in the old convo", options, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  await alice.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  await clearFaults() // of other tests
  await plan({ lxm: "blue.catbird.mls.sendMessage", did: b, kind: "loseAnswer", times: 1 })
  const first = await bob.client.send(convo, bytesOf("arrived"))
  await first.sent
  assert.equal(await clearFaults(), 1)
  const next = await reset(a, convo, [a, b])
  await (await bob.client.send(convo, bytesOf("moved"))).sent
  assert.equal(await bob.goesOn(), next)
  await alice.client.syncAll()
  await alice.goesOn()
  await alice.client.sync(next)
  assert.deepEqual(await textsOf(alice.client, convo), ["arrived"])
  assert.deepEqual(await textsOf(alice.client, next), ["moved"])
  await Promise.all([alice.client.close(), bob.client.close()])
})
