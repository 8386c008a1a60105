// A store whose process is killed at a chosen write.

import type { Changes, NamedRecord, Range, Store } from "../../src/store.js"

/** The process has been killed. */
export class Killed extends Error {}

/** Passes everything on to a store until it is killed. Then nothing reaches the store any more. */
export class KillingStore implements Store {
  killed = false

  /**
   * @param writes so many writes are made before the kill
   * @param late the write at which it is killed is made too, and nobody hears of it
   */
  constructor(
    private readonly store: Store,
    private writes: number,
    private readonly late: boolean,
    private readonly onKill: () => void = () => {},
  ) {}

  /** Lets it make so many more writes before the kill. */
  killAfter(writes: number): void {
    this.writes = writes
  }

  kill(): never {
    this.killed = true
    this.onKill()
    throw new Killed()
  }

  private check(): void {
    if (this.killed) this.kill()
  }

  async read(name: string): Promise<Uint8Array | undefined> {
    this.check()
    return this.store.read(name)
  }

  async list(prefix: string): Promise<string[]> {
    this.check()
    return this.store.list(prefix)
  }

  async range(range: Range): Promise<NamedRecord[]> {
    this.check()
    return this.store.range(range)
  }

  async count(range: Range): Promise<number> {
    this.check()
    return this.store.count(range)
  }

  async write(changes: Changes): Promise<void> {
    this.check()
    if (this.writes-- > 0) return this.store.write(changes)
    if (this.late) await this.store.write(changes)
    this.kill()
  }

  async close(): Promise<void> {}
}
