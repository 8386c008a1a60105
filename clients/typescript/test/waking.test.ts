// What ends a wait, and what a client does after it: signing in again, handlers, closing.

import assert from "node:assert/strict"
import { test } from "node:test"
import { Api, waitOf } from "../src/api.js"
import type { ClientEvents } from "../src/client.js"
import { type Clock, systemClock } from "../src/clock.js"
import { XrpcError } from "../src/errors.js"
import { asDid, type ConvoId } from "../src/ids.js"
import { MemoryStore } from "../src/store.js"
import { type Call, DirectTransport, type Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { bytesOf, openPhone, readsAll } from "./support/phone.js"
import * as mls from "#lexicons"

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

// ask makes a query that fails first, and returns the waits before the second attempt. Its clock waits no time.
async function ask(first: Response | Error, between: (api: Api) => Promise<void> = async () => {}): Promise<number[]> {
  const waits: number[] = []
  const answers: (Response | Error)[] = [first]
  const fetch = async (url: string) => {
    const answer = url.includes("getConvos") ? answers.shift() : undefined
    if (answer instanceof Error) throw answer
    return answer ?? new Response(url.includes("getConvos") ? '{"conversations":[]}' : stats)
  }
  const clock: Clock = {
    ...systemClock, random: () => 0,
    sleep: async (ms, signal) => {
      waits.push(ms)
      if (waits.length === 1) await between(api)
      if (ms > 2000) await (signal.aborted || new Promise((resolve) => signal.addEventListener("abort", resolve)))
    },
  }
  const api = new Api(new DirectTransport("http://127.0.0.1", async () => "token", fetch), clock, new AbortController().signal)
  await api.query(mls.getConvos.main, {})
  return waits
}

const refused = (status: number, retryAfter: string) => new Response('{"error":"Busy"}', { status, headers: { "retry-after": retryAfter } })

test("D10: a Retry-After counts from a second to an hour, as seconds or as a date; anything else does not count", async () => {
  const waitAfter = (retryAfter: string, headers = {}) => {
    const way = new DirectTransport("http://127.0.0.1", async () => "token", async () =>
      new Response("", { status: 503, headers: { "retry-after": retryAfter, ...headers } }))
    return way.call({ method: "m" }).then(() => assert.fail(), (err: unknown) => waitOf(err, { ...systemClock, random: () => 0 }, 1))
  }
  const date = "Fri, 02 Jan 2026 03:04:05 GMT"
  await Promise.all([
    ["3000000", 3_600_000], ["18000000000", 3_600_000], ["1e308", 3_600_000], ["Infinity", 3_600_000], ["0", 1000], ["-5", 1000], ["2", 2000],
    ["soon", 250], ["NaN", 250], ["", 250], ["Fri, 02 Jan 2026 03:04:15 GMT", 10_000], ["Thu, 01 Jan 2026 03:04:15 GMT", 1000],
  ].map(async ([asked, wait]) => assert.equal(await waitAfter(String(asked), { date }), wait, String(asked))))
})

test("D10: the system's clock waits longer than one timer can", async (t) => {
  const timers: number[] = []
  t.mock.method(globalThis, "setTimeout", (fn: () => void, ms: number) => {
    timers.push(ms)
    queueMicrotask(fn)
    return 0
  })
  await systemClock.sleep(2 ** 32, new AbortController().signal)
  assert.deepEqual(timers, [2 ** 31 - 1, 2 ** 31 - 1, 2])
})

test("D10: a sign that the service can be reached ends a wait, after a second", async () => {
  const another = async (api: Api) => void (await api.query(mls.getKeyPackageStats.main, {}))
  const event = async (api: Api) => api.reach.give()
  for (const sign of [another, event]) assert.deepEqual(await ask(refused(503, "3600"), sign), [1000, 3_599_000])
  assert.deepEqual(await ask(new TypeError("no network")), [250])
  assert.deepEqual(await ask(refused(503, "2"), another), [2000], "a service that asks for a short wait gets it")
})
