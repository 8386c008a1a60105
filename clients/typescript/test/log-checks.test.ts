// Members check that the server shows them the same log: docs/TRANSPARENCY.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Client, ClientEvents } from "../src/client.js"
import { type Clock, systemClock } from "../src/clock.js"
import { NoAnswerError } from "../src/errors.js"
import type { ConvoId, Did } from "../src/ids.js"
import { lexParse, lexStringify, type LexValue } from "../src/json.js"
import { type Finding, logChecks, NotSignedError } from "../src/log-checks.js"
import { readHead } from "../src/log-head.js"
import { countedAtMost, unsignedFor } from "../src/log-verifier.js"
import { MemoryStore, type Store } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { needsServer, newAccounts, serverURL, transportOf } from "./support/dev.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"
import { needsBinary, Server } from "./support/server.js"

const getMessages = "blue.catbird.mls.getMessages"
const getLogHead = "blue.catbird.mls.getLogHead"

async function serviceOf(url: string): Promise<string> {
  return ((await (await fetch(new URL("/.well-known/did.json", url))).json()) as { id: string }).id
}

// A transport that counts calls, and can change answers.
class Changing implements Transport {
  readonly calls: string[] = []
  change?: (call: Call, answer: string) => string

  constructor(private readonly inner: Transport) {}

  async call(call: Call): Promise<string> {
    this.calls.push(call.method)
    const answer = await this.inner.call(call)
    return this.change?.(call, answer) ?? answer
  }

  count(method: string): number {
    return this.calls.filter((call) => call === method).length
  }
}

interface Phone {
  client: Client
  net: Changing
  found: Finding[]
}

// A clock that stands still until the test lets time pass.
class StoppedClock implements Clock {
  readonly sleep = systemClock.sleep
  readonly random = systemClock.random
  readonly randomBytes = systemClock.randomBytes
  private time = Date.now()

  now(): number {
    return this.time
  }

  pass(ms: number): void {
    this.time += ms
  }
}

interface Settings {
  store?: Store
  server?: Server
  clock?: Clock
}

async function checking(did: Did, { store = new MemoryStore(), server, clock }: Settings = {}): Promise<Phone> {
  const net = new Changing(transportOf(did, server?.url, server?.did))
  const phone: Omit<Phone, "client"> = { net, found: [] }
  const events: ClientEvents = {
    onFinding: (_, finding) => phone.found.push(finding),
    onFailure: (err) => { throw err },
  }
  const checks = logChecks(server?.did ?? (await serviceOf(serverURL())))
  const client = await openPhone(did, store, { transport: net, logChecks: checks, events, ...(clock && { clock }) })
  return Object.assign(phone, { client })
}

async function say(phone: Phone, convo: ConvoId, ...texts: string[]): Promise<void> {
  for (const text of texts) await (await phone.client.send(convo, bytesOf(text))).sent
}

async function read(phone: Phone, convo: ConvoId): Promise<void> {
  await phone.client.sync(convo)
  await phone.client.logChecks?.idle()
}

async function pair(settings: Settings = {}) {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const [a, b] = [await checking(alice), await checking(bob, settings)]
  await b.client.replenish()
  const convo = await a.client.createConvo([bob])
  await b.client.join(convo)
  return { alice, bob, a, b, convo }
}

const sizeOf = async (phone: Phone, convo: ConvoId) => readHead((await phone.client.logChecks?.message(convo))?.replace(/^(key .*\n)*/, "") ?? "").size

test("two members compare heads, and find nothing", needsServer, async () => {
  const stored = new MemoryStore()
  const { alice, bob, a, b: before, convo } = await pair({ store: stored })
  await say(a, convo, "one", "two")
  await read(before, convo)
  await before.client.close()
  const b = await checking(bob, { store: stored }) // its verifier goes on where it was
  await say(b, convo, "three")
  await b.client.update(convo)
  await Promise.all([read(a, convo), read(b, convo)])
  const mine = await a.client.logChecks?.message(convo)
  assert.match(mine ?? "", /^key did:web:.*\ndid:web:.*\n4\n/)
  assert.equal(await sizeOf(b, convo), 4)
  await b.client.logChecks?.compare(convo, alice, mine ?? "")
  await a.client.logChecks?.compare(convo, bob, (await b.client.logChecks?.message(convo)) ?? "")
  await assert.rejects(b.client.logChecks?.compare(convo, alice, "something else") ?? Promise.resolve(), NotSignedError)
  assert.deepEqual([a.found, b.found, await a.client.logChecks?.check(convo), await b.client.logChecks?.check(convo)], [[], [], [], []])
  await Promise.all([a.client.close(), b.client.close()])
})

test("after a reset, the successor's first entry is compared with the old log", needsServer, async () => {
  const { a, b, convo } = await pair()
  await say(a, convo, "one", "two")
  await b.client.update(convo)
  await read(b, convo)
  b.net.change = (call, answer) => {
    if (call.method !== getMessages || call.params?.get("sinceSeq") !== "0" || call.params.get("limit") !== "1") return answer
    const page = lexParse(answer) as unknown as { messages: { ciphertext: Uint8Array }[] }
    const text = new TextDecoder().decode(page.messages[0]?.ciphertext)
    assert.match(text, /^root \S+$/m)
    page.messages[0]!.ciphertext = bytesOf(text.replace(/^root \S+$/m, `root ${"A".repeat(43)}=`))
    return lexStringify(page as unknown as LexValue)
  }
  await a.client.reset(convo, "forked")
  await b.client.syncAll()
  while (!(await b.client.convos()).some(({ successor }) => successor !== undefined)) await b.client.syncAll()
  for (const { client } of [a, b]) await client.logChecks?.idle()
  assert.deepEqual(a.found, [])
  assert.deepEqual(b.found.map(({ kind }) => kind), ["lie"])
  assert.match(b.found[0]?.sentence ?? "", /names another log of \d entries than I was shown/)
  assert.equal((await b.client.logChecks?.findings(convo))?.length, 1)
  await Promise.all([a.client.close(), b.client.close()])
})

test("after new entries a head is asked for, at most once a minute", needsServer, async () => {
  const clock = new StoppedClock()
  const { a, b, convo } = await pair({ clock })
  const asked: number[] = []
  for (const wait of [0, 59_999, 1, 59_999]) {
    clock.pass(wait)
    await say(a, convo, "one", "two")
    await read(b, convo)
    asked.push(b.net.count(getLogHead))
  }
  clock.pass(1)
  await read(b, convo)
  asked.push(b.net.count(getLogHead))
  await read(b, convo) // there are no new entries
  clock.pass(60_000)
  await read(b, convo)
  asked.push(b.net.count(getLogHead))
  const first = asked[0] ?? 0
  assert.ok(first > 0)
  assert.deepEqual(asked, [0, 0, 1, 1, 2, 2].map((more) => first + more))
  assert.deepEqual([a.found, b.found], [[], []])
  await Promise.all([a.client.close(), b.client.close()])
})

test("a server that shows a member another time or another sender is caught", needsServer, async () => {
  for (const change of [{ createdAt: "2026-11-22T09:30:11.000Z" }, { sender: "" }]) {
    const clock = new StoppedClock()
    const { bob, a, b, convo } = await pair({ clock })
    await say(a, convo, "one", "two", "three")
    await read(a, convo)
    await read(b, convo)
    const texts = await textsOf(b.client, convo)
    await say(a, convo, "four", "five")
    await say(b, convo, "six")
    b.net.change = (call, answer) => {
      if (call.method !== getMessages) return answer
      const page = lexParse(answer) as { messages: { seq: number }[] }
      const messages = page.messages.map((one) => (one.seq === 5 ? { ...one, ...change, ...("sender" in change && { sender: bob }) } : one))
      return lexStringify({ ...page, messages } as LexValue)
    }
    clock.pass(60_000)
    await read(b, convo)
    const found = await b.client.logChecks?.findings(convo)
    assert.deepEqual(found?.map(({ kind, sentence }) => [kind, sentence]), [[
      "lie", "the log that I was shown is not the one that is signed: entry 5 is the first that differs in its bytes, sender, time or place",
    ]])
    const [contrary, rest] = [b.found.filter(({ kind }) => kind === "contrary"), b.found.filter(({ kind }) => kind !== "contrary")]
    assert.deepEqual(rest, found, "the app hears it once")
    assert.equal(contrary.length, "sender" in change ? 1 : 0, "MLS shows who has sent it")
    assert.equal((await textsOf(b.client, convo)).length, texts.length + 3, "messages are read nevertheless")
    await a.client.logChecks?.compare(convo, bob, (await b.client.logChecks?.message(convo)) ?? "")
    assert.deepEqual(a.found, [], "the other member is shown the right log")
    await Promise.all([a.client.close(), b.client.close()])
  }
})

test("a server that backdates a member's own message is caught", needsServer, async () => {
  const { a, b, convo } = await pair()
  await say(a, convo, "one")
  await read(a, convo)
  a.net.change = (call, answer) => {
    if (call.method !== getMessages) return answer
    const page = lexParse(answer) as { messages: { seq: number }[] }
    return lexStringify({ ...page, messages: page.messages.map((one) => ({ ...one, createdAt: "2026-11-22T09:30:11.000Z" })) } as LexValue)
  }
  await say(a, convo, "two")
  await read(a, convo)
  assert.match(a.found[0]?.sentence ?? "", /^entry 2 is mine, was acknowledged at .* and is shown with the time 2026-11-22T09:30:11.000Z$/)
  await Promise.all([a.client.close(), b.client.close()])
})

// T11 of the third examination: nobody asked for a head before a newer entry was shown.
test("T11: what a member has sent is withheld from it, and the same head comes again", needsServer, async () => {
  const clock = new StoppedClock()
  const { a, b, convo } = await pair({ clock })
  await say(b, convo, "one")
  await read(b, convo)
  let head: string | undefined
  b.net.change = (call, answer) => {
    if (call.method === getLogHead && call.params?.get("convoId") === convo) return (head ??= answer)
    if (call.method !== getMessages) return answer
    const page = lexParse(answer) as { messages: { seq: number }[] }
    return lexStringify({ ...page, messages: page.messages.filter(({ seq }) => seq <= 1), lastSeq: 1 } as LexValue)
  }
  clock.pass(60_000)
  await b.client.logChecks?.check(convo)
  await say(b, convo, "two")
  clock.pass(60_000)
  await read(b, convo)
  assert.deepEqual(b.found.map(({ kind, sentence }) => [kind, sentence]), [[
    "lie", "the head is stale: it has 1 entries, and the server has shown or acknowledged 2",
  ]])
  await Promise.all([a.client.close(), b.client.close()])
})

test("T11: what a member has sent is acknowledged, and no head comes", needsServer, async () => {
  const clock = new StoppedClock()
  const { a, b, convo } = await pair({ clock })
  b.net.change = (call, answer) => {
    if (call.method === getLogHead) throw new NoAnswerError("the head is lost on its way")
    if (call.method !== getMessages) return answer
    return lexStringify({ ...(lexParse(answer) as object), messages: [], lastSeq: 0 } as LexValue)
  }
  const heard: number[] = []
  for (let round = 0; round <= unsignedFor / countedAtMost + 1; round++) {
    await say(b, convo, "one")
    await b.client.logChecks?.idle()
    heard.push(b.found.length)
    clock.pass(countedAtMost)
  }
  assert.deepEqual(heard, [0, 0, 0, 0, 0, 0, 1, 1])
  assert.equal(b.found[0]?.kind, "unsigned")
  delete b.net.change
  await read(b, convo)
  assert.deepEqual(await b.client.logChecks?.findings(convo), [], "it ends with a head")
  await Promise.all([a.client.close(), b.client.close()])
})

test("a server that is restored from a backup went back, and did not lie", { ...needsServer, ...needsBinary }, async () => {
  const server = await Server.start()
  try {
    const [alice] = await newAccounts(1)
    assert.ok(alice)
    const a = await checking(alice, { server })
    const convo = await a.client.createConvo([])
    await say(a, convo, "one", "two")
    await a.client.sync(convo)
    await a.client.logChecks?.check(convo)
    await server.backUp()
    await say(a, convo, "three", "four", "five")
    await a.client.sync(convo)
    await a.client.logChecks?.check(convo)
    await server.restore()
    await a.client.sync(convo)
    await a.client.recover(convo)
    await say(a, convo, "six")
    await read(a, convo)
    assert.deepEqual((await textsOf(a.client, convo)).sort(), ["five", "four", "one", "six", "three", "two"])
    const found = await a.client.logChecks?.check(convo)
    assert.deepEqual(found?.map(({ kind }) => kind), ["wentBack"])
    assert.match(found?.[0]?.sentence ?? "", /^the server went back from [56] entries to \d; the first 2 are the same/)
    assert.deepEqual(a.found, found)
    assert.equal(await sizeOf(a, convo), 6)
    await a.client.close()
  } finally {
    await server.end()
  }
})

test("a client without checks asks for no head, and keeps nothing for them", needsServer, async () => {
  const [alice] = await newAccounts(1)
  assert.ok(alice)
  const net = new Changing(transportOf(alice))
  const store = new MemoryStore()
  const client = await openPhone(alice, store, { transport: net })
  const convo = await client.createConvo([])
  await (await client.send(convo, bytesOf("one"))).sent
  await client.sync(convo)
  assert.equal(client.logChecks, undefined)
  assert.equal(net.count(getLogHead), 0)
  assert.deepEqual((await store.list("")).filter((name) => /^(seen|acknowledged|verifier)\//.test(name)), [])
  await client.close()
})
