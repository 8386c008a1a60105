// A store in a file, for Node.

import { type FileHandle, open, readFile, rename, rm, writeFile } from "node:fs/promises"
import { dirname, resolve } from "node:path"
import { apply, type Changes, type Store } from "./store.js"
import { decodeRecords, encodeRecords, type Decoded } from "./journal.js"

/** Others on the machine cannot read it: it holds private keys. */
const fileMode = 0o600

/** The journal is written anew when it is longer than this and than twice its live records. */
const longestJournal = 4 << 20

// The stores that this process has open, by path.
const opened = new Set<string>()

/**
 * A store in one file: a journal of changes, each with a checksum. A write is one append and one
 * fsync. An append that the machine's or the process's end cut short is dropped at the next open.
 * All records are in memory too.
 *
 * One process has the store at a time: {@link FileStore.open} refuses the file while the process in
 * `PATH.lock` lives.
 */
export class FileStore implements Store {
  private readonly records = new Map<string, Uint8Array>()
  private last: Promise<void> = Promise.resolve() // of the writes, which run one after the other
  private failed: unknown

  private constructor(
    private readonly path: string,
    private file: FileHandle,
    private length: number,
  ) {}

  /** Opens the store in a file, and makes it if there is none. */
  static async open(file: string): Promise<FileStore> {
    const path = resolve(file)
    await lock(path)
    try {
      return await FileStore.load(path)
    } catch (err) {
      await unlock(path)
      throw err
    }
  }

  private static async load(path: string): Promise<FileStore> {
    await rm(path + ".new", { force: true })
    const found: Decoded = decodeRecords(await readIfThere(path))
    const file = await open(path, "a", fileMode)
    await file.truncate(found.length)
    await file.sync()
    await syncFolder(path)
    const store = new FileStore(path, file, found.length)
    for (const changes of found.changes) apply(store.records, changes)
    return store
  }

  async read(name: string): Promise<Uint8Array | undefined> {
    return this.records.get(name)
  }

  async list(prefix: string): Promise<string[]> {
    return [...this.records.keys()].filter((name) => name.startsWith(prefix)).sort()
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
      apply(this.records, changes)
      if (this.length > longestJournal && this.length > 2 * this.live()) await this.compact()
    } catch (err) {
      this.failed = err
      throw err
    }
  }

  private live(): number {
    let bytes = 0
    for (const [name, content] of this.records) bytes += name.length + content.length
    return bytes
  }

  // compact writes the records into a new file, and puts it in the place of the journal.
  private async compact(): Promise<void> {
    const bytes = encodeRecords(new Map(this.records))
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

  async close(): Promise<void> {
    await this.last
    this.failed ??= new Error("the store is closed")
    await this.file.close()
    await unlock(this.path)
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

// lock takes PATH.lock, which holds the id of a process. A lock of a process that has ended is
// taken over.
async function lock(path: string): Promise<void> {
  const name = path + ".lock"
  for (let attempt = 0; attempt < 2; attempt++) {
    try {
      await writeFile(name, String(process.pid), { flag: "wx" })
      opened.add(path)
      return
    } catch (err) {
      if (codeOf(err) !== "EEXIST") throw err
    }
    const owner = Number(new TextDecoder().decode(await readIfThere(name)))
    if (owner === process.pid ? opened.has(path) : alive(owner)) {
      throw new Error(`${path} is in use by process ${owner}`)
    }
    await rm(name, { force: true })
  }
  throw new Error(`${path} is being opened by another process`)
}

async function unlock(path: string): Promise<void> {
  opened.delete(path)
  await rm(path + ".lock", { force: true })
}

function alive(pid: number): boolean {
  if (!Number.isSafeInteger(pid) || pid <= 0) return false
  try {
    process.kill(pid, 0)
    return true
  } catch (err) {
    return codeOf(err) === "EPERM"
  }
}

function codeOf(err: unknown): unknown {
  return err instanceof Error && "code" in err ? err.code : undefined
}
