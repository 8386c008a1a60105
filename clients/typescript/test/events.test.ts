// The event stream, as server-sent events and over a WebSocket, through lost connections.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Client, ClientEvents } from "../src/client.js"
import type { Socket } from "../src/events-socket.js"
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
  const heard: string[] = []
  const b = await openPhone(bob, new MemoryStore(), {
    events: {
      onItems: () => hears.onItems?.(),
      onJoined: () => hears.onJoined?.(),
      onConnect: () => heard.push("connected"),
      onWelcome: (_, state) => heard.push(state),
    },
  })
  hears.client = b
  await b.replenish()
  b.listen()
  const convo = await a.createConvo([bob])
  await joined
  assert.deepEqual(heard, ["connected", "available", "in_flight", "consumed"])
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

test("a Welcome's event that comes again changes nothing", { ...needsServer, timeout: 60_000 }, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const a = await openPhone(alice, new MemoryStore())
  const store = new MemoryStore()
  const hears: { client?: Client; onItems?: () => void } = {}
  const heard: string[] = []
  let place: Promise<Uint8Array | undefined> | undefined // before the event
  const events: ClientEvents = {
    onItems: () => hears.onItems?.(),
    onWelcome: (_, state) => {
      heard.push(state)
      place ??= store.read("cursor")
    },
  }
  hears.client = await openPhone(bob, store, { events })
  await hears.client.replenish()
  const connected = new Promise<void>((resolve) => (events.onConnect = resolve))
  hears.client.listen()
  await connected
  const convo = await a.createConvo([bob])
  await a.send(convo, bytesOf("one"))
  await readsAll(hears, convo, 1)
  await hears.client.close()
  const before = await place
  assert.ok(before)
  await store.write(new Map([["cursor", before]]))
  hears.client = await openPhone(bob, store, { events })
  hears.client.listen()
  await a.send(convo, bytesOf("two"))
  await readsAll(hears, convo, 2)
  assert.equal((await hears.client.group(convo)).epoch, 1, "it does not join a second time")
  assert.deepEqual(heard, ["available", "in_flight", "consumed"])
  await Promise.all([a.close(), hears.client.close()])
})

test("a ticket opens a WebSocket", { ...needsServer, ...(typeof WebSocket === "undefined" && { skip: "this Node has no WebSocket" }) }, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const a = await openPhone(alice, new MemoryStore())
  const hears: { client?: Client; onItems?: () => void } = {}
  const direct = transportOf(bob)
  const steps: string[] = []
  const calls: Transport = { // as through a PDS: it passes no streams on
    call: (call) => {
      steps.push(call.method.replace(/.*\./, ""))
      return direct.call(call)
    },
  }
  const b = await openPhone(bob, new MemoryStore(), {
    transport: calls,
    events: { onItems: () => hears.onItems?.() },
    openSocket: (url) => {
      const socket = new WebSocket(url)
      socket.addEventListener("open", () => steps.push("open"))
      return socket as Socket
    },
  })
  hears.client = b
  await b.replenish()
  const convo = await a.createConvo([bob])
  steps.length = 0
  b.listen()
  for (let i = 0; i < 5; i++) await a.send(convo, bytesOf(`${i}`))
  await readsAll(hears, convo, 5)
  assert.deepEqual(steps.slice(0, 3), ["getSubscriptionTicket", "open", "getConvos"], "nothing falls between the two")
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
