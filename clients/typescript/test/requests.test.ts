// Requests wait for their person's answer: docs/CONSENT.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Client, ClientEvents, ClientOptions } from "../src/client.js"
import { NoAnswerError, XrpcError } from "../src/errors.js"
import type { ConvoId, Did } from "../src/ids.js"
import { type ConvoRequest, names } from "../src/records.js"
import { MemoryStore, type Store } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { KillingStore } from "./support/killing.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

const options = { ...needsServer, timeout: 180_000 }

/** A device whose app hears of requests, and answers none. */
class Asked {
  client!: Client
  readonly requests: ConvoRequest[] = []
  readonly joined: ConvoId[] = []
  /** The methods that the device has called. */
  readonly calls: string[] = []
  private wake = () => {}

  private constructor(readonly did: Did, readonly store: Store) {}

  static async open(did: Did, store: Store, more: Partial<ClientOptions> = {}): Promise<Asked> {
    const device = new Asked(did, store)
    const hear = <A extends unknown[]>(take: (...args: A) => unknown) => (...args: A) => {
      take(...args)
      device.wake()
    }
    const events: ClientEvents = {
      onRequest: hear((one: ConvoRequest) => device.requests.push(one)),
      onJoined: hear((convo: ConvoId) => device.joined.push(convo)),
      onEvent: hear(() => {}),
    }
    const { transport = transportOf(did), ...rest } = more
    device.client = await openPhone(did, store, { transport: device.counting(transport), events, ...rest })
    return device
  }

  private counting(inner: Transport): Transport {
    return {
      call: (call) => {
        this.calls.push(call.method.replace("blue.catbird.mls.", ""))
        return inner.call(call)
      },
      ...(inner.stream && { stream: (call: Call) => inner.stream!(call) }),
    }
  }

  async until(look: () => boolean | Promise<boolean>): Promise<void> {
    for (;;) {
      const heard = new Promise<void>((resolve) => (this.wake = resolve))
      if (await look()) return
      await heard
    }
  }
}

async function people(): Promise<{ alice: Client; bob: Did; a: Did }> {
  const [a, bob] = await newAccounts(2)
  assert.ok(a && bob)
  return { alice: await openPhone(a, new MemoryStore()), bob, a }
}

const stateOf = async (client: Client, convo: ConvoId) => (await client.invited(convo)).map(({ state }) => state)

test("D4: a request of somebody who shares no convo waits: nothing is fetched, joined or confirmed", options, async () => {
  const { alice, bob: did, a } = await people()
  const bob = await Asked.open(did, new MemoryStore())
  await bob.client.replenish()
  bob.client.listen()
  const convo = await alice.createConvo([did], { name: "tea" })
  await bob.until(() => bob.requests.length > 0)
  await (await alice.send(convo, bytesOf("are you there?"))).sent
  await bob.client.syncAll()
  await bob.client.syncAll()
  const [{ since, ...request } = { since: "" }] = await bob.client.requests()
  assert.deepEqual(request, { convoId: convo, invitedBy: a, people: [a, did], name: "tea" })
  assert.ok(Math.abs(Date.parse(since) - Date.now()) < 3_600_000)
  assert.deepEqual(bob.requests.map(({ convoId }) => convoId), [convo], "the app hears of it once")
  assert.deepEqual([await bob.client.convos(), bob.joined], [[], []])
  assert.deepEqual(bob.calls.filter((name) => /Welcome|acceptConvo/.test(name)), [])
  assert.deepEqual(await stateOf(alice, convo), ["available"])

  await bob.client.close() // the next life knows of it, and does not tell again
  const again = await Asked.open(did, bob.store)
  await again.client.syncAll()
  assert.deepEqual([again.requests, (await again.client.requests()).length, again.joined], [[], 1, []])
  await (await again.client.accept(convo)).joined
  assert.deepEqual([await again.client.requests(), again.joined], [[], [convo]])
  assert.deepEqual(await stateOf(alice, convo), ["consumed"])
  assert.deepEqual(await textsOf(again.client, convo), ["are you there?"])
  await (await again.client.accept(convo)).joined // again
  assert.deepEqual(again.joined, [convo])

  const second = await alice.createConvo([did]) // they share a convo now
  await again.client.syncAll()
  assert.deepEqual([again.joined, again.requests], [[convo, second], []])
  await Promise.all([alice.close(), again.client.close()])
})

test("a declined request takes the person off the roster, and blocks who invited it", options, async () => {
  const { alice, bob: did, a } = await people()
  const bob = await Asked.open(did, new MemoryStore())
  await bob.client.replenish()
  const [first, second] = [await alice.createConvo([did]), await alice.createConvo([did])]
  await bob.client.syncAll()
  assert.deepEqual((await bob.client.requests()).map(({ convoId }) => convoId), [second, first], "the newest first")
  await bob.client.decline(first)
  assert.deepEqual((await bob.client.requests()).map(({ convoId }) => convoId), [second])
  await assert.rejects(bob.client.decline(first), /waits for no answer/)
  await bob.client.decline(second, { block: true })
  assert.deepEqual([await bob.client.requests(), await bob.client.blocks()], [[], [a]])
  await bob.client.syncAll()
  assert.deepEqual([bob.requests.length, bob.joined, await stateOf(alice, first)], [2, [], ["superseded"]])
  await bob.client.unblock(a)
  assert.deepEqual(await bob.client.blocks(), [])

  const third = await alice.createConvo([did])
  await bob.client.syncAll()
  assert.deepEqual((await bob.client.requests()).map(({ convoId }) => convoId), [third])
  await bob.client.block(a)
  assert.deepEqual(await bob.client.requests(), [], "a block ends requests")
  await bob.client.unblock(a)
  assert.equal(await bob.client.invitationPolicy(), "everyone")
  await bob.client.setInvitationPolicy("shared")
  assert.equal(await bob.client.invitationPolicy(), "shared")
  await Promise.all([alice.close(), bob.client.close()])
})

test("a request is accepted while the network is away, and its Welcome has gone meanwhile", options, async () => {
  const { alice, bob: did } = await people()
  const bob = await Asked.open(did, new MemoryStore())
  await bob.client.replenish()
  const convo = await alice.createConvo([did])
  await bob.client.syncAll()
  await bob.client.close()
  const away: Transport = { call: async () => Promise.reject(new NoAnswerError("away")) }
  const offline = await Asked.open(did, bob.store, { transport: away })
  const { joined } = await offline.client.accept(convo)
  joined.catch(() => {}) // this life ends first
  assert.deepEqual(await offline.client.requests(), [])
  await offline.client.close()

  const way = transportOf(did)
  const weeksLater: Transport = {
    call: async (call) => {
      if (call.method.endsWith(".getWelcome")) throw new XrpcError(404, "WelcomeNotFound", "the Welcome has expired")
      return way.call(call)
    },
  }
  const again = await Asked.open(did, bob.store, { transport: weeksLater })
  await again.until(() => again.joined.length > 0)
  assert.deepEqual([again.joined, await bob.store.list(names.requests)], [[convo], []])
  await (await again.client.send(convo, bytesOf("here I am"))).sent
  await alice.sync(convo)
  assert.deepEqual(await textsOf(alice, convo), ["here I am"])
  assert.equal((await alice.group(convo)).members.length, 2)
  await Promise.all([alice.close(), again.client.close()])
})

test("what another device of the person accepts, this one joins", options, async () => {
  const { alice, bob: did } = await people()
  const [phone, tablet] = [await Asked.open(did, new MemoryStore()), await Asked.open(did, new MemoryStore())]
  for (const { client } of [phone, tablet]) {
    await client.replenish()
    client.listen()
  }
  const convo = await alice.createConvo([did])
  for (const device of [phone, tablet]) await device.until(() => device.requests.length > 0)
  await (await phone.client.accept(convo)).joined
  await (await phone.client.send(convo, bytesOf("I have accepted"))).sent
  await tablet.until(() => tablet.joined.length > 0)
  assert.deepEqual([await tablet.client.requests(), tablet.requests.length], [[], 1])
  await Promise.all([alice, phone.client, tablet.client].map((client) => client.close()))
})

test("a request that has ended waits no more", options, async () => {
  const { alice, bob: did } = await people()
  const bob = await Asked.open(did, new MemoryStore())
  await bob.client.replenish()
  const convo = await alice.createConvo([did])
  await bob.client.syncAll()
  await alice.remove(convo, did)
  await assert.rejects((await bob.client.accept(convo)).joined, /NotMember/)
  await bob.client.syncAll()
  assert.deepEqual([await bob.client.requests(), await bob.client.outbox.refused()], [[], []])
  await assert.rejects(bob.client.accept(convo), /waits for no answer/)
  await Promise.all([alice.close(), bob.client.close()])
})

for (const answer of ["accept", "decline"] as const) {
  test(`a kill at each write of the store: the app hears of a request, and ${answer} is done once`, options, async () => {
    let kills = 0
    for (const late of [false, true]) {
      for (let writes = 0, killed = true; killed; writes++) {
        const { alice, bob: did } = await people() // the server lets one person ask another three times a day
        const disk = new MemoryStore()
        const before = await Asked.open(did, disk)
        await before.client.replenish()
        await before.client.close()
        const convo = await alice.createConvo([did])
        killed = await live(did, disk, convo, answer, writes, late)
        if (killed) kills++
        const again = await Asked.open(did, disk)
        await again.client.syncAll()
        const waiting = await again.client.requests()
        if (waiting.some(({ convoId }) => convoId === convo)) {
          if (answer === "accept") await (await again.client.accept(convo)).joined
          else await again.client.decline(convo)
        }
        await again.client.outbox.idle()
        await again.client.syncAll()
        const isIn = (await again.client.convos()).some(({ convoId, left }) => convoId === convo && !left)
        assert.equal(isIn, answer === "accept", `write ${writes}, late ${late}`)
        assert.deepEqual([await disk.list(names.requests), await disk.list("outbox/"), await disk.list(names.welcomes)], [[], [], []])
        if (isIn) {
          await (await alice.send(convo, bytesOf("hello"))).sent
          await again.client.sync(convo)
          assert.deepEqual(await textsOf(again.client, convo), ["hello"])
          await alice.sync(convo)
          assert.equal((await alice.group(convo)).epoch, 1, `write ${writes}, late ${late}: it has joined with its Welcome`)
        }
        await Promise.all([alice.close(), again.client.close()])
      }
    }
    assert.ok(kills > 6, `${kills} kills`)
    console.log(`${answer}: ${kills} kills`)
  })
}

// live is a life of the app, which answers as soon as it hears of a request. Reports whether it was killed.
async function live(did: Did, disk: Store, convo: ConvoId, answer: "accept" | "decline", writes: number, late: boolean): Promise<boolean> {
  let die = () => {}
  const dying = new Promise<void>((resolve) => (die = resolve))
  const store = new KillingStore(disk, writes, late, () => die())
  let client: Client | undefined
  const living = async () => {
    client = await openPhone(did, store, { events: { onRequest: () => {}, onFailure: () => {} } })
    await client.syncAll()
    if (answer === "accept") await (await client.accept(convo)).joined
    else await client.decline(convo)
  }
  await Promise.race([dying, living().catch((err: unknown) => {
    if (!store.killed) throw err
  })])
  await client?.close()
  return store.killed
}
