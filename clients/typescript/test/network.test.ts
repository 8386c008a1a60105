// People of several services: docs/NETWORK.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import { asConvoId, type ConvoId, type Did } from "../src/ids.js"
import { names } from "../src/records.js"
import { endpointOf } from "../src/services.js"
import { MemoryStore } from "../src/store.js"
import type { Transport } from "../src/transport.js"
import { ask, clearAt, Device, needsNetwork, othersOf, pdsOf, planAt, services } from "./support/network.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

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
  const { joined } = await bob.client.acceptInvitation(await bob.invitation())
  await joined
  return { alice, bob, convo }
}

const close = (...devices: Device[]) => Promise.all(devices.map(({ client }) => client.close()))

test("people of three services chat in a convo of one", needsNetwork, async () => {
  const { alice, bob, convo } = await pair()
  const [here, there] = await services()
  assert.ok(here && there)
  const [listed] = await bob.client.invitations()
  assert.ok(listed)
  const { service, convoId, inviter, state } = listed
  assert.deepEqual([service, convoId, inviter, state], [here.did, convo, alice.did, "accepted"])
  assert.deepEqual(await bob.client.acceptInvitation({ service, convoId }).then(({ joined }) => joined), undefined, "again")
  await say(bob, convo, "hello from the second")
  assert.deepEqual(await reads(alice, convo, 1), ["hello from the second"])
  await say(alice, convo, "and from the first")
  await reads(bob, convo, 2)

  const carol = await Device.open(2) // claimed by bob, whose own service is not the convo's either
  carol.client.listen()
  await bob.client.add(convo, [carol.did])
  await (await carol.client.acceptInvitation(await carol.invitation())).joined
  const dave = await Device.open(1)
  dave.client.listen()
  await alice.client.add(convo, [dave.did])
  await (await dave.client.acceptInvitation(await dave.invitation())).joined
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
  const invitation = await bob.invitation()
  await planAt(here, { kind: "cut", times: 0, did: bob.did })
  const { joined } = await bob.client.acceptInvitation(invitation)
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
  const [alice, bob] = [await Device.open(0), await Device.open(1)]
  const [here] = await services()
  assert.ok(here)
  bob.client.listen()
  const convo = await alice.client.createConvo([bob.did])
  const invitation = await bob.invitation()
  await planAt(here, { kind: "cut", times: 0, did: bob.did })
  await bob.client.declineInvitation(invitation)
  assert.deepEqual((await bob.client.invitations()).map(({ state }) => state), ["declined"])
  await bob.client.close()
  await clearAt(here)
  alice.client.listen()
  const again = await Device.open(bob)
  // The client removes who has left, when it hears of it.
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
  const invitation = (service: string, convoId: string) => bob.client.acceptInvitation({ service: service as Did, convoId })
  await assert.rejects(invitation(third.did, convo), /which is at another service/)
  await assert.rejects(invitation(third.did, own), /which is at another service/)
  await assert.rejects(invitation(bob.account.deliveryService, own), /own service/)
  await assert.rejects(invitation(third.did, "00000000-0000-7000-8000-000000000000"), /InvitationNotFound/)
  assert.deepEqual(await bob.store.list(names.services), [names.service(convo)], "nothing is left of it")
  await say(bob, convo, "still here")
  const single = await openPhone(alice.did, new MemoryStore())
  await assert.rejects(single.acceptInvitation({ service: here.did, convoId: asConvoId(convo) }), /no way to other services/)
  await single.close()
  await close(alice, bob)
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
  assert.deepEqual(again.invitations, [])
  await close(alice, again)
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
