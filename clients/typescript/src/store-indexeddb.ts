// A store in a browser's IndexedDB.

import type { Changes, Store } from "./store.js"

const table = "records"

/**
 * A store in one IndexedDB database. A write is one transaction with strict durability.
 *
 * One tab has the store at a time where the browser has Web Locks: {@link IndexedDBStore.open}
 * refuses a database that another tab has open.
 */
export class IndexedDBStore implements Store {
  private constructor(
    private readonly database: IDBDatabase,
    private readonly unlock: () => void,
  ) {}

  /** Opens the database `name`, and makes it if there is none. */
  static async open(name: string): Promise<IndexedDBStore> {
    const unlock = await lock(`mlsd-client:${name}`)
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
    request.onerror = () => reject(request.error ?? new Error("IndexedDB gave no reason"))
  })
}

// lock takes a Web Lock, and returns what releases it.
function lock(name: string): Promise<() => void> {
  if (typeof navigator === "undefined" || !("locks" in navigator)) return Promise.resolve(() => {})
  return new Promise((resolve, reject) => {
    const held = navigator.locks.request(name, { ifAvailable: true }, (taken) => {
      if (taken === null) throw new Error("another tab has the store open")
      return new Promise<void>((release) => resolve(release))
    })
    held.catch(reject)
  })
}
