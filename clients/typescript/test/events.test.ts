// The event stream, as server-sent events and over a WebSocket, through lost connections.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Client } from "../src/client.js"
import { MemoryStore } from "../src/store.js"
import type { Transport } from "../src/transport.js"
import { SessionTransport } from "../src/transport-session.js"
import { TsMls } from "../src/mls-ts.js"
import { sha256 } from "../src/bytes.js"
import { clearFaults, dev, needsServer, newAccounts, plan, serverURL, transportOf } from "./support/dev.js"
import { bytesOf, openPhone, readsAll, suite, textsOf } from "./support/phone.js"

test("a listening device joins, and reads what others send, through lost connections", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const a = await openPhone(alice, new MemoryStore())
  const hears: { client?: Client; onItems?: () => void; onJoined?: () => void } = {}
  const joined = new Promise<void>((resolve) => (hears.onJoined = resolve))
  const b = await openPhone(bob, new MemoryStore(), {
    events: { onItems: () => hears.onItems?.(), onJoined: () => hears.onJoined?.() },
  })
  hears.client = b
  await b.replenish()
  b.listen()
  const convo = await a.createConvo([bob])
  await joined
  await plan({ lxm: "blue.catbird.mls.streamConvoEvents", did: bob, kind: "loseAnswer", ms: 50, times: 3 })
  for (let i = 0; i < 10; i++) {
    await a.send(convo, bytesOf(`${i}`))
    if (i % 3 === 0) b.resume() // connects again
  }
  await readsAll(hears, convo, 10)
  assert.deepEqual(await textsOf(b, convo), Array.from({ length: 10 }, (_, i) => `${i}`))
  await clearFaults()
  await Promise.all([a.close(), b.close()])
})

test("a ticket opens a WebSocket", { ...needsServer, ...(typeof WebSocket === "undefined" && { skip: "this Node has no WebSocket" }) }, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const a = await openPhone(alice, new MemoryStore())
  const hears: { client?: Client; onItems?: () => void } = {}
  const direct = transportOf(bob)
  const calls: Transport = { call: (call) => direct.call(call) } // as through a PDS: it passes no streams on
  const b = await openPhone(bob, new MemoryStore(), { transport: calls, events: { onItems: () => hears.onItems?.() } })
  hears.client = b
  await b.replenish()
  const convo = await a.createConvo([bob])
  b.listen()
  for (let i = 0; i < 5; i++) await a.send(convo, bytesOf(`${i}`))
  await readsAll(hears, convo, 5)
  await Promise.all([a.close(), b.close()])
})

test("a session carries calls, and another is bought when it ends", needsServer, async () => {
  const [alice] = await newAccounts(1)
  assert.ok(alice)
  const device = await TsMls.create(alice, suite)
  let tokens = 0
  const session = new SessionTransport(serverURL(), await sha256(device.signatureKey), async (lxm) => {
    tokens++
    return (await dev<{ token: string }>("POST", "/dev/token", { did: alice, lxm })).token
  })
  const a = await openPhone(alice, new MemoryStore(), { transport: session, mls: device })
  const convo = await a.createConvo([])
  for (let i = 0; i < 5; i++) await (await a.send(convo, bytesOf(`${i}`))).sent
  assert.equal(tokens, 1, "one token bought the session")
  await transportOf(alice).call({ method: "blue.catbird.mls.deleteSession", body: "{}" })
  const until = Date.now() + 5000 // a node hears of the end within a second
  while (tokens === 1 && Date.now() < until) await (await a.send(convo, bytesOf("after"))).sent
  assert.equal(tokens, 2, "another token bought another session")
  await session.end()
  await a.close()
})
