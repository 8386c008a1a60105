// Durable storage of a client.

import { StoreError, StoreOpenError } from "./errors.js"
import { lexParse, lexStringify, type LexValue } from "./json.js"
import { Records } from "./store-records.js"

/** The records that one write changes, by name. `undefined` removes a record. */
export type Changes = Map<string, Uint8Array | undefined>

/** A record with its name. */
export type NamedRecord = readonly [name: string, content: Uint8Array]

/** Records whose names are between two, or are one of them. */
export interface Range {
  readonly from: string
  readonly to: string
  /** At most so many, from 1 on: the first ones, or the last ones if `last` is set. */
  readonly limit?: number
  readonly last?: boolean
}

/**
 * Storage of one device. A client writes the state of MLS and the writes that it is going to send
 * into the same store, because they must change together.
 *
 * The package has three: {@link MemoryStore}, `FileStore` of `mlsd-client/node` and
 * {@link IndexedDBStore}. An app with a database of its own can implement this interface.
 */
export interface Store {
  /** Returns a record, or `undefined` if there is none. */
  read(name: string): Promise<Uint8Array | undefined>
  /** Returns the names that begin with `prefix`, in the order of their UTF-16 code units. */
  list(prefix: string): Promise<string[]>
  /** Returns the records of a range in the order of their names, all as they are at one moment. */
  range(range: Range): Promise<NamedRecord[]>
  /** Counts the records whose names are in a range. */
  count(range: Pick<Range, "from" | "to">): Promise<number>
  /**
   * Changes all given records, or none, in the order of the calls. When it returns, the changes survive the end of the process.
   * After an error nobody knows whether they were made: the caller must open the store again.
   */
  write(changes: Changes): Promise<void>
  /** Releases what the store holds. */
  close(): Promise<void>
}

// The stores that clients have, of this process.
const owned = new WeakSet<Store>()

/**
 * The store of one client. Its failures are {@link StoreError}s. A second client over the same store would
 * use keys of MLS twice, so there is none before {@link release}; after it nothing is written here.
 */
export class OwnedStore implements Store {
  private readonly writing = new Set<Promise<void>>()
  private refusal: string | undefined

  private constructor(private readonly store: Store) {}

  /**
   * Takes a store for a client. One that is taken already is returned as it is: for who opens a client with it.
   *
   * @throws StoreOpenError if another client has it
   */
  static take(store: Store): OwnedStore {
    if (store instanceof OwnedStore) return store
    if (owned.has(store)) throw new StoreOpenError("another client has the store: close it first")
    owned.add(store)
    return new OwnedStore(store)
  }

  read(name: string): Promise<Uint8Array | undefined> {
    return this.store.read(name).catch(failed)
  }

  list(prefix: string): Promise<string[]> {
    return this.store.list(prefix).catch(failed)
  }

  range(range: Range): Promise<NamedRecord[]> {
    return this.store.range(range).catch(failed)
  }

  count(range: Pick<Range, "from" | "to">): Promise<number> {
    return this.store.count(range).catch(failed)
  }

  async write(changes: Changes): Promise<void> {
    if (this.refusal !== undefined) throw new StoreError(this.refusal)
    const writing = this.store.write(changes)
    this.writing.add(writing)
    await writing.catch(failed).finally(() => this.writing.delete(writing))
  }

  close(): Promise<void> {
    return this.store.close()
  }

  /** Removes all records. What is written after the call is refused. */
  async end(): Promise<void> {
    this.refusal = "this device has signed out, and its store is empty"
    await Promise.allSettled(this.writing)
    await this.store.write(new Map((await this.list("")).map((name) => [name, undefined]))).catch(failed)
  }

  /** Gives the store back, once all is written that was begun. */
  async release(): Promise<void> {
    this.refusal ??= "the client is closed"
    await Promise.allSettled(this.writing)
    owned.delete(this.store)
  }
}

function failed(err: unknown): never {
  throw new StoreError("the store failed", { cause: err })
}

/** A store that ends with the process, for tests. */
export class MemoryStore implements Store {
  private readonly records = new Records()

  async read(name: string): Promise<Uint8Array | undefined> {
    return this.records.read(name)
  }

  async list(prefix: string): Promise<string[]> {
    return this.records.list(prefix)
  }

  async range(range: Range): Promise<NamedRecord[]> {
    return this.records.range(range)
  }

  async count(range: Pick<Range, "from" | "to">): Promise<number> {
    return this.records.count(range)
  }

  async write(changes: Changes): Promise<void> {
    this.records.apply(changes)
  }

  async close(): Promise<void> {}
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

/** Adds a record to changes, as JSON with bytes in the form of the AT Protocol's data model. */
export function put(changes: Changes, name: string, value: object): void {
  changes.set(name, encoder.encode(lexStringify(value as LexValue)))
}

/** Reads a record that {@link put} wrote. Nothing but this client writes it: it is not validated. */
export async function get<T extends object>(store: Store, name: string): Promise<T | undefined> {
  const content = await store.read(name)
  return content && parse<T>(content)
}

/** Reads all records whose names begin with `prefix`, in the order of their names. */
export function getAll<T extends object>(store: Store, prefix: string): Promise<T[]> {
  return getRange<T>(store, { from: prefix, to: endOf(prefix) })
}

/** Reads the records of a range, in the order of their names. */
export async function getRange<T extends object>(store: Store, range: Range): Promise<T[]> {
  return (await store.range(range)).map(([, content]) => parse<T>(content))
}

/** A name behind all that begin with a prefix. */
export function endOf(prefix: string): string {
  return prefix + "\uffff"
}

function parse<T extends object>(content: Uint8Array): T {
  return lexParse(decoder.decode(content)) as T
}
