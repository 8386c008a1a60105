// A device that is switched on and off, and killed at any step: before or after a write of its store, a call or
// its answer.

import { Client, type ClientEvents, type ClientOptions } from "../../src/client.js"
import { NoAnswerError } from "../../src/errors.js"
import type { Did } from "../../src/ids.js"
import { TsMls } from "../../src/mls-ts.js"
import { hex } from "../../src/bytes.js"
import { type Changes, MemoryStore, type Store } from "../../src/store.js"
import type { Call, Transport } from "../../src/transport.js"
import { accountsOf } from "./everyone.js"
import { Killed } from "./killing.js"
import { PassingClock } from "./passing.js"
import { openPhone } from "./phone.js"

/** A life of a device. After its kill nothing reaches the disk or the service any more. */
class Life {
  private readonly over = new AbortController()
  private left = Number.POSITIVE_INFINITY
  /** Resolves when it is killed. */
  readonly death: Promise<void>

  constructor(
    private readonly disk: Store,
    private readonly way: Transport,
  ) {
    this.death = new Promise((resolve) => this.over.signal.addEventListener("abort", () => resolve()))
  }

  get killed(): boolean {
    return this.over.signal.aborted
  }

  killAfter(steps: number): void {
    this.left = steps
  }

  // step ends the life, if it is its last step.
  private step(): void {
    if (!this.killed && --this.left < 0) this.over.abort()
    if (this.killed) throw new Killed()
  }

  private check(): void {
    if (this.killed) throw new Killed()
  }

  store(): Store {
    return {
      read: async (name) => (this.check(), this.disk.read(name)),
      list: async (prefix) => (this.check(), this.disk.list(prefix)),
      range: async (range) => (this.check(), this.disk.range(range)),
      count: async (range) => (this.check(), this.disk.count(range)),
      write: async (changes: Changes) => {
        this.step()
        await this.disk.write(changes)
        this.step()
      },
      close: async () => {},
    }
  }

  transport(): Transport {
    const passed = async <T>(call: () => Promise<T>) => {
      try {
        this.step()
        const answer = await call()
        this.step()
        return answer
      } catch (err) {
        throw this.killed ? new NoAnswerError("the process is killed") : err
      }
    }
    return { call: (call: Call) => passed(() => this.way.call(call)) }
  }
}

/** How a device is opened. */
export type Opening = Omit<Partial<ClientOptions>, "events" | "transport" | "store" | "clock">

export class MortalDevice {
  readonly clock = new PassingClock(10) // faster, and a busy machine's answers come too late to tell the time
  private readonly disk = new MemoryStore()
  private life: Life | undefined
  private open: Client | undefined

  constructor(
    readonly did: Did,
    private readonly way: Transport,
    private readonly events: () => ClientEvents,
    private readonly opening: Opening,
  ) {}

  /** The client of the life that goes on. */
  get client(): Client | undefined {
    return this.life?.killed ? undefined : this.open
  }

  get isKilled(): boolean {
    return this.life?.killed === true
  }

  /** Lets this life make so many more steps. */
  killAfter(steps: number): void {
    this.life?.killAfter(steps)
  }

  /** Begins a life: the device opens, publishes KeyPackages and listens. */
  async start(): Promise<void> {
    const life = new Life(this.disk, this.way)
    this.life = life
    this.open = undefined
    this.open = await openPhone(this.did, life.store(), {
      ...this.opening, clock: this.clock, accounts: accountsOf(this.did), transport: life.transport(), events: this.events(),
    })
    this.open.listen()
  }

  /** Ends a life. */
  async stop(): Promise<void> {
    await this.open?.close()
    this.open = this.life = undefined
  }

  /** What a step of this life comes to: `undefined` if the life is killed before it has ended. */
  async outcome<T>(step: Promise<T>): Promise<{ value: T } | { err: unknown } | undefined> {
    const { life } = this
    const ended = step.then((value) => ({ value }), (err: unknown) => (life?.killed ? undefined : { err }))
    return Promise.race([ended, life?.death.then(() => undefined)])
  }

  /** The signature key of the device, in hexadecimal: it is also that of its leaves. */
  async key(): Promise<string> {
    const saved = await this.disk.read("test/device")
    return saved === undefined ? "" : hex((await TsMls.import(saved)).signatureKey)
  }
}
