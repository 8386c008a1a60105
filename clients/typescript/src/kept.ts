// Accepted writes that are kept in case that the server loses them: docs/RECOVERY.md.

import type { Clock } from "./clock.js"
import type { SealedWrite } from "./outbox.js"
import { names, type Pending } from "./records.js"
import { type Changes, get, getAll, put, type Store } from "./store.js"

/** Bounds of what is kept: so many writes of the device, and none for longer. */
const mostKept = 200
const longestKept = 7 * 24 * 3_600_000

const keptPrefix = "kept/"

/** An accepted write. */
export interface KeptWrite {
  readonly name: string // of its record
  readonly write: SealedWrite
  /** When it was accepted, in milliseconds of Unix time. */
  readonly at: number
  /** Set if the device has left the branch of the group in which the bytes can be read. */
  readonly forked?: true
}

/** What is remembered of a kept write: the rest is read when it is needed. */
interface Entry {
  readonly name: string
  readonly at: number
  readonly queue: string
  readonly digest: string | undefined
  readonly epoch: number
  /** Whether the log has shown it. */
  shown: boolean
}

/** The accepted writes of a device. */
export class Kept {
  private constructor(
    private readonly store: Store,
    private readonly clock: Clock,
    private readonly index: Entry[], // in the order of their acceptance
  ) {}

  static async open(store: Store, clock: Clock): Promise<Kept> {
    return new Kept(store, clock, (await getAll<KeptWrite>(store, keptPrefix)).map(entryOf))
  }

  /** Adds to changes that a write is kept, and that those are removed which are too many or too old. */
  add(write: SealedWrite, changes: Changes): void {
    const at = this.clock.now()
    const last = this.index.at(-1)
    const name = nameOf(last === undefined ? at * 1000 : Math.max(at * 1000, numberOf(last.name) + 1))
    const kept: KeptWrite = { name, write, at }
    put(changes, name, kept)
    this.index.push(entryOf(kept))
    while (this.index.length > mostKept || at - (this.index[0]?.at ?? at) > longestKept) {
      const oldest = this.index.shift()
      if (oldest !== undefined) changes.set(oldest.name, undefined)
    }
  }

  /** Adds to changes that a write is not kept any more. */
  drop(kept: KeptWrite, changes: Changes): void {
    changes.set(kept.name, undefined)
    const at = this.index.findIndex((other) => other.name === kept.name)
    if (at >= 0) this.index.splice(at, 1)
  }

  /** Adds to changes that the bytes of a write belong to a branch that the device has left. */
  fork(kept: KeptWrite, changes: Changes): void {
    put(changes, kept.name, { ...kept, forked: true })
  }

  /** The kept writes of a queue, in the order of their acceptance. */
  async of(queue: string): Promise<KeptWrite[]> {
    const all: KeptWrite[] = []
    for (const { name } of this.index.filter((one) => one.queue === queue)) {
      const kept = await get<KeptWrite>(this.store, name)
      if (kept !== undefined) all.push(kept)
    }
    return all
  }

  /**
   * Reports whether a log lacks what the service has accepted for it from this device: the service has lost it. The
   * caller has the convo's lock, and has read the log to its end.
   *
   * @param entered the epoch in which this device joined: it does not read what is older
   */
  async lacks(convo: string, entered: number): Promise<boolean> {
    const since = this.clock.now() - longestKept
    for (const entry of this.index) {
      const { queue, digest, epoch, at, shown } = entry
      if (shown || queue !== convo || digest === undefined || epoch < entered || at < since) continue
      const pending = await get<Pending>(this.store, names.pending(convo))
      entry.shown = pending?.digest !== digest && (await this.store.read(names.own(digest))) === undefined
      if (!entry.shown) return true
    }
    return false
  }
}

function entryOf({ name, write: { queue, sealed } }: KeptWrite): Entry {
  return { name, at: timeOf(name), queue, digest: sealed.digest, epoch: sealed.epoch ?? 0, shown: false }
}

function nameOf(number: number): string {
  return keptPrefix + String(number).padStart(16, "0")
}

function numberOf(name: string): number {
  return Number(name.slice(keptPrefix.length))
}

function timeOf(name: string): number {
  return Math.floor(numberOf(name) / 1000)
}
