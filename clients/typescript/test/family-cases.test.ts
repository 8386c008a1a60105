// What the month of a family (family.test.ts) has found, each by itself.

import assert from "node:assert/strict"
import { test } from "node:test"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { joined, open } from "./support/heard.js"
import { bytesOf, textsOf } from "./support/phone.js"
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
