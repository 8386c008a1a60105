// What the month of a family (family.test.ts) has found, each by itself.

import assert from "node:assert/strict"
import { test } from "node:test"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { joined, open } from "./support/heard.js"
import { acceptAll, bytesOf, textsOf } from "./support/phone.js"
import { needsBinary, Server } from "./support/server.js"

const long = { ...needsServer, timeout: 120_000 }

test("who has left and is added again stays", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  for (const { client } of [alice, bob]) {
    await client.replenish()
    client.listen()
  }
  const convo = await alice.client.createConvo([b])
  await bob.heard.until("onJoined", joined(convo))
  await (await bob.client.send(convo, bytesOf("hello"))).sent
  await bob.client.leave(convo)
  const left = (_: unknown, news: unknown) => (news as { change: string }).change === "left"
  await alice.heard.until("onDevice", left)
  await alice.client.add(convo, [b])
  await alice.client.sync(convo)
  await alice.client.update(convo) // whatever Alice's client wanted to do has come before
  await alice.client.sync(convo)
  assert.equal((await alice.client.group(convo)).members.length, 2)
  await Promise.all([alice, bob].map(({ client }) => client.close()))
})

test("who has left can be added before anybody has removed the leaf", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b, { events: { onRequest: () => {} } })]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await acceptAll(bob.client)
  await bob.client.leave(convo)
  await alice.client.add(convo, [b]) // she has heard of nothing
  await acceptAll(bob.client)
  await (await bob.client.send(convo, bytesOf("back again"))).sent
  await alice.client.sync(convo)
  assert.deepEqual(await textsOf(alice.client, convo), ["back again"])
  await Promise.all([alice, bob].map(({ client }) => client.close()))
})

test("who removes somebody that was just added does it", long, async () => {
  const [a, b, c] = await newAccounts(3)
  assert.ok(a && b && c)
  const [alice, bob, carol] = [await open(a), await open(b), await open(c)]
  for (const { client } of [bob, carol]) await client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  await alice.client.promoteAdmin(convo, b)
  await alice.client.add(convo, [c])
  await bob.client.remove(convo, c) // he has not heard of her
  await alice.client.sync(convo)
  assert.equal((await alice.client.group(convo)).members.length, 2)
  await Promise.all([alice, bob, carol].map(({ client }) => client.close()))
})

test("the last member cannot leave, and its devices stay", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const [alice, tablet] = [await open(a), await open(a)]
  const convo = await alice.client.createConvo([])
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(convo))
  await alice.client.sync(convo)
  await assert.rejects(alice.client.leave(convo), /LastMember/)
  await tablet.client.update(convo)
  await alice.client.sync(convo)
  assert.equal((await alice.client.group(convo)).members.length, 2)
  await Promise.all([alice, tablet].map(({ client }) => client.close()))
})

test("a new device that removes the old one has entered its convos before", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  await bob.client.close()
  const next = await open(b)
  await next.client.removeDevice(await bob.client.deviceId())
  await (await next.client.send(convo, bytesOf("I have a new phone"))).sent
  await alice.client.sync(convo)
  assert.deepEqual(await textsOf(alice.client, convo), ["I have a new phone"])
  assert.equal((await alice.client.group(convo)).members.length, 2)
  await Promise.all([alice, next].map(({ client }) => client.close()))
})

test("who has declined can be invited again", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b, { events: { onRequest: () => {} } })]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.syncAll()
  await bob.client.decline(convo)
  await alice.client.add(convo, [b])
  await bob.client.syncAll()
  assert.deepEqual((await bob.client.requests()).map(({ convoId }) => convoId), [convo])
  await (await bob.client.accept(convo)).joined
  await (await bob.client.send(convo, bytesOf("well then"))).sent
  await alice.client.sync(convo)
  assert.deepEqual(await textsOf(alice.client, convo), ["well then"])
  await Promise.all([alice, bob].map(({ client }) => client.close()))
})

test("a message that its device has not read back is sent again when the server has lost it", { ...long, ...needsBinary }, async () => {
  const server = await Server.start()
  try {
    const [a] = await newAccounts(1)
    assert.ok(a)
    const { client, heard } = await open(a, { transport: transportOf(a, server.url, server.did) })
    const convo = await client.createConvo([])
    await server.backUp()
    await (await client.send(convo, bytesOf("hello"))).sent
    await server.restore()
    await client.sync(convo)
    await heard.until("onItems")
    assert.deepEqual(await textsOf(client, convo), ["hello"])
    await client.close()
  } finally {
    await server.end()
  }
})
