// Accepted writes that are kept in case that the server loses them: docs/RECOVERY.md.

import type { Clock } from "./clock.js"
import type { SealedWrite } from "./outbox.js"
import { type Changes, get, put, type Store } from "./store.js"

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

/** The accepted writes of a device. */
export class Kept {
  private constructor(
    private readonly store: Store,
    private readonly clock: Clock,
    private readonly index: { name: string; at: number }[], // in the order of their acceptance
  ) {}

  static async open(store: Store, clock: Clock): Promise<Kept> {
    const names = await store.list(keptPrefix)
    return new Kept(store, clock, names.map((name) => ({ name, at: timeOf(name) })))
  }

  /** Adds to changes that a write is kept, and that those are removed which are too many or too old. */
  add(write: SealedWrite, changes: Changes): void {
    const at = this.clock.now()
    const last = this.index.at(-1)
    const name = nameOf(last === undefined ? at * 1000 : Math.max(at * 1000, numberOf(last.name) + 1))
    const kept: KeptWrite = { name, write, at }
    put(changes, name, kept)
    this.index.push({ name, at })
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
    for (const { name } of this.index) {
      const kept = await get<KeptWrite>(this.store, name)
      if (kept !== undefined && kept.write.queue === queue) all.push(kept)
    }
    return all
  }
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
