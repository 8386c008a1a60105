// A convo that is reset goes on under another id: docs/clients/DISPUTES.md.

import assert from "node:assert/strict"
import { randomBytes } from "node:crypto"
import { test } from "node:test"
import { Api } from "../src/api.js"
import { successorIdOf } from "../src/binding.js"
import { base64url, fromHex, hex } from "../src/bytes.js"
import type { Client, ClientOptions } from "../src/client.js"
import { systemClock } from "../src/clock.js"
import type { ConvoId, Did } from "../src/ids.js"
import { TsMls } from "../src/mls-ts.js"
import { XrpcError } from "../src/errors.js"
import { MemoryStore, type Store } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { clearFaults, needsServer, newAccounts, plan, transportOf } from "./support/dev.js"
import { accountsOf } from "./support/everyone.js"
import { KillingStore } from "./support/killing.js"
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

async function open(did: Did, store: Store = new MemoryStore(), options: Partial<ClientOptions> = {}): Promise<Device> {
  const moved: ConvoId[] = []
  let wake = () => {}
  const client = await openPhone(did, store, {
    ...options,
    events: {
      ...options.events,
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

// reset replaces the convo's group by one of another device of a person's, with the devices of some members.
async function reset({ did, client }: Device, convoId: ConvoId, members: readonly Did[]): Promise<ConvoId> {
  const { groupId } = await client.group(convoId)
  const api = new Api(transportOf(did), systemClock, new AbortController().signal)
  const library = await TsMls.create(did, suite)
  await accountsOf(did).list({ key: library.signatureKey, cipherSuite: suite })
  const { keyPackages } = await api.query(mls.getKeyPackages.main, { dids: [...members], cipherSuite: suite, convoId })
  const group = await library.stage(await library.create(await successorIdOf(groupId, randomBytes(16))), {
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

  const next = await reset(alice, convo, [a, b]) // carol and dave have no device in the new group
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
  const next = await reset(alice, convo, [a, b])
  await (await bob.client.send(convo, bytesOf("moved"))).sent
  assert.equal(await bob.goesOn(), next)
  await alice.client.syncAll()
  await alice.goesOn()
  await alice.client.sync(next)
  assert.deepEqual(await textsOf(alice.client, convo), ["arrived"])
  assert.deepEqual(await textsOf(alice.client, next), ["moved"])
  await Promise.all([alice.client.close(), bob.client.close()])
})

const close = (...devices: Device[]) => Promise.all(devices.map(({ client }) => client.close()))

/** Devices of several people in one convo of the first one. */
async function together(count: number, store?: Store): Promise<{ devices: Device[]; convo: ConvoId }> {
  const dids = await newAccounts(count)
  const devices = await Promise.all(dids.map((did, i) => open(did, i === 0 ? store : undefined)))
  for (const { client } of devices) await client.replenish()
  const convo = await devices[0]!.client.createConvo(dids.slice(1))
  for (const { client } of devices.slice(1)) await client.join(convo)
  return { devices, convo }
}

const say = async ({ client }: Device, convo: ConvoId, text: string) => (await client.send(convo, bytesOf(text))).sent

/** Checks that a convo has just these people, each with one leaf, in an epoch. */
async function holds({ client }: Device, convo: ConvoId, dids: readonly Did[], epoch: number): Promise<void> {
  await client.sync(convo)
  const group = await client.group(convo)
  assert.deepEqual([...group.members.map(({ identity }) => identity)].sort(), [...dids].sort())
  assert.equal(group.epoch, epoch)
}

test("a device resets a convo: those who have KeyPackages are invited, the others enter", options, async () => {
  const { devices: [alice, bob], convo } = await together(2)
  assert.ok(alice && bob)
  const [c] = await newAccounts(1)
  assert.ok(c)
  const carol = await open(c)
  const { settled } = await carol.client.outbox.add("keypackages", "publish", { oneTime: 1, lastResort: false })
  await settled
  await alice.client.add(convo, [c]) // with her only one
  await carol.client.join(convo)
  bob.client.listen()
  carol.client.listen()
  await say(bob, convo, "before")
  const next = await alice.client.reset(convo, "forked")
  assert.deepEqual([alice.moved, await bob.goesOn(), await carol.goesOn()], [[next], next, next])
  await say(alice, next, "after")
  for (const one of [alice, bob, carol]) await holds(one, next, [alice.did, bob.did, c], 2) // hers is one commit
  for (const one of [alice, bob]) assert.deepEqual(await textsOf(one.client, convo), ["before"])
  for (const one of [alice, bob, carol]) assert.deepEqual(await textsOf(one.client, next), ["after"])
  assert.deepEqual(await bob.client.outbox.refused(), [])
  assert.equal(await alice.client.reset(convo, "other"), next, "it is reset already")
  await assert.rejects(alice.client.reset(next, "not a reason"), /letters/i)
  await close(alice, bob, carol)
})

test("a reset whose answer is lost is one reset, and its device is in the new group once", options, async () => {
  const { devices: [alice, bob], convo } = await together(2)
  assert.ok(alice && bob)
  alice.client.listen() // it hears of the reset before the answer comes
  bob.client.listen()
  await clearFaults()
  await plan({ lxm: "blue.catbird.mls.resetConvo", did: alice.did, kind: "loseAnswer", times: 3 })
  const [next, same] = await Promise.all([alice.client.reset(convo, "compromised"), alice.client.reset(convo, "other")])
  assert.equal(await clearFaults(), 3)
  assert.equal(next, same)
  assert.equal(await bob.goesOn(), next)
  await say(bob, next, "after")
  await holds(alice, next, [alice.did, bob.did], 1)
  assert.deepEqual(alice.moved, [next])
  await close(alice, bob)
})

test("of two members who reset at once, both go on in one successor", options, async () => {
  const { devices: [alice, bob], convo } = await together(2)
  assert.ok(alice && bob)
  const [one, two] = await Promise.all([alice.client.reset(convo, "forked"), bob.client.reset(convo, "undecryptable")])
  assert.equal(one, two)
  await say(alice, one, "hello")
  await say(bob, one, "hello too")
  await holds(alice, one, [alice.did, bob.did], 1)
  for (const { client, moved } of [alice, bob]) assert.deepEqual([moved, await client.outbox.refused()], [[one], []])
  await close(alice, bob)
})

test("a reset waits for the end of a dispute, and is then made anew", options, async () => {
  const resets: string[] = []
  const held: string[] = []
  const { devices: [alice, bob], convo } = await together(2)
  assert.ok(alice && bob)
  const way = transportOf(alice.did)
  const disputed: Transport = {
    ...way,
    call: async (call: Call) => {
      if (call.method === mls.resetConvo.main.nsid && resets.push(call.body ?? "") === 1) throw new XrpcError(409, "ConvoDisputed", "epoch 1")
      return way.call(call)
    },
  }
  const store = new MemoryStore()
  const tablet = await open(alice.did, store, { transport: disputed, events: { onHeld: ({ kind }) => held.push(kind) } })
  await tablet.client.rejoin(convo)
  const next = await tablet.client.reset(convo, "forked")
  assert.deepEqual([held, resets.length, new Set(resets).size], [["reset"], 2, 2])
  await bob.client.syncAll()
  assert.equal(await bob.goesOn(), next)
  await close(alice, bob, tablet)
})

test("a device whose successor was reset too goes on in the last one", options, async () => {
  const { devices: [alice, bob], convo } = await together(2)
  assert.ok(alice && bob)
  const [c] = await newAccounts(1)
  assert.ok(c)
  let last = ""
  const way = transportOf(c)
  const again: Transport = { // a server resets a successor after an hour at the earliest
    ...way,
    call: async (call: Call) => {
      if (call.method === mls.processExternalCommit.main.nsid) throw new XrpcError(409, "ConvoClosed", `it was reset; successorConvoId=${last}`)
      return way.call(call)
    },
  }
  const carol = await open(c, new MemoryStore(), { transport: again })
  await carol.client.replenish()
  await alice.client.add(convo, [c])
  await carol.client.join(convo)
  const next = await reset(alice, convo, [bob.did])
  const { convo: { groupId } } = await new Api(way, systemClock, new AbortController().signal).query(mls.getConvo.main, { convoId: next })
  const lastId = hex(await successorIdOf(fromHex(groupId), randomBytes(16)))
  const { settled } = await alice.client.outbox.add(`create:${lastId}`, "create", { groupId: lastId, members: [c], claim: "last" })
  last = ((await settled) as { convoId: ConvoId }).convoId
  await (await carol.client.send(convo, bytesOf("late"))).sent
  assert.equal(await carol.goesOn(), last)
  await alice.client.sync(last as ConvoId)
  assert.deepEqual(await textsOf(alice.client, last as ConvoId), ["late"])
  assert.deepEqual(carol.moved, [last])
  await close(alice, bob, carol)
})

/** A device whose store and network end at a kill. */
async function mortal(did: Did, inner: Store, writes: number, late: boolean): Promise<Device & { killed: Promise<void>; isKilled(): boolean }> {
  let end = () => {}
  const killed = new Promise<void>((resolve) => (end = resolve))
  const store = new KillingStore(inner, writes, late, () => end())
  const way = transportOf(did)
  const transport: Transport = {
    ...way,
    call: async (call: Call) => {
      if (store.killed) store.kill()
      const answer = await way.call(call)
      if (store.killed) store.kill()
      return answer
    },
  }
  return { ...(await open(did, store, { transport })), killed, isKilled: () => store.killed }
}

for (const late of [false, true]) {
  test(`a device that resets is killed at each write, ${late ? "after" : "before"} it is stored`, options, async () => {
    for (let writes = 0; ; writes++) {
      const inner = new MemoryStore()
      const { devices: [alice, bob], convo } = await together(2, inner)
      assert.ok(alice && bob)
      await alice.client.close()
      const first = await mortal(alice.did, inner, writes, late)
      await Promise.race([first.client.reset(convo, "forked").catch(() => first.killed), first.killed])
      const killed = first.isKilled()
      await first.client.close().catch(() => {})
      const again = await open(alice.did, inner)
      const next = await again.client.reset(convo, "forked")
      assert.equal((await again.client.convos()).find(({ convoId }) => convoId === convo)?.successor, next)
      await say(again, next, "after")
      await bob.client.syncAll()
      assert.equal(await bob.goesOn(), next)
      await bob.client.sync(next)
      assert.deepEqual(await textsOf(bob.client, next), ["after"])
      await holds(again, next, [alice.did, bob.did], 1)
      assert.ok(first.moved.length + again.moved.length <= 1, `told twice, killed at write ${writes}`)
      await close(again, bob)
      if (!killed) {
        assert.ok(writes >= 5, `${writes} writes`)
        return
      }
    }
  })
}

test("a device that follows a reset is killed at each write, and its next life goes on by itself", options, async () => {
  for (let writes = 0; ; writes++) {
    const inner = new MemoryStore()
    const { devices: [bob, alice], convo } = await together(2, inner)
    assert.ok(alice && bob)
    await bob.client.close()
    const next = await alice.client.reset(convo, "forked")
    const first = await mortal(bob.did, inner, writes, true)
    await Promise.race([first.client.sync(convo).then(first.goesOn).catch(() => first.killed), first.killed])
    const killed = first.isKilled()
    await first.client.close().catch(() => {})
    const again = await open(bob.did, inner)
    const before = (await again.client.convos()).find(({ convoId }) => convoId === convo)
    if (before?.resetTo === undefined) await again.client.sync(convo)
    if (before?.successor === undefined) assert.equal(await again.goesOn(), next)
    await holds(again, next, [alice.did, bob.did], 1)
    await close(again, alice)
    if (!killed) {
      assert.ok(writes >= 5, `${writes} writes`)
      return
    }
  }
})
