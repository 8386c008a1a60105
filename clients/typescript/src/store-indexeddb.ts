// A store in a browser's IndexedDB.

import { StoreOpenError } from "./errors.js"
import type { Changes, NamedRecord, Range, Store } from "./store.js"

const table = "records"

/** How to open a store that can be open elsewhere. */
export interface OpenOptions {
  /** Waits while it is open elsewhere: a second tab takes over when the first one closes. */
  readonly wait?: boolean
  /** Ends the wait, which then rejects with the signal's reason. */
  readonly signal?: AbortSignal
}

/**
 * A store in one IndexedDB database. A write is one transaction with strict durability.
 *
 * It is open once at a time, in one of all tabs: a Web Lock says so. The browser releases it when the tab ends.
 */
export class IndexedDBStore implements Store {
  private constructor(
    private readonly database: IDBDatabase,
    private readonly unlock: () => void,
  ) {}

  /**
   * Opens the database `name`, and makes it if there is none.
   *
   * @throws StoreOpenError if it is open, in this tab or in another one, and `wait` is not set
   */
  static async open(name: string, options: OpenOptions = {}): Promise<IndexedDBStore> {
    const unlock = await lock(`mlsd-client:${name}`, options)
    try {
      const request = indexedDB.open(name, 1)
      request.onupgradeneeded = () => request.result.createObjectStore(table)
      return new IndexedDBStore(await resultOf(request), unlock)
    } catch (err) {
      unlock()
      throw err
    }
  }

  async read(name: string): Promise<Uint8Array | undefined> {
    return resultOf<Uint8Array | undefined>(this.reading().get(name))
  }

  async list(prefix: string): Promise<string[]> {
    const range = IDBKeyRange.bound(prefix, prefix + "\uffff")
    return (await resultOf(this.reading().getAllKeys(range))).map(String)
  }

  range({ from, to, limit, last = false }: Range): Promise<NamedRecord[]> {
    const range = IDBKeyRange.bound(from, to)
    if (last && limit !== undefined) return this.lastOf(range, limit)
    const records = this.reading()
    const [names, contents] = [records.getAllKeys(range, limit), records.getAll(range, limit) as IDBRequest<Uint8Array[]>]
    return Promise.all([resultOf(names), resultOf(contents)]).then(([all, values]) => all.map((name, i) => [String(name), values[i]!] as const))
  }

  // lastOf goes backwards: only a cursor can.
  private lastOf(range: IDBKeyRange, limit: number): Promise<NamedRecord[]> {
    return new Promise((resolve, reject) => {
      const found: NamedRecord[] = []
      const request = this.reading().openCursor(range, "prev")
      request.onerror = () => reject(reasonOf(request))
      request.onsuccess = () => {
        const cursor = request.result
        if (cursor !== null) found.push([String(cursor.key), cursor.value as Uint8Array])
        if (cursor === null || found.length === limit) resolve(found.reverse())
        else cursor.continue()
      }
    })
  }

  count({ from, to }: Pick<Range, "from" | "to">): Promise<number> {
    return resultOf(this.reading().count(IDBKeyRange.bound(from, to)))
  }

  write(changes: Changes): Promise<void> {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(table, "readwrite", { durability: "strict" })
      transaction.oncomplete = () => resolve()
      transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was aborted"))
      const records = transaction.objectStore(table)
      for (const [name, content] of changes) {
        if (content === undefined) records.delete(name)
        else records.put(content.slice(), name)
      }
    })
  }

  async close(): Promise<void> {
    this.database.close()
    this.unlock()
  }

  private reading(): IDBObjectStore {
    return this.database.transaction(table, "readonly").objectStore(table)
  }
}

function resultOf<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(reasonOf(request))
  })
}

function reasonOf({ error }: IDBRequest): Error {
  return error ?? new Error("IndexedDB gave no reason")
}

// lock takes a Web Lock, and returns what releases it.
function lock(name: string, { wait = false, signal }: OpenOptions): Promise<() => void> {
  if (typeof navigator === "undefined" || !("locks" in navigator)) return localLock(name, { wait, ...(signal && { signal }) })
  return new Promise((resolve, reject) => {
    const options: LockOptions = wait ? { ...(signal && { signal }) } : { ifAvailable: true }
    const held = navigator.locks.request(name, options, (granted) => {
      if (granted === null) throw new StoreOpenError("the store is open, perhaps in another tab")
      return new Promise<void>((release) => resolve(release))
    })
    held.catch(reject)
  })
}

// Where there are no Web Locks there are no tabs either, as in Node: the ends of those who hold each name.
const taken = new Map<string, Promise<void>>()

async function localLock(name: string, { wait = false, signal }: OpenOptions): Promise<() => void> {
  for (let before = taken.get(name); before !== undefined; before = taken.get(name)) {
    if (!wait) throw new StoreOpenError("the store is open")
    await (signal === undefined ? before : Promise.race([before, aborted(signal)]))
  }
  return new Promise((resolve) => {
    const ended = new Promise<void>((release) => resolve(() => {
      if (taken.get(name) === ended) taken.delete(name)
      release()
    }))
    taken.set(name, ended)
  })
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason)
    signal.addEventListener("abort", () => reject(signal.reason))
  })
}
