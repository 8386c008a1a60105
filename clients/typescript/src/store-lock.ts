// Which process has a FileStore's file. Node has no lock of the operating system.
//
// The folder PATH.locks has a numbered file for each owner, and the greatest number counts: it names the
// process that has the store, or nobody. Who finds nobody, or a process that has ended, makes the file of the
// next number by `link`, which only one can. It has the store if no greater number is there after that.
//
// Why there is never a second owner: files are removed only while a greater one is there, so the greatest
// number never falls. An owner has seen no number above its own. A later number can be made only by somebody
// who has read the owner's file, and found that its process has ended. A number at or below the owner's,
// linked late by somebody slow, finds the owner's file above itself, or is there already, and gives up.

import { execFile } from "node:child_process"
import { link, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises"
import { join } from "node:path"
import { promisify } from "node:util"
import { StoreOpenError } from "./errors.js"

const run = promisify(execFile)

/** Who has a store: a process and its start, so that another process of the same id is not taken for it. */
interface Owner {
  readonly pid: number
  readonly start: string
}

/**
 * Takes the lock of a file, and returns what releases it.
 *
 * @throws StoreOpenError if a living process has it, this one too
 */
export async function lockFile(path: string): Promise<() => Promise<void>> {
  const folder = path + ".locks"
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const own: Owner = { pid: process.pid, start: (await startOf(process.pid)) ?? "" }
  for (;;) {
    const last = await greatest(folder)
    const owner = last === 0 ? undefined : await ownerIn(join(folder, nameOf(last)))
    if (owner === "gone") continue // a greater number is there
    if (owner !== undefined && (await startOf(owner.pid)) === owner.start) {
      throw new StoreOpenError(`${path} is in use by process ${owner.pid}`)
    }
    if (await put(folder, last + 1, own)) return () => release(folder, last + 1)
  }
}

// release says that nobody has the store: a file of the next number without an owner.
async function release(folder: string, number: number): Promise<void> {
  await put(folder, number + 1, undefined)
}

// put makes the file of a number, and reports whether it is the greatest. Then it removes what is below.
async function put(folder: string, number: number, owner: Owner | undefined): Promise<boolean> {
  const whole = join(folder, `new-${process.pid}-${crypto.randomUUID()}`) // no reader sees half of it
  await writeFile(whole, owner === undefined ? "" : `${owner.pid} ${owner.start}`, { mode: 0o600 })
  try {
    await link(whole, join(folder, nameOf(number)))
  } catch (err) {
    if (codeOf(err) !== "EEXIST" && codeOf(err) !== "ENOENT") throw err // the next owner removes what lies around
    return false
  } finally {
    await rm(whole, { force: true })
  }
  const isLast = (await greatest(folder)) === number
  if (!isLast) await rm(join(folder, nameOf(number)), { force: true })
  for (const name of isLast ? await readdir(folder) : []) {
    if (name.startsWith("new-") || name < nameOf(number)) await rm(join(folder, name), { force: true })
  }
  return isLast
}

async function greatest(folder: string): Promise<number> {
  return Number((await readdir(folder)).filter((name) => /^\d+$/.test(name)).sort().at(-1) ?? 0)
}

async function ownerIn(file: string): Promise<Owner | undefined | "gone"> {
  try {
    const [, pid, start] = /^(\d+) (.*)$/.exec(await readFile(file, "utf8")) ?? []
    return pid === undefined || start === undefined ? undefined : { pid: Number(pid), start }
  } catch (err) {
    if (codeOf(err) === "ENOENT") return "gone"
    throw err
  }
}

function nameOf(number: number): string {
  return String(number).padStart(12, "0")
}

// startOf says when a living process began, in the system's own words, or `undefined` if there is none.
async function startOf(pid: number): Promise<string | undefined> {
  if (process.platform === "linux") return startOnLinux(pid)
  if (process.platform === "win32") return isAlive(pid) ? "" : undefined // Windows tells it to no simple call
  try {
    const { stdout } = await run("ps", ["-o", "stat=,lstart=", "-p", String(pid)], { env: { ...process.env, LC_ALL: "C", TZ: "UTC" } })
    const [state = "Z", ...start] = stdout.trim().split(/\s+/)
    return state.startsWith("Z") ? undefined : start.join(" ")
  } catch {
    return isAlive(pid) ? "" : undefined
  }
}

async function startOnLinux(pid: number): Promise<string | undefined> {
  try {
    const stat = await readFile(`/proc/${pid}/stat`, "utf8")
    const [state, ...fields] = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
    if (state === "Z" || state === "X") return undefined // killed, and its parent has not asked yet
    const boot = await readFile("/proc/sys/kernel/random/boot_id", "utf8")
    return `${boot.trim()} ${fields[18]}` // starttime, since this boot
  } catch (err) {
    if (codeOf(err) === "ENOENT" || codeOf(err) === "ESRCH") return undefined
    throw err
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (err) {
    return codeOf(err) === "EPERM"
  }
}

/** The code of an error of the system. */
export function codeOf(err: unknown): unknown {
  return err instanceof Error && "code" in err ? err.code : undefined
}
