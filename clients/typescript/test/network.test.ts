// People of several services: docs/NETWORK.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import { asConvoId, type ConvoId, type Did } from "../src/ids.js"
import { names } from "../src/records.js"
import { endpointOf } from "../src/services.js"
import { get, MemoryStore } from "../src/store.js"
import { XrpcError } from "../src/errors.js"
import type { Call, Transport } from "../src/transport.js"
import { ask, clearAt, Device, needsNetwork, othersOf, pdsOf, planAt, services, type Wrap, wrapped } from "./support/network.js"
import { bytesOf, hastyClock, openPhone, textsOf } from "./support/phone.js"

const say = async ({ client }: Device, convo: ConvoId, text: string) => (await client.send(convo, bytesOf(text))).sent

/** Waits until a device has read so many messages, and returns them. */
function reads(device: Device, convo: ConvoId, count: number): Promise<string[]> {
  return device.until(async () => {
    const texts = await textsOf(device.client, convo)
    return texts.length >= count ? texts : undefined
  })
}

/** A convo of alice's service, which bob of another one has joined. Both listen. */
async function pair(): Promise<{ alice: Device; bob: Device; convo: ConvoId }> {
  const [alice, bob] = [await Device.open(0), await Device.open(1)]
  alice.client.listen()
  bob.client.listen()
  const convo = await alice.client.createConvo([bob.did])
  const { joined } = await bob.client.accept((await bob.request()).convoId)
  await joined
  return { alice, bob, convo }
}

/** The states of the invitations that a person's own service has. */
async function invitationsOf({ client }: Device, convo?: ConvoId): Promise<string[]> {
  const { invitations } = JSON.parse(await client.transport.call({ method: "blue.catbird.mls.getInvitations" })) as { invitations: { convoId: string; state: string }[] }
  return invitations.filter(({ convoId }) => convo === undefined || convoId === convo).map(({ state }) => state)
}

const close = (...devices: Device[]) => Promise.all(devices.map(({ client }) => client.close()))

test("people of three services chat in a convo of one", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [here, there] = await services()
  assert.ok(here && there)
  const [{ since, ...listed } = { since: "" }] = bob.requests
  assert.deepEqual(listed, { convoId: convo, invitedBy: alice.did, people: [alice.did], service: here.did, byInvitation: true })
  assert.ok(Date.parse(since) > 0)
  assert.deepEqual([await bob.client.requests(), await invitationsOf(bob)], [[], ["accepted"]])
  assert.deepEqual(await bob.client.accept(convo).then(({ joined }) => joined), undefined, "again")
  await say(bob, convo, "hello from the second")
  assert.deepEqual(await reads(alice, convo, 1), ["hello from the second"])
  await say(alice, convo, "and from the first")
  await reads(bob, convo, 2)

  const carol = await Device.open(2) // claimed by bob, whose own service is not the convo's either
  carol.client.listen()
  await bob.client.add(convo, [carol.did])
  await (await carol.client.accept((await carol.request()).convoId)).joined
  const dave = await Device.open(1)
  dave.client.listen()
  await alice.client.add(convo, [dave.did])
  await (await dave.client.accept((await dave.request()).convoId)).joined
  await say(carol, convo, "hello from the third")
  const all = ["hello from the second", "and from the first", "hello from the third"]
  for (const one of [alice, bob]) assert.deepEqual(await reads(one, convo, 3), all)
  for (const one of [carol, dave]) assert.deepEqual(await reads(one, convo, 1), all.slice(2))

  await bob.client.close() // its next life knows where the convo is, and from where it has to read on
  await say(alice, convo, "while bob is away")
  const again = await Device.open(bob)
  again.client.listen()
  assert.deepEqual(await reads(again, convo, 4), [...all, "while bob is away"])
  await again.client.leave(convo)
  await close(alice, again, carol, dave)
})

test("a service that is away delays its convos alone", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [here, there] = await services()
  assert.ok(here && there)
  const erin = await Device.open(1)
  const own = await bob.client.createConvo([erin.did])
  await erin.client.join(own)
  await planAt(here, { kind: "cut", times: 0 })
  const late = await bob.client.send(convo, bytesOf("late"))
  await bob.until(() => bob.client.outbox.pending(convo).some(({ sealed }) => sealed !== undefined) || undefined)
  await say(bob, own, "one")
  await erin.client.syncAll()
  await say(erin, own, "two")
  assert.deepEqual(await reads(bob, own, 2), ["one", "two"])
  assert.equal(bob.client.outbox.pending(convo).length, 1)
  await clearAt(here)
  bob.client.resume()
  await late.sent
  assert.deepEqual(await reads(alice, convo, 1), ["late"])
  await close(alice, bob, erin)
})

test("a home that is away delays the invitations of its people alone", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [, , third] = await services()
  assert.ok(third)
  const carol = await Device.open(2)
  carol.client.listen()
  await planAt(third, { kind: "cut", times: 0, lxm: "blue.catbird.mls.getKeyPackages" })
  const added = alice.client.add(convo, [carol.did])
  await say(alice, convo, "before carol")
  assert.deepEqual(await reads(bob, convo, 1), ["before carol"])
  const removed = alice.client.remove(convo, carol.did)
  await say(alice, convo, "and again")
  assert.deepEqual(alice.client.outbox.pending(convo).map(({ kind }) => kind), ["add", "remove"], "a removal stays behind the addition")
  await alice.client.outbox.discard(alice.client.outbox.pending(convo)[1]!.id)
  await assert.rejects(removed, /discarded/)
  await clearAt(third)
  alice.client.resume()
  assert.equal((await added).epoch, 2)
  await (await carol.client.accept((await carol.request()).convoId)).joined
  await say(carol, convo, "here I am")
  await reads(alice, convo, 3)
  await close(alice, bob, carol)
})

/** Alice's way, on which the convo's service says that the receipts of some calls have ended. */
function ending(calls: Call[], times: number): Wrap {
  return (inner) => ({
    ...wrapped(inner),
    call: async (call) => {
      const receipts = /"receipts":\[[^\]]+\]/.test(call.body ?? "")
      if (receipts && calls.push(call) <= times) throw new XrpcError(400, "InvalidReceipt", "receipts[0]: the claim has ended at 2026-11-27T09:00:00Z: claim another KeyPackage")
      return inner.call(call)
    },
  })
}

test("KeyPackages whose claims have ended are claimed again, once", needsNetwork, async () => {
  const [alice, bob, carol, dave] = [await Device.open(0), await Device.open(1), await Device.open(2), await Device.open(1)]
  for (const { client } of [bob, carol]) client.listen()
  await alice.client.close()
  const calls: Call[] = []
  const first = await Device.open(alice, {}, ending(calls, 1))
  const convo = await first.client.createConvo([bob.did])
  await (await bob.client.accept((await bob.request()).convoId)).joined
  await first.client.close()
  const second = await Device.open(alice, {}, ending(calls, 3)) // two were made
  await second.client.add(convo, [carol.did])
  await (await carol.client.accept((await carol.request()).convoId)).joined
  const field = (name: string) => new Set(calls.map(({ body }) => new RegExp(`"${name}":(\\[[^\\]]*\\]|"[^"]*")`).exec(body ?? "")?.[1]))
  assert.deepEqual([calls.length, field("receipts").size, field("idempotencyKey").size], [4, 4, 4])
  await second.client.close()
  const third = await Device.open(alice, {}, ending(calls, 99))
  await assert.rejects(third.client.add(convo, [dave.did]), /InvalidReceipt/)
  assert.equal(calls.length, 6)
  await close(third, bob, carol, dave)
})

test("who shares its cursors does so at all services, also at those that are away or come later", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [here] = await services()
  assert.ok(here)
  await alice.client.shareCursors("members")
  await planAt(here, { kind: "cut", times: 0, did: bob.did })
  await bob.client.shareCursors("members")
  await bob.client.close()
  await clearAt(here)
  const again = await Device.open(bob)
  const shown = async () => (await again.client.cursors(convo)).map(({ did }) => did).sort()
  const both = [alice.did, bob.did].sort()
  await again.until(async () => ((await shown()).length === 2 ? true : again.client.sync(convo).then(() => again.soon())))
  assert.deepEqual(await shown(), both)
  await again.client.shareCursors("nobody")
  await again.until(async () => ((await shown()).length === 0 ? true : again.soon()))

  const carol = await Device.open(2)
  await carol.client.shareCursors("members") // before it has a convo there
  carol.client.listen()
  await alice.client.add(convo, [carol.did])
  await (await carol.client.accept((await carol.request()).convoId)).joined
  await carol.until(async () => ((await carol.client.cursors(convo)).length === 2 ? true : carol.soon()))
  await close(alice, again, carol)
})

test("the stream of a service is open while the device is in a convo there", needsNetwork, async () => {
  const { alice, bob: before, convo } = await pair()
  await before.client.close()
  const open = new Set<object>()
  const [here] = await services()
  assert.ok(here)
  const bob = await Device.open(before, {}, (inner, service) => ({
    ...wrapped(inner),
    stream: async (call) => {
      assert.ok(inner.stream)
      if (service !== here.did) return inner.stream(call)
      const one = {}
      open.add(one)
      call.signal?.addEventListener("abort", () => {
        open.delete(one)
        bob.look()
      })
      bob.look()
      return inner.stream(call)
    },
  }))
  bob.client.listen()
  await bob.until(() => open.size === 1 || undefined)
  const other = await alice.client.createConvo([bob.did])
  await (await bob.client.accept((await bob.until(() => bob.requests.find(({ convoId }) => convoId === other))).convoId)).joined
  await bob.client.leave(convo)
  await say(bob, other, "still here")
  assert.equal(open.size, 1)
  await alice.client.remove(other, bob.did)
  await bob.until(() => open.size === 0 || undefined)
  const last = await alice.client.createConvo([bob.did])
  await (await bob.client.accept((await bob.until(() => bob.requests.find(({ convoId }) => convoId === last))).convoId)).joined
  await bob.until(() => open.size === 1 || undefined)
  await say(alice, last, "back")
  assert.deepEqual(await reads(bob, last, 1), ["back"])
  await bob.client.leave(last)
  await bob.until(() => open.size === 0 || undefined)
  await close(alice, bob)
})

test("a reset invites members of other services", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  await say(bob, convo, "before")
  await reads(alice, convo, 1)
  const next = await alice.client.reset(convo, "forked")
  await bob.until(() => bob.moved[0])
  assert.deepEqual(bob.moved, [next])
  await say(bob, next, "after")
  assert.deepEqual(await reads(alice, next, 1), ["after"])
  const { epoch, members } = await bob.client.group(next)
  assert.deepEqual([epoch, members.length], [1, 2], "bob has entered with his Welcome")
  await bob.until(async () => {
    return (await invitationsOf(bob, next)).includes("accepted") || bob.soon()
  })
  await bob.client.close() // and it is known where the successor is
  const again = await Device.open(bob)
  await say(again, next, "after a restart")
  await reads(alice, next, 2)
  await close(alice, again)
})

test("a reset does not wait for a home that is away: its people enter by external commit", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [, there] = await services()
  assert.ok(there)
  await planAt(there, { kind: "cut", times: 0, did: alice.did })
  const next = await alice.client.reset(convo, "forked")
  assert.equal((await alice.client.group(next)).members.length, 1)
  await bob.until(() => bob.moved[0])
  await say(bob, next, "here I am")
  assert.deepEqual(await reads(alice, next, 1), ["here I am"])
  assert.equal((await bob.client.group(next)).epoch, 1)
  await clearAt(there)
  await close(alice, bob)
})

test("a service that refuses a person stops its convos alone", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [here] = await services()
  assert.ok(here)
  const own = await bob.client.createConvo([])
  await planAt(here, { kind: "status", status: 401, times: 0, did: bob.did, lxm: "blue.catbird.mls.sendMessage" } as never)
  const { sent } = await bob.client.send(convo, bytesOf("not yet"))
  await bob.until(() => bob.stops[0])
  assert.deepEqual(bob.stops, [here.did])
  await say(bob, own, "at home")
  await clearAt(here)
  bob.client.resume()
  await sent
  await close(alice, bob)
})

test("an accepted invitation is followed by the next life, once the convo's service answers", needsNetwork, async () => {
  const [alice, bob] = [await Device.open(0), await Device.open(1)]
  const [here] = await services()
  assert.ok(here)
  bob.client.listen()
  const convo = await alice.client.createConvo([bob.did])
  const invitation = await bob.request()
  await planAt(here, { kind: "cut", times: 0, did: bob.did })
  const { joined } = await bob.client.accept(invitation.convoId)
  joined.catch(() => {}) // this life ends first
  await bob.client.close()
  assert.deepEqual(bob.joined, [])
  await clearAt(here)
  const again = await Device.open(bob)
  again.client.listen()
  await again.until(() => again.joined[0])
  await say(again, convo, "here I am")
  await alice.client.sync(convo)
  assert.deepEqual(await textsOf(alice.client, convo), ["here I am"])
  await close(alice, again)
})

test("a declined invitation takes the person off the roster, also after a crash", needsNetwork, async () => {
  const [alice, bob] = [await Device.open(0, { decide: ({ why }) => why === "left" }), await Device.open(1)]
  const [here] = await services()
  assert.ok(here)
  bob.client.listen()
  const convo = await alice.client.createConvo([bob.did])
  const invitation = await bob.request()
  await planAt(here, { kind: "cut", times: 0, did: bob.did })
  await bob.client.decline(invitation.convoId)
  assert.deepEqual([await invitationsOf(bob), await bob.client.requests()], [["declined"], []])
  await bob.client.close()
  await clearAt(here)
  alice.client.listen()
  const again = await Device.open(bob)
  // Alice's app removes who has left, as the service says: Bob has no device in the group that could say so.
  await alice.until(async () => (await alice.client.group(convo)).members.length === 1 || undefined)
  await again.client.close()
  assert.deepEqual(await bob.store.list(names.services), [])
  assert.deepEqual(again.joined, [])
  await alice.client.close()
})

test("no service speaks for another one's convos", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [here, , third] = await services()
  assert.ok(here && third)
  const own = await bob.client.createConvo([])
  await bob.client.close()
  const nowhere = asConvoId("00000000-0000-7000-8000-000000000000")
  const made = [[third.did, convo], [third.did, own], [third.did, nowhere]]
  const deviceId = await bob.client.deviceId()
  const invitations = made.map(([service, convoId]) => ({
    service, convoId, inviter: alice.did, deviceId, keyPackageRef: "00", epoch: 1, state: "open", createdAt: "2026-11-27T12:00:00Z",
  }))
  const again = await Device.open(bob, {}, (inner) => ({
    call: async (call) => (call.method === "blue.catbird.mls.getInvitations" ? JSON.stringify({ invitations }) : inner.call(call)),
  }))
  await again.client.syncAll()
  assert.deepEqual((await again.client.requests()).map(({ convoId }) => convoId), [nowhere], "of the others it is known where they are")
  await assert.rejects(again.client.accept(nowhere), /InvitationNotFound/)
  assert.deepEqual(await bob.store.list(names.services), [names.service(convo)], "nothing is left of it")
  await say(again, convo, "still here")
  await again.client.close()
  const single = await openPhone(alice.did, new MemoryStore())
  await assert.rejects(single.accept(convo), /waits for no answer/)
  await single.close()
  await close(alice)
})

test("the stream of a service says nothing of another one's convos", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const own = await bob.client.createConvo([])
  await bob.client.close()
  const event = (name: string, body: object) => `event: #${name}\nid: 1\ndata: ${JSON.stringify({ cursor: 1, ...body })}\n\n`
  const change = { did: alice.did, change: "left", epoch: 1, seq: 1, createdAt: "2026-11-27T12:00:00Z", commitNeeded: false }
  const forged = [
    event("membershipEvent", { convoId: own, ...change }),
    event("resetEvent", { convoId: own, successorConvoId: convo, seq: 1, epoch: 1, by: alice.did, reason: "forked", createdAt: change.createdAt }),
    event("invitationEvent", {
      service: bob.account.deliveryService, convoId: own, inviter: alice.did, deviceId: await bob.client.deviceId(), keyPackageRef: "00", epoch: 1,
      createdAt: change.createdAt,
    }),
  ]
  const lines = new TextEncoder().encode([...forged, event("membershipEvent", { convoId: convo, ...change })].join(""))
  const { home, way } = othersOf(bob.account)
  const lying = (service: Did): Transport => {
    const honest = way(service, "")
    return { call: (call) => honest.call(call), stream: async () => new ReadableStream({ start: (to) => to.enqueue(lines) }) }
  }
  const again = await Device.open(bob, { services: { home, way: lying } })
  again.client.listen()
  const leaves = () => again.heard.flatMap(({ type, body }) => (type === "membershipEvent" && body.change === "left" ? [body.convoId] : []))
  await again.until(() => leaves().find((one) => one === convo)) // the last event of the stream
  assert.deepEqual(leaves(), [convo])
  assert.ok(again.heard.every(({ type }) => type !== "resetEvent" && type !== "invitationEvent"))
  assert.deepEqual(again.requests, [])
  await close(alice, again)
})

const profiles = (device: Device) => pdsOf(device.account)

/** How many KeyPackages of a device can be claimed at a service. */
async function stockAt(device: Device, service: Did): Promise<number> {
  const way = othersOf(device.account).way(service, "")
  const params = new URLSearchParams({ deviceId: await device.client.deviceId() })
  const stats = JSON.parse(await way.call({ method: "blue.catbird.mls.getKeyPackageStats", params })) as { byDevice: { available: number; lastResort: number }[] }
  return stats.byDevice.reduce((sum, { available, lastResort }) => sum + available + lastResort, 0)
}

test("a person moves to another home: convos stay, and invitations find it", needsNetwork, async () => {
  const { alice, bob: before, convo } = await pair()
  const [here, old, next] = await services()
  assert.ok(here && old && next)
  const [erin, carol, dave] = [await Device.open(1), await Device.open(2), await Device.open(2)]
  for (const { client } of [erin, carol, dave]) client.listen()
  const own = await before.client.createConvo([erin.did]) // at the old home
  await (await erin.client.accept((await erin.request()).convoId)).joined
  const there = await carol.client.createConvo([before.did]) // at the home to be
  await (await before.client.accept((await before.until(() => before.requests.find(({ convoId }) => convoId === there))).convoId)).joined
  const open = await dave.client.createConvo([before.did]) // in flight
  await before.until(() => before.requests.find(({ convoId }) => convoId === open))
  const stock = await stockAt(before, old.did)
  assert.ok(stock > 0)

  await planAt(old, { kind: "cut", times: 0, did: before.did }) // the old home is away, and the device is restarted
  await before.client.moveHome(next.did, profiles(before))
  assert.ok((await stockAt(before, next.did)) > 0)
  await before.client.close()
  await clearAt(old)
  const bob = await Device.open(before)
  bob.client.listen()
  const { joined } = await bob.client.accept(open)
  await joined
  assert.equal(await stockAt(bob, old.did), 0)
  await bob.client.moveHome(next.did, profiles(bob)) // again

  for (const [device, id] of [[alice, convo], [erin, own], [carol, there], [dave, open]] as const) {
    await say(bob, id, "I have moved")
    assert.equal((await reads(device, id, 1)).at(-1), "I have moved")
    await say(device, id, "good")
    assert.equal((await reads(bob, id, 2)).at(-1), "good")
  }
  await close(bob)

  const last = await Device.open({ ...bob, account: { ...bob.account, deliveryService: next.did } } as unknown as Device) // options of the new home
  last.client.listen()
  const late = await erin.client.createConvo([last.did]) // her service has not looked for bob's before
  const invitation = await last.until(() => last.requests.find(({ convoId }) => convoId === late))
  assert.deepEqual(await invitationsOf(last, late), ["open"], "the new home has it")
  await (await last.client.accept(invitation.convoId)).joined
  await say(last, own, "still at the old one")
  await reads(erin, own, 3)
  await last.client.close()
  const leaving = async () => (await get<{ leaving: Did[] }>(last.store, names.home))?.leaving
  assert.deepEqual(await leaving(), [old.did], "an invitation can arrive there for a week")
  const nineDays = 9 * 24 * 3_600_000
  const end = await Device.open(last, { clock: { ...hastyClock(50), now: () => Date.now() + nineDays } })
  await end.until(async () => (await leaving())?.length === 0 || end.soon())
  await close(alice, erin, carol, dave, end)
})

test("a person names its service in its repository", needsNetwork, async () => {
  const carol = await Device.open(2)
  await carol.client.publishProfile(pdsOf(carol.account))
  const query = new URLSearchParams({ repo: carol.did, collection: "blue.catbird.mls.profile", rkey: "self" })
  const { value } = await ask<{ value: { deliveryService: Did; createdAt: string } }>("GET", `/xrpc/com.atproto.repo.getRecord?${query}`)
  assert.equal(value.deliveryService, carol.account.deliveryService)
  assert.ok(!Number.isNaN(Date.parse(value.createdAt)))
  const [, other] = await services()
  assert.ok(other)
  assert.equal(await endpointOf(other.did), other.url.replace("127.0.0.1", "localhost"))
  await assert.rejects(endpointOf(carol.did as Did, other.url), /names no delivery service/)
  await assert.rejects(endpointOf("did:web:localhost%3A1" as Did), /fetch failed/)
  await carol.client.close()
})
