// A store in a file, for Node.

import { type FileHandle, open, readFile, realpath, rename, rm } from "node:fs/promises"
import { basename, dirname, join, resolve } from "node:path"
import type { Changes, NamedRecord, Range, Store } from "./store.js"
import { decodeRecords, encodeRecords, type Decoded } from "./journal.js"
import { codeOf, lockFile } from "./store-lock.js"
import { Records } from "./store-records.js"

/** Others on the machine cannot read it: it holds private keys. */
const fileMode = 0o600

/** The journal is written anew when it is longer than this and than twice its live records. */
const longestJournal = 4 << 20

/**
 * A store in one file: a journal of changes, each with a checksum. A write is one append and one
 * fsync. An append that the machine's or the process's end cut short is dropped at the next open.
 * All records are in memory too.
 *
 * It is open once at a time: {@link FileStore.open} refuses the file while the process lives that the folder
 * `PATH.locks` names. All processes must see each other: those of one machine, and of one container.
 */
export class FileStore implements Store {
  private readonly records = new Records()
  private last: Promise<void> = Promise.resolve() // of the writes, which run one after the other
  private failed: unknown
  private closed: Promise<void> | undefined

  private constructor(
    private readonly path: string,
    private file: FileHandle,
    private length: number,
    private readonly unlock: () => Promise<void>,
  ) {}

  /**
   * Opens the store in a file, and makes it if there is none.
   *
   * @throws StoreOpenError if it is open, here or in another process
   */
  static async open(file: string): Promise<FileStore> {
    const path = join(await realpath(dirname(resolve(file))), basename(file))
    const unlock = await lockFile(path)
    try {
      return await FileStore.load(path, unlock)
    } catch (err) {
      await unlock()
      throw err
    }
  }

  private static async load(path: string, unlock: () => Promise<void>): Promise<FileStore> {
    await rm(path + ".new", { force: true })
    const found: Decoded = decodeRecords(await readIfThere(path))
    const file = await open(path, "a", fileMode)
    await file.truncate(found.length)
    await file.sync()
    await syncFolder(path)
    const store = new FileStore(path, file, found.length, unlock)
    for (const changes of found.changes) store.records.apply(changes)
    return store
  }

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

  write(changes: Changes): Promise<void> {
    const written = this.last.then(() => this.append(changes))
    this.last = written.catch(() => {})
    return written
  }

  private async append(changes: Changes): Promise<void> {
    if (this.failed !== undefined) throw new Error("the store failed before", { cause: this.failed })
    try {
      const bytes = encodeRecords(changes)
      await this.file.appendFile(bytes)
      await this.file.datasync()
      this.length += bytes.length
      this.records.apply(changes)
      if (this.length > longestJournal && this.length > 2 * this.live()) await this.compact()
    } catch (err) {
      this.failed = err
      throw err
    }
  }

  private live(): number {
    let bytes = 0
    for (const [name, content] of this.records.all()) bytes += name.length + content.length
    return bytes
  }

  // compact writes the records into a new file, and puts it in the place of the journal.
  private async compact(): Promise<void> {
    const bytes = encodeRecords(new Map(this.records.all()))
    const file = await open(this.path + ".new", "w", fileMode)
    await file.writeFile(bytes)
    await file.sync()
    await file.close()
    await rename(this.path + ".new", this.path)
    await syncFolder(this.path)
    await this.file.close()
    this.file = await open(this.path, "a")
    this.length = bytes.length
  }

  close(): Promise<void> {
    this.closed ??= this.end()
    return this.closed
  }

  private async end(): Promise<void> {
    await this.last
    this.failed ??= new Error("the store is closed")
    await this.file.close()
    await this.unlock()
  }
}

async function readIfThere(path: string): Promise<Uint8Array> {
  try {
    return await readFile(path)
  } catch (err) {
    if (codeOf(err) === "ENOENT") return new Uint8Array()
    throw err
  }
}

// syncFolder makes the name of a new file durable. Windows cannot sync a folder, and need not.
async function syncFolder(path: string): Promise<void> {
  if (process.platform === "win32") return
  const folder = await open(dirname(path), "r")
  await folder.sync()
  await folder.close()
}
