// What ends a wait, and what a client does after it: signing in again, handlers, closing.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { ClientEvents } from "../src/client.js"
import { XrpcError } from "../src/errors.js"
import { asDid, type ConvoId } from "../src/ids.js"
import { MemoryStore } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { bytesOf, openPhone, readsAll } from "./support/phone.js"

test("D3: after a stop, resume wakes the event stream too", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const hears: { client?: Awaited<ReturnType<typeof openPhone>>; onItems?: () => void } = {}
  const way = transportOf(bob)
  let signedIn = true
  const guard = <T>(fn: () => Promise<T>) => signedIn ? fn() : Promise.reject(new XrpcError(401, "AuthMissing", "signed out"))
  let stopped = () => {}
  const a = await openPhone(alice, new MemoryStore())
  const b = await openPhone(bob, new MemoryStore(), {
    transport: { call: (call) => guard(() => way.call(call)), stream: (call) => guard(() => way.stream(call)) },
    events: { onItems: () => hears.onItems?.(), onStop: () => stopped() },
  })
  hears.client = b
  await b.replenish()
  b.listen()
  const convo = await a.createConvo([bob])
  await (await a.send(convo, bytesOf("one"))).sent
  await readsAll(hears, convo, 1)
  signedIn = false
  const hasStopped = new Promise<void>((resolve) => (stopped = resolve))
  b.resume() // the stream connects again, and is refused
  await hasStopped
  signedIn = true
  b.resume()
  await (await a.send(convo, bytesOf("two"))).sent
  await readsAll(hears, convo, 2)
  await Promise.all([a.close(), b.close()])
})

test("D11: what a handler throws or rejects with reaches onFailure, also of a handler that is set later", needsServer, async () => {
  const [alice] = await newAccounts(1)
  assert.ok(alice)
  const events: ClientEvents = {}
  const a = await openPhone(alice, new MemoryStore(), { events })
  const convo = await a.createConvo([])
  const failures: unknown[] = []
  const both = new Promise<void>((resolve) => {
    events.onFailure = async (err) => void (failures.push(String(err)) === 2 && resolve())
  })
  events.onChange = async () => {
    delete events.onChange
    throw new Error("async")
  }
  events.onItems = () => {
    delete events.onItems
    throw new Error("at once")
  }
  await (await a.send(convo, bytesOf("hello"))).sent
  await a.sync(convo)
  await both
  assert.deepEqual(failures.sort(), ["Error: async", "Error: at once"])
  await a.close()
})

const stats = JSON.stringify({
  available: 0, claimed: 0, consumed: 0, lastResort: 0, threshold: 10, needsReplenish: true, byCipherSuite: [], byDevice: [],
})
const event = { cipherSuite: "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", change: "low", createdAt: "2026-01-02T03:04:05Z" }

test("close ends while a publication that an event has asked for is in flight", async () => {
  const me = asDid("did:plc:alice")
  let began = () => {}
  const inFlight = new Promise<void>((resolve) => (began = resolve))
  let deviceId = ""
  const transport: Transport = {
    call: ({ method, signal }: Call) => {
      if (method.endsWith(".getConvos")) return Promise.resolve('{"conversations":[]}')
      if (method.endsWith(".getOwnKeyPackages")) return Promise.resolve('{"keyPackages":[]}')
      if (method.endsWith(".getKeyPackageStats")) return Promise.resolve(stats)
      assert.ok(method.endsWith(".publishKeyPackages"), method)
      began()
      return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("cut"))))
    },
    stream: async () => new ReadableStream({
      start: (controller) => controller.enqueue(bytesOf(`event: keyPackagesEvent\nid: 1\ndata: ${JSON.stringify({ ...event, deviceId })}\n\n`)),
    }),
  }
  const client = await openPhone(me, new MemoryStore(), { transport })
  deviceId = await client.deviceId()
  client.listen()
  await inFlight
  const writing = client.replenish().catch((err: unknown) => err)
  await client.close()
  assert.ok(await writing === 0, "another one is not published while one waits")
})

test("a device that listens and is asked to join does not enter a second time", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  let joined = (_: ConvoId) => {}
  const hasJoined = new Promise<ConvoId>((resolve) => (joined = resolve))
  const a = await openPhone(alice, new MemoryStore())
  const b = await openPhone(bob, new MemoryStore(), { events: { onJoined: (convo) => joined(convo) } })
  await b.replenish()
  b.listen()
  const convo = await a.createConvo([bob])
  assert.equal(await hasJoined, convo)
  const { epoch } = await b.group(convo)
  await b.join(convo)
  assert.equal((await b.group(convo)).epoch, epoch)
  await Promise.all([a.close(), b.close()])
})
