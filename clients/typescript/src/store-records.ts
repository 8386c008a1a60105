// Records in memory, in the order of their names.

import type { Changes, NamedRecord, Range } from "./store.js"

/** With more new names than this, sorting all is cheaper than putting each in its place. */
const fewNames = 32

/** The records of a store that has all of them in memory. */
export class Records {
  private readonly contents = new Map<string, Uint8Array>()
  private names: string[] = [] // sorted, some of which may be gone
  private fresh = new Set<string>() // not in names yet
  private gone = new Set<string>() // in names, and removed

  apply(changes: Changes): void {
    for (const [name, content] of changes) {
      if (content === undefined) this.remove(name)
      else this.put(name, content.slice())
    }
  }

  read(name: string): Uint8Array | undefined {
    return this.contents.get(name)
  }

  all(): Iterable<NamedRecord> {
    return this.contents
  }

  list(prefix: string): string[] {
    const [start, end] = this.places({ from: prefix, to: prefix + "\uffff" })
    return this.names.slice(start, end)
  }

  count(range: Pick<Range, "from" | "to">): number {
    const [start, end] = this.places(range)
    return Math.max(end - start, 0)
  }

  range({ from, to, limit = Infinity, last = false }: Range): NamedRecord[] {
    const [start, end] = this.places({ from, to })
    const names = last ? this.names.slice(Math.max(start, end - limit), end) : this.names.slice(start, Math.min(end, start + limit))
    return names.map((name) => [name, this.contents.get(name)!] as const)
  }

  private put(name: string, content: Uint8Array): void {
    if (!this.contents.has(name) && !this.gone.delete(name)) this.fresh.add(name)
    this.contents.set(name, content)
  }

  private remove(name: string): void {
    if (this.contents.delete(name) && !this.fresh.delete(name)) this.gone.add(name)
  }

  // places are those of the first name of a range, and behind the last one.
  private places({ from, to }: Pick<Range, "from" | "to">): [number, number] {
    this.sort()
    return [this.place(from, false), this.place(to, true)]
  }

  private sort(): void {
    if (this.gone.size > fewNames) this.names = this.names.filter((name) => !this.gone.has(name))
    else for (const name of this.gone) this.names.splice(this.place(name, false), 1)
    if (this.fresh.size > fewNames) this.names = [...this.names, ...this.fresh].sort()
    else for (const name of this.fresh) this.names.splice(this.place(name, false), 0, name)
    this.gone.clear()
    this.fresh.clear()
  }

  private place(wanted: string, behind: boolean): number {
    let [low, high] = [0, this.names.length]
    while (low < high) {
      const middle = (low + high) >>> 1
      const name = this.names[middle]!
      if (name < wanted || (behind && name === wanted)) low = middle + 1
      else high = middle
    }
    return low
  }
}
