// The outbox against a model of the service: from a seed, answers are lost, epochs move, quotas and
// rates are used up, and the process is killed at any write. Nothing is lost, nothing is doubled, the
// order of each queue stays, and no key of a message is used for two texts.

import assert from "node:assert/strict"
import { test } from "node:test"
import { AwayError, DiscardedError, NoAnswerError, XrpcError } from "../src/errors.js"
import { lexParse, lexStringify, type LexValue } from "../src/json.js"
import { Locks } from "../src/locks.js"
import { Outbox, type OutboxParts, type Plan, type SealedWrite, type Write, type Writer } from "../src/outbox.js"
import { type Changes, get, MemoryStore, put, type Store } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { chanceOf, testClock } from "./support/chance.js"
import { KillingStore } from "./support/killing.js"

interface Body {
  convo: string
  text: string
  key: string
  epoch: number
  generation: number // stands for the key that MLS encrypts one message with
}

/** A convo of the model, and what its log has. */
class Convo {
  epoch = 1
  readonly log: string[] = []
  readonly answers = new Map<string, { text: string; answer: string }>()
  readonly generations = new Map<string, string>()
}

/** The service as docs/IDEMPOTENCY.md describes it, behind a bad network. */
class ModelService implements Transport {
  readonly convos = new Map<string, Convo>()
  faults = 0

  constructor(
    private readonly chance: () => number,
    private readonly kill: () => void,
  ) {}

  convo(name: string): Convo {
    const convo = this.convos.get(name) ?? new Convo()
    this.convos.set(name, convo)
    return convo
  }

  async call(call: Call): Promise<string> {
    await new Promise((resolve) => setImmediate(resolve))
    this.kill()
    const roll = this.chance()
    if (roll < 0.06) throw this.fault(new NoAnswerError("the request is lost"))
    if (roll < 0.09) throw this.fault(new XrpcError(429, "RateLimitExceeded", "", 1000))
    if (roll < 0.12) throw this.fault(new XrpcError(503, "ServiceUnavailable", ""))
    if (roll < 0.14) throw this.fault(new XrpcError(409, "RequestInProgress", "", 1000))
    if (roll < 0.15) throw this.fault(new XrpcError(401, "InvalidToken", "token was used before"))
    if (roll < 0.16) {
      throw this.fault(new XrpcError(429, "QuotaExceeded", "quota x is used up: 1 of 1; resets at 2026-01-01T01:00:00Z"))
    }
    const answer = this.take(lexParse(call.body ?? "") as unknown as Body)
    this.kill()
    if (roll < 0.3) throw this.fault(new NoAnswerError("the answer is lost"))
    return answer
  }

  private fault(err: Error): Error {
    this.faults++
    return err
  }

  // take judges a write: the key first, then the epoch.
  private take(body: Body): string {
    const convo = this.convo(body.convo)
    const generation = `${body.epoch}/${body.generation}`
    const before = convo.generations.get(generation)
    assert.ok(before === undefined || before === body.text, `${generation} encrypted ${before} and ${body.text}`)
    convo.generations.set(generation, body.text)
    const replay = convo.answers.get(body.key)
    if (replay !== undefined) {
      assert.equal(replay.text, body.text, "a key names one request")
      return replay.answer
    }
    if (this.chance() < 0.1) convo.epoch++ // another member's commit
    if (body.epoch < convo.epoch) {
      this.faults++
      throw new XrpcError(409, "EpochMismatch", `epoch ${body.epoch} is stale; currentEpoch=${convo.epoch}`)
    }
    const answer = lexStringify({ seq: convo.log.push(body.text) })
    convo.answers.set(body.key, { text: body.text, answer })
    return answer
  }
}

interface Ratchet {
  epoch: number
  generation: number
}

/** What MLS is in a real client: each message takes the next generation of the epoch. */
class ModelWriter implements Writer {
  private keys = 0

  constructor(
    private readonly store: Store,
    private readonly service: ModelService,
    private readonly chance: () => number,
  ) {}

  lockOf(queue: string): string {
    return queue
  }

  async seal(write: Write): Promise<Plan> {
    const ratchet = await this.ratchet(write.queue)
    const generation = ratchet.generation + 1
    const changes: Changes = new Map()
    put(changes, `ratchet/${write.queue}`, { epoch: ratchet.epoch, generation })
    const key = `${this.keys++}-${this.chance()}`
    const body: Body = { convo: write.queue, text: String(write.content), key, epoch: ratchet.epoch, generation }
    return { changes, sealed: { method: "x.send", body: lexStringify({ ...body }), epoch: ratchet.epoch } }
  }

  async done(write: SealedWrite, answer: string) {
    const changes: Changes = new Map()
    put(changes, `done/${String(write.content)}`, {})
    return { result: lexParse(answer) as LexValue, changes }
  }

  async unseal(write: SealedWrite): Promise<Changes> {
    const changes: Changes = new Map()
    put(changes, `ratchet/${write.queue}`, { epoch: this.service.convo(write.queue).epoch, generation: 0 })
    return changes
  }

  async refused(): Promise<Changes> {
    throw new Error("nothing is refused here")
  }

  private async ratchet(queue: string): Promise<Ratchet> {
    return (await get<Ratchet>(this.store, `ratchet/${queue}`)) ?? { epoch: 1, generation: 0 }
  }
}

/** Everything that one run of the property did. */
interface Tally {
  kills: number
  faults: number
  messages: number
}

// play writes texts into two convos until all are accepted, through as many lives of the process as
// it takes.
async function play(seed: number, each: number, lives: number): Promise<Tally> {
  const chance = chanceOf(seed)
  const disk = new MemoryStore()
  let current: KillingStore
  const service = new ModelService(chance, () => {
    if (current.killed) current.kill()
  })
  const texts = ["a", "b"].flatMap((convo) => Array.from({ length: each }, (_, i) => ({ convo, text: `${convo}${i}` })))
  let kills = 0
  for (;;) {
    const mortal = kills < lives
    current = new KillingStore(disk, mortal ? Math.floor(chance() * 12) : Infinity, chance() < 0.5)
    try {
      await live(current, service, chance, texts)
      break
    } catch (err) {
      if (!current.killed) throw err
      kills++
    }
  }
  for (const name of ["a", "b"]) {
    const want = texts.filter((t) => t.convo === name).map((t) => t.text)
    assert.deepEqual(service.convo(name).log, want, "each text once, in the order in which it was written")
  }
  return { kills, faults: service.faults, messages: texts.length }
}

// live is one life of the process: it opens the outbox, writes what it has not written yet, and waits
// until all is accepted.
async function live(store: KillingStore, service: ModelService, chance: () => number, texts: { convo: string; text: string }[]) {
  const writer = new ModelWriter(store, service, chance)
  let failure: unknown
  const outbox = await Outbox.open({
    store, transport: service, writer, locks: new Locks(), clock: testClock(chance),
    events: { onFailure: (err) => (failure = err), onStop: (err) => (failure = err), onLost: (_, err) => (failure = err) },
  })
  try {
    outbox.resume()
    const waiting = new Set(outbox.pending().map((write) => write.content))
    for (const { convo, text } of texts) {
      if (waiting.has(text) || (await store.read(`done/${text}`)) !== undefined) continue
      await outbox.add(convo, "send", text)
    }
    await outbox.idle()
    if (failure !== undefined) throw failure
    assert.deepEqual(outbox.pending(), [])
  } finally {
    await outbox.close()
  }
}

test("an app hears of every state of a write", async () => {
  const store = new KillingStore(new MemoryStore(), Infinity, false)
  const service = new ModelService(() => 1, () => {})
  const answers: Error[] = [new NoAnswerError("lost"), new XrpcError(503, "", "", 7000)]
  const transport: Transport = {
    call: async (call) => {
      const failure = answers.shift()
      if (failure !== undefined) throw failure
      return service.call(call)
    },
  }
  const heard: string[] = []
  const outbox: Outbox = await Outbox.open({
    store, transport, writer: new ModelWriter(store, service, () => 1), locks: new Locks(), clock: testClock(() => 0),
    events: {
      onChange: (queue) => {
        const [write] = outbox.pending(queue)
        heard.push(write === undefined ? "done" : write.sealed === undefined ? "queued" : "sent")
      },
      onRetry: (write, wait, err) => heard.push(`${String(write.content)} again in ${wait}: ${String(err)}`),
    },
  })
  await (await outbox.add("a", "send", "text")).settled
  await outbox.idle()
  const retries = ["text again in 250: NoAnswerError: lost", "text again in 7000: XrpcError: 503 : "]
  assert.deepEqual(heard, ["queued", "sent", ...retries, "done"])
  await outbox.close()
})

/** A moment that a test waits for, or holds something back until. */
class Moment {
  come!: () => void
  readonly came = new Promise<void>((resolve) => (this.come = resolve))
}

// Each is a step at which a write is discarded: there it waits until the test has discarded it.
const steps = ["its request is being made", "the call is under way", "it waits for another attempt", "the end of its epoch is being read"] as const

for (const step of steps) {
  test(`a write is discarded while ${step}, and what stands behind it passes`, async () => {
    const store = new MemoryStore()
    const service = new ModelService(() => 1, () => {})
    const writer = new ModelWriter(store, service, () => 1)
    const [there, gone] = [new Moment(), new Moment()]
    const holdsBack = async (here: (typeof steps)[number], write: unknown, signal?: AbortSignal) => {
      if (step !== here || write !== "first") return
      there.come()
      await (signal ? new Promise((resolve) => signal.addEventListener("abort", resolve)) : gone.came)
    }
    const parts: OutboxParts = {
      store, locks: new Locks(), events: {},
      writer: Object.assign(Object.create(writer) as Writer, {
        seal: async (write: Write) => {
          await holdsBack(steps[0], write.content)
          return writer.seal(write)
        },
        unseal: async (write: SealedWrite) => {
          await holdsBack(steps[3], write.content)
          return writer.unseal(write)
        },
      }),
      transport: {
        call: async (call) => {
          const { text } = lexParse(call.body ?? "") as unknown as Body
          await holdsBack(steps[1], text, call.signal)
          if (text === "first" && step === steps[3]) throw new XrpcError(409, "EpochMismatch", "epoch 0 is stale")
          if (text === "first") throw new NoAnswerError("lost")
          return service.call(call)
        },
      },
      clock: { ...testClock(() => 0), sleep: (_, signal) => holdsBack(steps[2], "first", signal) },
    }
    const outbox = await Outbox.open(parts)
    const first = await outbox.add("a", "send", "first")
    await there.came
    const second = await outbox.add("a", "send", "second")
    await outbox.discard(first.write.id)
    gone.come()
    await assert.rejects(first.settled, DiscardedError)
    await second.settled
    assert.deepEqual(service.convo("a").log, ["second"])
    await outbox.close()
    assert.deepEqual((await Outbox.open(parts)).pending(), [], "the next life does not have it")
    assert.equal((await get<Ratchet>(store, "ratchet/a"))?.generation, step === steps[0] || step === steps[3] ? 1 : 2)
  })
}

/** An outbox of a model service, whose writer waits for another service before it makes "away". */
async function withAway(passes: (write: Write, before: Write) => boolean) {
  const store = new MemoryStore()
  const service = new ModelService(() => 1, () => {})
  const model = new ModelWriter(store, service, () => 1)
  const state = { isAway: true, asked: 0, locked: 0 }
  const writer: Writer = Object.assign(Object.create(model) as Writer, {
    passes,
    prepare: (write: Write) => {
      if (write.content !== "away") return undefined
      state.asked++
      return state.isAway ? Promise.reject(new AwayError("did:web:away: no answer", undefined, {})) : Promise.resolve()
    },
  })
  const parts: OutboxParts = { store, transport: service, writer, locks: new Locks(), clock: testClock(() => 0), events: {} }
  return { outbox: await Outbox.open(parts), service, state, parts }
}

test("a write that waits for another service does not hold up its queue", async () => {
  const { outbox, service, state, parts } = await withAway(() => true)
  const away = await outbox.add("a", "send", "away")
  await (await outbox.add("a", "send", "second")).settled
  await (await outbox.add("a", "send", "third")).settled
  assert.deepEqual(service.convo("a").log, ["second", "third"])
  assert.ok(state.asked > 1, "it was asked again")
  await outbox.close()
  const later = await Outbox.open(parts)
  later.resume()
  assert.deepEqual(later.pending("a").map(({ content }) => content), ["away"])
  state.isAway = false
  await later.settled(later.pending("a")[0]!)
  assert.deepEqual(service.convo("a").log, ["second", "third", "away"])
  await later.close()
  void away
})

test("what must not pass it stays behind it, and a discarded one lets all pass", async () => {
  const { outbox, service } = await withAway((write) => write.content !== "behind")
  const away = await outbox.add("a", "send", "away")
  const behind = await outbox.add("a", "send", "behind")
  await (await outbox.add("a", "send", "passes")).settled
  assert.deepEqual(service.convo("a").log, ["passes"])
  await outbox.discard(away.write.id)
  await behind.settled
  assert.deepEqual(service.convo("a").log, ["passes", "behind"])
  await outbox.idle()
  await outbox.close()
})

test("a write whose answer cannot be taken holds up its queue only, until it is discarded", async () => {
  const store = new MemoryStore()
  const service = new ModelService(() => 1, () => {})
  const writer = new ModelWriter(store, service, () => 1)
  const failing: Writer = Object.assign(Object.create(writer) as Writer, {
    done: (write: SealedWrite, answer: string) => {
      if (write.content === "first") throw new Error("cannot be taken")
      return writer.done(write, answer)
    },
  })
  const failed = new Moment()
  const outbox = await Outbox.open({
    store, transport: service, writer: failing, locks: new Locks(), clock: testClock(() => 0), events: { onFailure: failed.come },
  })
  const first = await outbox.add("a", "send", "first")
  await failed.came
  const behind = await outbox.add("a", "send", "behind")
  await (await outbox.add("b", "send", "elsewhere")).settled
  assert.deepEqual(outbox.pending("a").map(({ content }) => content), ["first", "behind"])
  await outbox.discard(first.write.id)
  await behind.settled
  await outbox.close()
})

const seeds = Number(process.env.TEST_SEEDS ?? 150)
const first = Number(process.env.TEST_SEED ?? 1)

test(`the outbox loses and doubles nothing: ${seeds} seeds from ${first}`, async () => {
  const sum: Tally = { kills: 0, faults: 0, messages: 0 }
  for (let seed = first; seed < first + seeds; seed++) {
    const tally = await play(seed, 15, 20).catch((err) => {
      throw new Error(`seed ${seed}: TEST_SEED=${seed} TEST_SEEDS=1`, { cause: err })
    })
    for (const name of ["kills", "faults", "messages"] as const) sum[name] += tally[name]
  }
  console.log(`${seeds} runs, ${sum.messages} messages, ${sum.faults} faults, ${sum.kills} kills: 0 lost, 0 doubled`)
})

test("the outbox loses and doubles nothing of 1,000 messages", async () => {
  const tally = await play(first, 500, 200)
  console.log(`1 run, ${tally.messages} messages, ${tally.faults} faults, ${tally.kills} kills: 0 lost, 0 doubled`)
})
