// The durable outbox. A write goes through these states:
//
//   queued ──seal──▶ sent ──2xx──▶ done
//     ▲               │ │
//     └──its epoch is over  └──refused──▶ refused
//
// A queued write is refused too if its request cannot be made.
//
// queued: what shall be written is stored, and no bytes yet. sent: bytes and key are stored, and an
// attempt may have arrived; only these bytes are sent, until the server has said what became of them.

import { waitOf } from "./api.js"
import { type Clock, pause } from "./clock.js"
import { AwayError, ClosedError, DiscardedError, NoAnswerError, OutOfStepError, resetsAt, SealError, StoreError, successorIn, verdictOf, XrpcError } from "./errors.js"
import type { LexValue } from "./json.js"
import type { Did } from "./ids.js"
import { Kept } from "./kept.js"
import type { Locks } from "./locks.js"
import type { Reach } from "./reach.js"
import { type Changes, getAll, put, type Store } from "./store.js"
import type { Transport } from "./transport.js"

/** Something to be written to the service. */
export interface Write {
  /** The outbox's own id. Later writes have greater ids. */
  readonly id: string
  /** Writes of one queue are sent one after the other: the convo's id, or another name. */
  readonly queue: string
  /** Tells the {@link Writer} what it is. */
  readonly kind: string
  /** What shall be written: enough to make the request, also a second time in another epoch. */
  readonly content: LexValue
  /** Milliseconds of Unix time. */
  readonly createdAt: number
  /** The request, once it is made. Then an attempt may have arrived. */
  readonly sealed?: Sealed
}

/** The request of a write. It is sent byte for byte, as often as it takes. */
export interface Sealed {
  /** The method's NSID. */
  readonly method: string
  /** The input, JSON. It has the key. */
  readonly body: string
  /** The epoch of a message, or the epoch that a commit creates. */
  readonly epoch?: number
  /** The SHA-256 of the message or the commit, in hexadecimal. */
  readonly digest?: string
}

/** A write whose request is made. */
export type SealedWrite = Write & { readonly sealed: Sealed }

/** What a writer makes of a write: a request, or a result if there is nothing to send. */
export type Plan =
  | { readonly sealed: Sealed; readonly changes: Changes }
  | { readonly result: LexValue; readonly changes: Changes }

/**
 * Makes the requests of an outbox. `check` runs before anything is stored. `seal`, `done`, `unseal` and `refused` run with the lock of the
 * write's queue, and their changes are stored in one step with the write's new state. Only a `seal`
 * that {@link waits} runs without the lock.
 */
export interface Writer {
  /** Throws if a write can never be sealed or accepted, whatever the service has. */
  check?(queue: string, kind: string, content: LexValue): Promise<void>
  /** Reports whether `seal` waits for other members. */
  waits?(write: Write): boolean
  /** Reports whether a write is a commit, or a reset: it waits for the end of a dispute. */
  commits?(write: Write): boolean
  /** Reports whether a write goes into the convo that goes on in the place of its own. */
  moves?(write: Write): boolean
  /**
   * Asks other services for what `seal` needs, without the lock. What it throws an {@link AwayError} for is
   * asked again; after a while other writes go ahead, if {@link passes} lets them. `undefined`: nothing.
   */
  prepare?(write: Write): Promise<void> | undefined
  /** Reports whether a write may go ahead of an earlier one of its queue that waits for another service. */
  passes?(write: Write, before: Write): boolean
  /** What a refused write shall be instead, if another request for the same can be accepted. */
  anew?(write: SealedWrite, err: XrpcError): LexValue | undefined
  /** The lock of a queue. Queues that change the same records have one lock. */
  lockOf(queue: string): string
  /** Makes the request of a write, under a new key. */
  seal(write: Write): Promise<Plan>
  /** Says what an accepted write changes, and its result for the app. */
  done(write: SealedWrite, answer: string): Promise<{ result: LexValue; changes: Changes }>
  /**
   * Takes back what `seal` changed, after the server refused the request because its epoch is over.
   * The write is sealed again afterwards.
   */
  unseal(write: SealedWrite): Promise<Changes>
  /** Says what a refused write changes. */
  refused(write: Write, err: XrpcError | SealError): Promise<Changes>
}

/**
 * A write that the service refused for good, or whose request cannot be made. It stays until the app
 * discards it.
 */
export interface RefusedWrite {
  readonly write: Write
  /** Of the answer, or 0 if the request cannot be made. */
  readonly status: number
  /** Of the answer, or the name of the {@link SealError}. */
  readonly error: string
  readonly text: string
}

/** What an app hears of an outbox. */
export interface OutboxEvents {
  /**
   * A write of a queue has another state: it was added, its request was made, or it was accepted or
   * refused. `pending`, `kept` and `refused` say so already.
   */
  onChange?(queue: string): void
  /**
   * An attempt has failed for now. The next one, of the same bytes, begins in `wait` milliseconds, or earlier
   * if the service shows before that it can be reached.
   */
  onRetry?(write: Write, wait: number, err: unknown): void
  /**
   * The account may not use the service now, or is not signed in. Call `resume` to try again. Another
   * service than the person's own is named: only its convos wait.
   */
  onStop?(err: XrpcError, service?: Did): void
  /** The server has lost writes of a queue, which waits for `resume`: docs/RECOVERY.md. */
  onLost?(queue: string, err: Error): void
  /** A commit waits for the end of a dispute, after which it is made anew: docs/clients/DISPUTES.md. */
  onHeld?(write: Write, err: XrpcError): void
  /** The convo of a queue was reset, and its writes wait: see {@link Outbox.move}. */
  onMoved?(queue: string, successor: string): void
  /** A write waits until a time, in milliseconds of Unix time, because a quota is used up. */
  onQuota?(write: Write, until: number, err: XrpcError): void
  /**
   * After a {@link StoreError} the outbox sends nothing until it is opened again. After another error
   * the queue of the write waits for `resume`.
   */
  onFailure?(err: unknown): void
}

/** What an outbox works with. */
export interface OutboxParts {
  readonly store: Store
  readonly transport: Transport
  readonly writer: Writer
  readonly locks: Locks
  readonly clock: Clock
  readonly events: OutboxEvents
  /** The service of a convo, if it is another one than the person's own. */
  readonly serviceOf?: (convo: string) => Did | undefined
  /** Whether the service of a convo can be reached. A sign of that ends a wait for it. */
  readonly reachOf?: (convo: string) => Reach
  /** The service's time, in milliseconds of Unix time. By default that of the clock. */
  readonly now?: () => number
}

const outboxPrefix = "outbox/"
const refusedPrefix = "refused/"
const otherServicesTimeout = 5_000 // so long a queue waits for other services before other writes go ahead
const heldFor = 30_000 // if nobody says before that a dispute is over
const quotaWait = 3_600_000 // if the answer does not say how long, and at most in one go

/** A write that is stored. */
export interface Added {
  readonly write: Write
  /**
   * Resolves to the write's result. Rejects with an {@link XrpcError} or a {@link SealError} if it is
   * refused for good, and with a {@link DiscardedError} if it is discarded before.
   */
  readonly settled: Promise<LexValue>
}

/** A write that waits for its end. */
interface Waiting {
  readonly settled: Promise<LexValue>
  readonly discarded: AbortController
  resolve(result: LexValue): void
  reject(err: unknown): void
}

/** The durable outbox. See the package's README. */
export class Outbox {
  private readonly queues = new Map<string, Write[]>()
  private readonly driving = new Map<string, Promise<void>>()
  private readonly waiting = new Map<string, Waiting>()
  private readonly parked = new Set<string>()
  private readonly held = new Map<string, AbortController>()
  private readonly aside = new Map<string, Promise<void>>() // writes that wait for other services
  private readonly prepared = new Map<string, Promise<boolean>>() // writes that have waited
  private readonly closing = new AbortController()
  private wake = new AbortController()
  private stopped: XrpcError | StoreError | undefined
  private lastId = 0

  private constructor(
    private readonly parts: OutboxParts,
    /** The accepted writes that are kept in case that the server loses them. */
    readonly kept: Kept,
  ) {}

  /** Opens the outbox of a store. It sends nothing before {@link resume}. */
  static async open(parts: OutboxParts): Promise<Outbox> {
    const outbox = new Outbox(parts, await Kept.open(parts.store, parts.clock))
    for (const write of await getAll<Write>(parts.store, outboxPrefix)) outbox.enqueue(write)
    for (const name of await parts.store.list(refusedPrefix)) outbox.passId(name.slice(refusedPrefix.length))
    return outbox
  }

  /**
   * Checks a write, stores it, with other changes in the same step, and sends it as soon as it can. If
   * it rejects, nothing is stored.
   */
  async add(queue: string, kind: string, content: LexValue, changes: Changes = new Map()): Promise<Added> {
    // The lock keeps the order of the calls.
    await this.parts.locks.run(`add/${queue}`, async () => this.parts.writer.check?.(queue, kind, content))
    const now = this.parts.clock.now()
    this.lastId = Math.max(this.lastId + 1, now * 1000)
    const write: Write = { id: String(this.lastId).padStart(16, "0"), queue, kind, content, createdAt: now }
    put(changes, outboxPrefix + write.id, write)
    await this.save(changes)
    const settled = this.enqueue(write)
    this.parts.events.onChange?.(queue)
    this.drive(queue)
    return { write, settled }
  }

  /** The end of a write of {@link pending}: see {@link Added}. */
  settled(write: Write): Promise<LexValue> {
    const waiting = this.waiting.get(write.id)
    return waiting?.settled ?? Promise.reject(new Error(`no write ${write.id} is in the outbox`))
  }

  /**
   * Waits for a write's end, or for the outbox's.
   *
   * @throws ClosedError if the outbox is closed first: the write waits for the next life
   */
  async outcome({ settled }: Pick<Added, "settled">): Promise<LexValue> {
    const { signal } = this.closing
    const over = new AbortController()
    const closed = new Promise<never>((_, reject) => {
      const end = () => reject(new ClosedError("the write waits in the store"))
      if (signal.aborted) end()
      signal.addEventListener("abort", end, { signal: over.signal })
    })
    return Promise.race([settled, closed]).finally(() => over.abort())
  }

  /** The writes that the service has not accepted yet, in their order. */
  pending(queue?: string): Write[] {
    const all = queue === undefined ? [...this.queues.values()].flat() : (this.queues.get(queue) ?? [])
    return [...all].sort((a, b) => (a.id < b.id ? -1 : 1))
  }

  /** The writes that were refused for good. */
  refused(): Promise<RefusedWrite[]> {
    return getAll<RefusedWrite>(this.parts.store, refusedPrefix)
  }

  /**
   * Forgets a refused or a pending write. A pending one whose request is made may have arrived: then
   * the log shows it.
   */
  async discard(id: string): Promise<void> {
    const write = this.pending().find((one) => one.id === id)
    const waiting = write && this.remove(write) // a step that is under way stores nothing of it any more
    await this.save(new Map([[refusedPrefix + id, undefined], [outboxPrefix + id, undefined]]))
    if (write === undefined) return
    const discarded = new DiscardedError(`write ${id} was discarded`)
    waiting?.reject(discarded)
    waiting?.discarded.abort(discarded)
    this.parts.events.onChange?.(write.queue)
    this.parked.delete(write.queue)
    this.drive(write.queue)
  }

  /**
   * Puts the messages that wait in a queue into another one, behind what waits there. One whose request
   * is made may have arrived: it and those behind it stay until the service has answered.
   */
  async move(from: string, to: string): Promise<void> {
    await this.parts.locks.run(this.parts.writer.lockOf(from), async () => {
      const all = this.queues.get(from) ?? []
      const made = all.findIndex(isSealed)
      const moved = (made < 0 ? all : all.slice(0, made)).filter((write) => this.parts.writer.moves?.(write))
      const changes: Changes = new Map()
      for (const write of moved) put(changes, outboxPrefix + write.id, { ...write, queue: to })
      await this.save(changes)
      const rest = all.filter((write) => !moved.includes(write))
      if (rest.length > 0) this.queues.set(from, rest)
      else this.queues.delete(from)
      if (moved.length > 0) this.queues.set(to, [...(this.queues.get(to) ?? []), ...moved.map((write) => ({ ...write, queue: to }))])
    })
    for (const queue of [from, to]) {
      this.parts.events.onChange?.(queue)
      this.resume(queue)
    }
  }

  /** Sends what waits, at once: after a start, a stop, or when the network is back. */
  resume(queue?: string): void {
    if (queue === undefined) this.parked.clear()
    else this.parked.delete(queue)
    if (this.stopped instanceof XrpcError) this.stopped = undefined
    this.wake.abort()
    this.wake = new AbortController()
    for (const name of this.queues.keys()) this.drive(name)
  }

  /**
   * Holds the commits of a queue back whose request is not made: until {@link release}, or for 30 s.
   * Other writes of the queue go on.
   */
  hold(queue: string): void {
    this.held.get(queue)?.abort()
    const held = new AbortController()
    this.held.set(queue, held)
    const signal = AbortSignal.any([held.signal, this.closing.signal])
    void this.parts.clock.sleep(heldFor, signal).then(() => !signal.aborted && this.release(queue))
  }

  /** Sends the commits that {@link hold} has held back. */
  release(queue: string): void {
    this.held.get(queue)?.abort()
    if (this.held.delete(queue)) this.drive(queue)
  }

  /** Waits until every queue is empty, waits for `resume` or `release`, or the outbox is closed. */
  async idle(): Promise<void> {
    while (this.driving.size + this.aside.size > 0) await Promise.all([...this.driving.values(), ...this.aside.values()])
  }

  /** Ends all sending. What waits stays in the store. */
  async close(): Promise<void> {
    this.closing.abort()
    this.wake.abort()
    await this.idle()
  }

  private enqueue(write: Write): Promise<LexValue> {
    this.passId(write.id)
    this.queues.set(write.queue, [...(this.queues.get(write.queue) ?? []), write])
    const { promise, resolve, reject } = deferred<LexValue>()
    promise.catch(() => {}) // nobody need wait for it
    this.waiting.set(write.id, { settled: promise, discarded: new AbortController(), resolve, reject })
    return promise
  }

  // passId makes later writes have greater ids, also if the clock went back since the last life.
  private passId(id: string): void {
    this.lastId = Math.max(this.lastId, Number(id))
  }

  private drive(queue: string): void {
    if (this.driving.has(queue)) return
    const driven = this.run(queue).finally(() => {
      this.driving.delete(queue)
      if (this.next(queue) !== undefined && this.mayRun(queue)) this.drive(queue) // it came at the last moment
    })
    this.driving.set(queue, driven)
  }

  private async run(queue: string): Promise<void> {
    try {
      for (let attempt = 1; this.mayRun(queue); ) {
        const write = this.next(queue)
        if (write === undefined) return
        attempt = (await this.step(write, attempt)) ? 1 : attempt + 1
      }
    } catch (err) {
      if (err instanceof StoreError) this.stopped = err
      else this.parked.add(queue)
      this.parts.events.onFailure?.(err)
    }
  }

  // next is the first write of a queue that is not held back, and does not wait for other services.
  private next(queue: string): Write | undefined {
    const { writer } = this.parts
    const all = this.queues.get(queue) ?? []
    const isAside = ({ id }: Write) => this.aside.has(id)
    const mayGo = (write: Write) => isSealed(write) || !this.held.has(queue) || !writer.commits?.(write)
    const mayPass = (write: Write, at: number) => all.slice(0, at).every((before) => !isAside(before) || writer.passes?.(write, before))
    return all.find((write, at) => mayGo(write) && !isAside(write) && mayPass(write, at))
  }

  private mayRun(queue: string): boolean {
    return this.stopped === undefined && !this.closing.signal.aborted && !this.parked.has(queue)
  }

  // step moves a write on, and reports whether it moved.
  private async step(write: Write, attempt: number): Promise<boolean> {
    try {
      if (isSealed(write)) await this.send(write)
      else if (!(await this.isPrepared(write))) return true
      else if (this.parts.writer.waits?.(write)) await this.seal(write)
      else await this.locked(write, () => this.seal(write))
      return true
    } catch (err) {
      try {
        return await this.react(write, err, attempt)
      } catch (second) {
        return this.react(write, second, attempt) // what ended the epoch could not be read
      }
    }
  }

  // isPrepared prepares a write. If that takes long, it puts the write aside and returns false.
  private async isPrepared(write: Write): Promise<boolean> {
    const before = this.prepared.get(write.id)
    this.prepared.delete(write.id)
    const begun = before === undefined ? this.parts.writer.prepare?.(write) : undefined
    if (begun === undefined) return before ?? true
    const done = new AbortController()
    const preparing = this.prepare(write, begun).finally(() => done.abort()).then(() => true)
    const late = this.parts.clock.sleep(otherServicesTimeout, AbortSignal.any([done.signal, this.closing.signal]))
    if (await Promise.race([preparing, late.then(() => done.signal.aborted)])) return preparing
    const after = preparing.then(() => {}, () => {}).then(() => {
      if (this.waiting.has(write.id)) this.prepared.set(write.id, preparing) // its next step gets the error
      this.aside.delete(write.id)
      this.drive(write.queue)
    })
    this.aside.set(write.id, after)
    return false
  }

  private async prepare(write: Write, begun: Promise<void>): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await (attempt === 1 ? begun : this.parts.writer.prepare?.(write))?.catch(sealFailed)
      } catch (err) {
        if (!(err instanceof AwayError) || this.closing.signal.aborted || !this.waiting.has(write.id)) throw err
        const wait = waitOf(err, this.parts.clock, attempt)
        this.parts.events.onRetry?.(write, wait, err)
        await this.pause(write, wait)
      }
    }
  }

  private async seal(write: Write): Promise<void> {
    const plan = await this.parts.writer.seal(write).catch(sealFailed)
    if (!this.waiting.has(write.id)) return
    if ("result" in plan) return this.finish(write, plan.result, plan.changes)
    await this.replace({ ...write, sealed: plan.sealed }, plan.changes)
  }

  private async send(write: SealedWrite): Promise<void> {
    const { method, body } = write.sealed
    const signal = this.until(write, this.closing.signal)
    const answer = await this.parts.transport.call({ method, body, signal })
    await this.locked(write, async () => {
      const { result, changes } = await this.parts.writer.done(write, answer)
      this.kept.add(write, changes)
      await this.finish(write, result, changes)
    })
  }

  private async react(write: Write, err: unknown, attempt: number): Promise<boolean> {
    if (this.closing.signal.aborted) return false
    if (!this.waiting.has(write.id)) return true // it was discarded
    const verdict = verdictOf(err)
    if (verdict === "again") {
      const wait = waitOf(err, this.parts.clock, attempt)
      const sign = this.parts.reachOf?.(this.parts.writer.lockOf(write.queue)).after(err)
      this.parts.events.onRetry?.(write, wait, err)
      await this.pause(write, wait, sign)
      return false
    }
    if (verdict === "lost") {
      this.parked.add(write.queue)
      this.parts.events.onLost?.(write.queue, err instanceof Error ? err : new Error(String(err)))
      return false
    }
    if (err instanceof XrpcError) {
      switch (verdict) {
        case "later":
          await this.waitForQuota(write, err)
          return false
        case "stale":
          if (!isSealed(write)) break
          await this.locked(write, () => this.unseal(write))
          return true
        case "disputed":
          if (!isSealed(write) || !this.parts.writer.commits?.(write)) break // the server refuses commits only
          this.hold(write.queue)
          await this.locked(write, () => this.unseal(write))
          this.parts.events.onHeld?.(write, err)
          return true
        case "moved":
          await this.locked(write, () => this.hand(write, err))
          this.parked.add(write.queue)
          this.parts.events.onMoved?.(write.queue, successorIn(err.text) ?? "")
          return true
        case "stop":
          this.stop(write, err)
          return false
        case "refused": {
          const content = isSealed(write) ? this.parts.writer.anew?.(write, err) : undefined
          if (!isSealed(write) || content === undefined) break
          await this.locked(write, () => this.unseal(write, content))
          return true
        }
      }
    } else if (!(err instanceof SealError)) throw err
    await this.locked(write, () => this.refuse(write, err))
    return true
  }

  // stop ends all sending. If another service than the person's own refuses, only its queue waits.
  private stop({ queue }: Write, err: XrpcError): void {
    const service = this.parts.serviceOf?.(this.parts.writer.lockOf(queue))
    if (service === undefined) this.stopped = err
    else this.parked.add(queue)
    this.parts.events.onStop?.(err, service)
  }

  // hand takes a message back that goes into another convo, and refuses every other write.
  private async hand(write: Write, err: XrpcError): Promise<void> {
    if (!this.parts.writer.moves?.(write)) return this.refuse(write, err)
    const { sealed: _, ...queued } = write
    await this.replace(queued, await this.parts.writer.refused(write, err))
  }

  private async unseal(write: SealedWrite, content = write.content): Promise<void> {
    const { sealed: _, ...queued } = write
    await this.replace({ ...queued, content }, await this.parts.writer.unseal(write))
  }

  private async refuse(write: Write, err: XrpcError | SealError): Promise<void> {
    const changes = await this.parts.writer.refused(write, err)
    const { status, error, text } = err instanceof XrpcError ? err : { status: 0, error: err.name, text: err.message }
    const refused: RefusedWrite = { write, status, error, text }
    if (this.waiting.has(write.id)) put(changes, refusedPrefix + write.id, refused)
    changes.set(outboxPrefix + write.id, undefined)
    await this.save(changes)
    this.remove(write)?.reject(err)
    this.parts.events.onChange?.(write.queue)
  }

  private async finish(write: Write, result: LexValue, changes: Changes): Promise<void> {
    changes.set(outboxPrefix + write.id, undefined)
    await this.save(changes)
    this.remove(write)?.resolve(result)
    this.parts.events.onChange?.(write.queue)
  }

  private async replace(write: Write, changes: Changes): Promise<void> {
    if (this.waiting.has(write.id)) put(changes, outboxPrefix + write.id, write)
    await this.save(changes)
    const queue = this.queues.get(write.queue) ?? []
    if (this.waiting.has(write.id)) this.queues.set(write.queue, queue.map((other) => (other.id === write.id ? write : other)))
    this.parts.events.onChange?.(write.queue)
  }

  private remove(write: Write): Waiting | undefined {
    const rest = (this.queues.get(write.queue) ?? []).filter((other) => other.id !== write.id)
    if (rest.length > 0) this.queues.set(write.queue, rest)
    else this.queues.delete(write.queue)
    const waiting = this.waiting.get(write.id)
    this.waiting.delete(write.id)
    return waiting
  }

  private async waitForQuota(write: Write, err: XrpcError): Promise<void> {
    const { clock, events, now = () => clock.now() } = this.parts
    const until = resetsAt(err) ?? now() + (err.retryAfter ?? quotaWait)
    events.onQuota?.(write, until, err)
    await this.pause(write, Math.min(Math.max(until - now(), 1000), quotaWait))
  }

  private pause(write: Write, ms: number, sign?: AbortSignal): Promise<void> {
    return pause(this.parts.clock, ms, this.until(write, this.wake.signal), sign)
  }

  // until is a signal that aborts with another one, or when a write is discarded.
  private until(write: Write, signal: AbortSignal): AbortSignal {
    const discarded = this.waiting.get(write.id)?.discarded.signal
    return discarded === undefined ? signal : AbortSignal.any([signal, discarded])
  }

  private locked(write: Write, fn: () => Promise<void>): Promise<void> {
    return this.parts.locks.run(this.parts.writer.lockOf(write.queue), fn)
  }

  // save stores changes. After a failure nobody knows what is stored, so nothing is sent any more.
  private async save(changes: Changes): Promise<void> {
    if (this.stopped instanceof StoreError) throw this.stopped
    try {
      await this.parts.store.write(changes)
    } catch (err) {
      this.stopped = err instanceof StoreError ? err : new StoreError("the store failed", { cause: err })
      throw this.stopped
    }
  }
}

// passes reports whether an error of a seal says by its kind what is to be done.
function passes(err: unknown): boolean {
  return [XrpcError, NoAnswerError, OutOfStepError, SealError, StoreError].some((kind) => err instanceof kind)
}

function sealFailed(err: unknown): never {
  throw passes(err) ? err : new SealError(String(err), { cause: err })
}

function isSealed(write: Write): write is SealedWrite {
  return write.sealed !== undefined
}

function deferred<T>() {
  let resolve!: (value: T) => void
  let reject!: (err: unknown) => void
  const promise = new Promise<T>((yes, no) => ([resolve, reject] = [yes, no]))
  return { promise, resolve, reject }
}
