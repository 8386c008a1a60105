// Issue 31, item 7. Random calls of a client, valid and invalid, with faults, over many lives of the
// process. Every call settles, or its write is in refused(); every valid message arrives once, in the
// order of its convo; nothing blocks what stands behind it. A seed always does the same.

import assert from "node:assert/strict"
import { createHash } from "node:crypto"
import { mock, test } from "node:test"
import { Client } from "../src/client.js"
import { ClosedError, DiscardedError, SealError, StoreError, XrpcError } from "../src/errors.js"
import { asConvoId, asDid, type ConvoId, type Did } from "../src/ids.js"
import { idLength } from "../src/envelope.js"
import type { RefusedWrite, Write } from "../src/outbox.js"
import { getAll, MemoryStore } from "../src/store.js"
import type { AddContent } from "../src/write-commits.js"
import type { CreateContent } from "../src/write-convos.js"
import type { SendContent } from "../src/write-messages.js"
import { chanceOf, testClock } from "./support/chance.js"
import { gullible } from "./support/everyone.js"
import { KillingStore } from "./support/killing.js"
import { longestPlaintext, modelMls } from "./support/model-mls.js"
import { missingAsset, ModelService, people } from "./support/model-service.js"
import { bytesOf } from "./support/phone.js"

const me = asDid("did:plc:me")
const friends = ["ann", "ben", "cleo"].map((name) => asDid(`did:plc:${name}`))
const unknown = asConvoId("00000000-0000-7000-8000-999999999999")

/** What becomes of a call: `throws` says that it rejects, and nothing is stored. */
type Fate = "arrives" | "refused" | "throws"

interface Op {
  readonly name: string
  readonly fate: Fate
  /** @param n the number of the call */
  call(client: Client, convo: ConvoId, n: number): Promise<unknown>
}

const no = (call: (client: Client, convo: ConvoId) => Promise<unknown>, name: string): Op => ({ name, fate: "throws", call })
const wrongDid = "did:plc:no such person" as Did

/** Messages say `m` and the number of their call. */
const textOf = (n: number) => `m${n}`
const messages: readonly Op[] = [
  { name: "send", fate: "arrives", call: (c, convo, n) => send(c, convo, n) },
  { name: "send a missing asset", fate: "refused", call: (c, convo, n) => send(c, convo, n, { embedUri: missingAsset }) },
  { name: "send what cannot be encrypted", fate: "refused", call: (c, convo, n) => send(c, convo, n, {}, longestPlaintext) },
]
const creations: readonly Op[] = [
  { name: "create", fate: "arrives", call: (c) => c.createConvo([]) },
  { name: "create with a friend", fate: "arrives", call: (c, _, n) => c.createConvo([friends[n % 3]!], { name: `${n}` }) },
]
const others: readonly Op[] = [
  ...creations,
  { name: "add", fate: "arrives", call: (c, convo, n) => c.add(convo, [friends[n % 3]!]) },
  { name: "remove", fate: "arrives", call: (c, convo, n) => c.remove(convo, friends[n % 3]!) },
  { name: "update", fate: "arrives", call: (c, convo) => c.update(convo) },
  { name: "create with nobody", fate: "refused", call: (c) => c.createConvo([asDid(people.nobody)]) },
  { name: "create with a broken KeyPackage", fate: "refused", call: (c) => c.createConvo([asDid(people.broken)]) },
  { name: "add nobody", fate: "refused", call: (c, convo) => c.add(convo, [asDid(people.nobody)]) },
  { name: "add a broken KeyPackage", fate: "refused", call: (c, convo) => c.add(convo, [asDid(people.broken)]) },
  { name: "add one too many", fate: "refused", call: (c, convo) => c.add(convo, [asDid(people.full)]) },
  no((c) => c.createConvo([wrongDid]), "create with what is no DID"),
  no((c) => c.createConvo([], { name: "x".repeat(5000) }), "create with a long name"),
  no((c) => c.createConvo(Array.from({ length: 101 }, (_, i) => asDid(`did:plc:${i}`))), "create with 101"),
  no((c, convo) => c.add(convo, [wrongDid]), "add what is no DID"),
  no((c, convo) => c.add(convo, []), "add nothing"),
  no((c, convo) => c.remove(convo, wrongDid), "remove what is no DID"),
  no((c, convo) => c.send(convo, bytesOf("x"), { embedUri: "not a:uri" }), "send what is no URI"),
  no((c, convo) => c.send(convo, "text" as never), "send a string"),
  no((c, convo) => c.send(convo, bytesOf("x"), { changes: new Map([["outbox/1", undefined]]) }), "change a record of the client"),
  no((c) => c.send("nonsense" as ConvoId, bytesOf("x")), "send to nonsense"),
  no((c) => c.send(unknown, bytesOf("x")), "send to an unknown convo"),
  no((c) => c.add(unknown, [me]), "add to an unknown convo"),
  no((c) => c.update(unknown), "update an unknown convo"),
  no((c) => c.leave(unknown), "leave an unknown convo"),
  no((c) => c.rejoin("nonsense" as ConvoId), "rejoin nonsense"),
  no((c) => c.signal(unknown, bytesOf("x")), "signal to an unknown convo"),
]

// send stores in the same step that the call was made.
async function send(client: Client, convo: ConvoId, n: number, embed = {}, padding = 0): Promise<unknown> {
  const content = bytesOf(textOf(n).padEnd(padding, "."))
  return (await client.send(convo, content, { ...embed, changes: new Map([[stored(n), bytesOf(convo)]]) })).sent
}

const stored = (n: number) => `app/stored/${String(n).padStart(6, "0")}`

/** A write that must be refused, by what it holds. */
function mayBeRefused({ kind, content }: Write): boolean {
  const { members = [], dids = members, embedUri, content: text } = content as unknown as Partial<CreateContent & AddContent & SendContent>
  if (kind === "send") return embedUri === missingAsset || (text?.length ?? 0) >= longestPlaintext
  return dids.some((did) => Object.values<string>(people).includes(did))
}

/** An app's own error. No step of the client fails by it. */
const appError = new Error("a handler of the app throws")

/** A call, and how it ended, if it did. */
interface Made {
  readonly op: Op
  ended: "no" | "resolved" | "rejected"
}

/** One run: some lives of a process on one disk, and what they did. */
class Run {
  readonly disk = new MemoryStore()
  readonly service: ModelService
  readonly made: Made[] = []
  readonly discarded = new Set<string>()
  readonly trace: string[] = []
  restarts = 0
  private failure: unknown
  private store = new KillingStore(this.disk, Infinity, false)

  constructor(private readonly chance: () => number) {
    this.service = new ModelService(chance, () => this.store.killed && this.store.kill())
  }

  /** Makes so many calls in so many lives and a last one, in which nobody kills the process. */
  async play(calls: number, lives: number): Promise<void> {
    for (; this.restarts < lives; this.restarts++) {
      this.failure = undefined
      this.store = new KillingStore(this.disk, 2 + this.pick(60), this.chance() < 0.5)
      await this.live(this.pick((2 * calls) / lives)).catch((err) => {
        if (!this.store.killed) throw err
      })
    }
    this.failure = undefined
    this.store = new KillingStore(this.disk, Infinity, false)
    await this.live(Math.max(10, calls - this.made.length), true)
  }

  private pick(below: number): number {
    return Math.floor(this.chance() * below)
  }

  // live is one life: it makes calls, and waits for the end of all if it is the last.
  private async live(calls: number, last = false): Promise<void> {
    const from = this.made.length
    const client = await Client.open({
      accounts: gullible(me),
      did: me, store: this.store, mls: modelMls(me), transport: this.service, clock: testClock(this.chance),
      events: {
        onStop: () => setImmediate(() => client.resume()),
        onFailure: (err) => err !== appError && (this.failure ??= err),
        onItems: () => {
          throw appError
        },
      },
    })
    try {
      for (let i = 0; i < calls && !this.store.killed; i++) {
        await this.make(client)
        for (let ticks = this.pick(30); ticks > 0; ticks--) await tick()
      }
      const waits = () => this.made.slice(from).some(({ ended }) => ended === "no") || client.outbox.pending().length > 0
      for (let ticks = 0; last && waits(); ticks++) {
        assert.ok(ticks < 100_000, `a call does not settle, or blocked: ${client.outbox.pending().map(({ kind }) => kind)}`)
        await tick()
      }
      if (this.failure !== undefined && !this.store.killed) throw this.failure
    } finally {
      await client.close()
    }
  }

  private async make(client: Client): Promise<void> {
    const convo = (await client.convos())[this.pick(3)]?.convoId
    const [victim] = client.outbox.pending()
    if (victim !== undefined && this.chance() < 0.05) return this.discard(client, victim)
    const ops = convo === undefined ? creations : this.chance() < 0.5 ? messages : others
    const op = ops[this.pick(ops.length)]!
    const n = this.made.length
    const { store } = this
    const closed = (err: unknown) => err instanceof ClosedError || (err instanceof StoreError && err.message === "the client is closed")
    const made: Made = { op, ended: "no" }
    this.made.push(made)
    this.trace.push(op.name)
    const ended = op.call(client, convo ?? unknown, n).then(
      () => store.killed || this.end(made, "resolved"),
      (err: unknown) => store.killed || closed(err) || this.end(made, "rejected", err),
    )
    ended.catch((err: unknown) => (this.failure ??= err))
    if (op.fate === "throws") await ended // it depends on no answer
  }

  private end(made: Made, ended: Made["ended"], err?: unknown): void {
    this.trace.push(`${made.op.name} ${ended}`)
    made.ended = ended
    if (err instanceof DiscardedError) return
    const refused = err instanceof XrpcError || err instanceof SealError
    assert.equal(ended === "resolved" ? "arrives" : refused ? "refused" : "throws", made.op.fate, `${made.op.name}: ${String(err)}`)
  }

  private async discard(client: Client, { id, kind, content }: Write): Promise<void> {
    if (kind === "send") this.discarded.add(new TextDecoder().decode((content as unknown as SendContent).content))
    await client.outbox.discard(id)
  }

  /** Checks what the service has, what was refused, and that nothing is left. Returns how many messages arrived. */
  async check(): Promise<number> {
    assert.deepEqual(await this.disk.list("outbox/"), [], "nothing is blocked")
    const refused = await getAll<RefusedWrite>(this.disk, "refused/")
    assert.deepEqual(refused.filter(({ write }) => !mayBeRefused(write)), [], "nothing valid is refused")
    const refusals = new Set(refused.map(({ write }) => write.content as unknown as SendContent).map(({ content }) => content && textIn(content)))
    const want = new Map<string, string[]>()
    for (const [n, { op }] of this.made.entries()) {
      const convo = await this.disk.read(stored(n))
      const text = textOf(n)
      if (convo === undefined || this.discarded.has(text)) continue
      if (op.fate === "refused") assert.ok(this.discarded.has(text.padEnd(longestPlaintext, ".")) || refusals.has(text), `${op.name} ${text} is in refused()`)
      else want.set(textIn(convo), [...(want.get(textIn(convo)) ?? []), text])
    }
    let arrived = 0
    for (const convo of this.service.convos.values()) {
      const texts = convo.plaintexts().map((plaintext) => textIn(plaintext.slice(idLength))).filter((text) => !this.discarded.has(text))
      assert.deepEqual(texts, want.get(convo.id) ?? [], "each message once, in the order of the calls")
      arrived += texts.length
    }
    return arrived
  }
}

function tick(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

// textIn returns the text of a message, without what makes it too long.
function textIn(content: Uint8Array): string {
  return new TextDecoder().decode(content).replace(/\.+$/, "")
}

async function play(seed: number): Promise<Run> {
  const run = new Run(chanceOf(seed))
  await run.play(60, 8)
  return run
}

// The platform's SHA-256 answers when it likes: the order of steps would be another one each time.
mock.method(crypto.subtle, "digest", async (_: string, bytes: Uint8Array) => new Uint8Array(createHash("sha256").update(bytes).digest()).buffer)

const seeds = Number(process.env.TEST_SEEDS ?? 60)
const first = Number(process.env.TEST_SEED ?? 1)

test(`every call settles or is refused, and every valid message arrives once: ${seeds} seeds from ${first}`, async () => {
  const sum = { calls: 0, restarts: 0, faults: 0, messages: 0, discards: 0 }
  for (let seed = first; seed < first + seeds; seed++) {
    try {
      const run = await play(seed)
      sum.messages += await run.check()
      sum.calls += run.made.length
      sum.restarts += run.restarts
      sum.faults += run.service.faults
      sum.discards += run.discarded.size
    } catch (err) {
      throw new Error(`TEST_SEED=${seed} TEST_SEEDS=1: ${String(err)}`, { cause: err })
    }
  }
  const { calls, restarts, faults, messages, discards } = sum
  console.log(`${seeds} runs, ${calls} calls, ${restarts} restarts, ${faults} faults, ${messages} messages, ${discards} discarded: 0 lost, 0 doubled, 0 blocked`)
})

test("a seed does the same each time", async () => {
  const [one, two] = [await play(first), await play(first)]
  assert.deepEqual([one.trace, one.service.trace], [two.trace, two.service.trace])
})
