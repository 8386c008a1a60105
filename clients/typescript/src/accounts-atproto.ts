// Accounts of the AT Protocol: a client asks a person's own PDS, which the DID document names, and believes what the
// repository's signed commit proves. It needs @noble/curves.
//
// The first question about an account is two requests, the document and the record; each further device of it is one
// for an hour. What it does not do: a PDS has the account's signing key, and can forge what it likes. People catch
// that by comparing safety numbers.

import { AccountAwayError, type Accounts, type ListedDevice, recordKeyOf } from "./accounts.js"
import { provenRecord, type Verify, verifierOf } from "./accounts-proof.js"
import { same } from "./bytes.js"
import { type Clock, systemClock } from "./clock.js"
import { errorName, NoAnswerError, XrpcError } from "./errors.js"
import { type Answer, ask, documentOf, entryOf, jsonOf, originOf, publicDirectory, type Way } from "./hosts.js"
import type { Did } from "./ids.js"
import { lexParse, lexStringify } from "./json.js"
import { type Fetch, type PdsAgent, request, textOf } from "./transport.js"
import * as mls from "#lexicons"

/** How {@link AtprotoAccounts} find accounts, and write into the own one. */
export interface AtprotoAccountsOptions {
  /** The own account. */
  readonly did: Did
  /** The person's session at the own PDS, as for `Client.publishProfile`. */
  readonly agent: PdsAgent
  /** By default https://plc.directory. */
  readonly plcDirectory?: string
  /** By default the platform's `fetch`. */
  readonly fetch?: Fetch
  /** How long a question may take with all its requests, in milliseconds. By default 10,000. */
  readonly timeout?: number
  readonly clock?: Clock
  /** Takes PDSes at http://localhost and http://127.0.0.1 too, as in tests. By default if the directory is at http. */
  readonly loopback?: boolean
}

/** What the document of an account says. */
interface Account {
  readonly did: Did
  readonly pds: string
  readonly signingKey: string
  /** When the document was read, in milliseconds of Unix time. */
  readonly read: number
  /** Set after a failure: the account may have moved since. */
  doubtful?: true
}

/** The DID is a tombstone. */
class EndedError extends Error {
  override readonly name = "EndedError"
}

type Device = NonNullable<ReturnType<typeof deviceIn>>

/** So long a document is good enough to find a listed device, in milliseconds. */
const hour = 3_600_000

/** So long it is good enough for any other answer: the PDS and the signing key may have changed since. */
const fiveMinutes = 300_000

const mostAccounts = 10_000

/** The most bytes of a proof, and of a page of records. */
const mostProof = 1 << 20

/** The most devices of one account. */
const mostDevices = 100

/** So many proofs of one question are asked for at the same time. */
const parallelProofs = 6

const collection = mls.device.$nsid

const recordKeyForm = /^[a-z2-7]{32}$/

/** Reads which devices accounts list, at their PDSes, and lists the own one. */
export class AtprotoAccounts implements Accounts {
  private readonly did: Did
  private readonly agent: PdsAgent
  private readonly directory: string
  private readonly way: Way
  private readonly clock: Clock
  private readonly timeout: number
  private readonly known = new Map<Did, Account>()
  private readonly running = new Map<string, Promise<unknown>>()

  constructor(options: AtprotoAccountsOptions) {
    const { plcDirectory = publicDirectory, loopback = plcDirectory.startsWith("http:") } = options
    this.did = options.did
    this.agent = options.agent
    this.directory = originOf(plcDirectory, true)
    this.way = { fetch: options.fetch ?? ((input, init) => fetch(input, init)), loopback }
    this.clock = options.clock ?? systemClock
    this.timeout = options.timeout ?? 10_000
  }

  async lists(did: Did, key: Uint8Array, signal?: AbortSignal): Promise<boolean> {
    const name = await recordKeyOf(key)
    const device = await this.question(did, name, signal, (late) => this.find(did, name, late))
    return device !== undefined && same(device.signatureKey, key)
  }

  async keys(did: Did, signal?: AbortSignal): Promise<Uint8Array[]> {
    return (await this.devices(did, signal)).map(({ key }) => key)
  }

  /**
   * Each key is proven as in `lists`. That no device is missing is only the PDS's word: a proof of the whole
   * collection would be the whole repository, which can have hundreds of megabytes. People have few devices.
   */
  async devices(did: Did, signal?: AbortSignal): Promise<ListedDevice[]> {
    return this.question(did, "devices", signal, async (late) => {
      const account = await this.account(did, fiveMinutes)
      const names = await this.names(account, late)
      const devices: (Device | undefined)[] = []
      while (devices.length < names.length) {
        const some = names.slice(devices.length, devices.length + parallelProofs)
        devices.push(...(await Promise.all(some.map((name) => this.device(account, name, late)))))
      }
      return devices.filter((device) => device !== undefined).map(({ signatureKey: key, cipherSuite, name }) => ({ key, cipherSuite, ...(name !== undefined && { name }) }))
    })
  }

  /** It reads the document now, however young the last one is: who has ended is removed. */
  async hasEnded(did: Did, signal?: AbortSignal): Promise<boolean> {
    return this.question(did, "end", signal, async (late) => {
      try {
        return await this.isDeleted(await this.account(did, 0), late)
      } catch (err) {
        if (err instanceof EndedError) return true
        throw err
      }
    })
  }

  async list({ key, cipherSuite, name }: ListedDevice): Promise<void> {
    const rkey = await recordKeyOf(key)
    const before = await this.own(rkey)
    if (
      before !== undefined && same(before.signatureKey, key) && before.cipherSuite === cipherSuite &&
      (name === undefined || before.name === name)
    ) return
    const createdAt = before?.createdAt ?? new Date(this.clock.now()).toISOString()
    const record = mls.device.$parse({
      ...before, $type: collection, signatureKey: key, cipherSuite, createdAt, ...(name !== undefined && { name }),
    })
    await this.call("com.atproto.repo.putRecord", { body: lexStringify({ repo: this.did, collection, rkey, record }) })
  }

  async unlist(key: Uint8Array): Promise<void> {
    const rkey = await recordKeyOf(key)
    await this.call("com.atproto.repo.deleteRecord", { body: lexStringify({ repo: this.did, collection, rkey }) })
  }

  // find returns a record as it is now. Only a record that is there may be found by an older document: before this
  // client says that there is none, or that the PDS does not answer, it looks whether the account has moved.
  private async find(did: Did, name: string, late: AbortSignal): Promise<Device | undefined> {
    const before = await this.account(did, hour)
    let failed: unknown
    try {
      const device = await this.device(before, name, late)
      if (device !== undefined) return device
    } catch (err) {
      failed = err
      before.doubtful = true
      late.throwIfAborted()
    }
    const now = await this.account(did, fiveMinutes)
    if (now.pds !== before.pds || now.signingKey !== before.signingKey) return this.device(now, name, late)
    if (failed !== undefined) throw failed
    return undefined
  }

  // device returns a record of an account, or undefined if it has none whose name fits its key.
  private async device({ did, pds, signingKey }: Account, name: string, late: AbortSignal): Promise<Device | undefined> {
    const answer = await this.askPds(pds, "com.atproto.sync.getRecord", { did, collection, rkey: name }, late)
    if (answer.status !== 200) throw failureOf(pds, answer)
    const record = deviceIn(await proven(answer.body, did, verifierOf(signingKey), `${collection}/${name}`))
    return record !== undefined && (await recordKeyOf(record.signatureKey)) === name ? record : undefined
  }

  // names lists the names of an account's records, in order.
  private async names({ did, pds }: Account, late: AbortSignal): Promise<string[]> {
    const names: string[] = []
    let cursor: string | undefined
    do {
      const params = { repo: did, collection, limit: String(mostDevices), ...(cursor !== undefined && { cursor }) }
      const answer = await this.askPds(pds, "com.atproto.repo.listRecords", params, late)
      if (answer.status !== 200) throw failureOf(pds, answer)
      const page = jsonOf(answer) as { records: { uri: string }[]; cursor?: string }
      names.push(...page.records.map(({ uri }) => uri.slice(uri.lastIndexOf("/") + 1)))
      if (names.length > mostDevices) throw new Error(`it lists more than ${mostDevices} devices`)
      cursor = page.records.length === 0 ? undefined : page.cursor
    } while (cursor !== undefined)
    return [...new Set(names)].filter((name) => recordKeyForm.test(name)).sort()
  }

  private async isDeleted({ did, pds }: Account, late: AbortSignal): Promise<boolean> {
    const answer = await this.askPds(pds, "com.atproto.sync.getRepoStatus", { did }, late)
    const failure = answer.status === 200 ? undefined : failureOf(pds, answer)
    if (errorName(failure) === "RepoNotFound") return true
    if (failure !== undefined) throw failure
    const status = jsonOf(answer) as { did: string; active: boolean; status?: string }
    if (status.did !== did) throw new Error("its PDS answers for another account")
    return status.active === false && status.status === "deleted"
  }

  private async askPds(pds: string, method: string, params: Record<string, string>, late: AbortSignal): Promise<Answer> {
    return ask(this.way.fetch, `${pds}/xrpc/${method}?${new URLSearchParams(params)}`, mostProof, late)
  }

  // account reads the document of an account, unless the last one is younger than `most` milliseconds.
  private async account(did: Did, most: number): Promise<Account> {
    const known = this.known.get(did)
    const age = this.clock.now() - (known?.read ?? 0)
    if (known !== undefined && age >= 0 && age < (known.doubtful ? Math.min(most, fiveMinutes) : most)) return known
    return this.shared(`${did} document`, async (late) => {
      const read = this.clock.now()
      const document = await documentOf(did, this.directory, this.way, late)
      this.known.delete(did)
      if (document === undefined) throw new EndedError("the account has ended")
      const { serviceEndpoint } = entryOf(document.service, did, "#atproto_pds") ?? {}
      const key = entryOf(document.verificationMethod, did, "#atproto")
      if (typeof serviceEndpoint !== "string") throw new Error("its DID document names no PDS")
      if (key?.type !== "Multikey" || typeof key.publicKeyMultibase !== "string") throw new Error("its DID document has no signing key")
      const account = { did, pds: originOf(serviceEndpoint, this.way.loopback), signingKey: key.publicKeyMultibase, read }
      this.known.set(did, account)
      for (const [oldest] of this.known) if (this.known.size > mostAccounts) this.known.delete(oldest)
      return account
    })
  }

  // question asks about an account, until `signal` aborts. Callers who ask the same at the same time share the answer.
  private async question<T>(
    did: Did, what: string, signal: AbortSignal | undefined, work: (late: AbortSignal) => Promise<T>,
  ): Promise<T> {
    try {
      return await unlessAborted(this.shared(`${did} ${what}`, work), signal)
    } catch (err) {
      throw new AccountAwayError(did, err instanceof Error ? err.message : String(err), { cause: err })
    }
  }

  private shared<T>(name: string, work: (late: AbortSignal) => Promise<T>): Promise<T> {
    const running = this.running.get(name) as Promise<T> | undefined
    if (running !== undefined) return running
    const begun = this.inTime(work).finally(() => this.running.delete(name))
    this.running.set(name, begun)
    return begun
  }

  // inTime ends work that takes longer than the timeout.
  private async inTime<T>(work: (late: AbortSignal) => Promise<T>): Promise<T> {
    const [late, done] = [new AbortController(), new AbortController()]
    const end = () => late.abort(new NoAnswerError(`no answer in ${this.timeout} ms`))
    void this.clock.sleep(this.timeout, done.signal).then(end)
    try {
      return await unlessAborted(work(late.signal), late.signal)
    } finally {
      done.abort()
    }
  }

  // own returns a record of the own repository, if it is one of a device.
  private async own(rkey: string): Promise<Device | undefined> {
    try {
      const params = new URLSearchParams({ repo: this.did, collection, rkey })
      const { value } = lexParse(await this.call("com.atproto.repo.getRecord", { params })) as { value?: unknown }
      return deviceIn(value)
    } catch (err) {
      if (errorName(err) === "RecordNotFound") return undefined
      throw err
    }
  }

  private call(method: string, { params, body }: { params?: URLSearchParams; body?: string }): Promise<string> {
    const fetch: Fetch = (path, init) => this.agent.fetchHandler(path, init)
    const path = `/xrpc/${method}${params ? `?${params}` : ""}`
    return this.inTime(async (late) => textOf(await request(fetch, path, { method, ...(body !== undefined && { body }) }, {}, late)))
  }
}

function deviceIn(record: unknown) {
  return mls.device.$matches(record) ? record : undefined
}

async function proven(car: Uint8Array, did: Did, verify: Verify, path: string) {
  try {
    return await provenRecord(car, did, verify, path)
  } catch (err) {
    throw new Error("its PDS answers, and its answer proves nothing", { cause: err })
  }
}

// failureOf reads what a PDS says instead of an answer.
function failureOf(pds: string, answer: Answer): XrpcError {
  try {
    const { error, message } = jsonOf(answer) as { error?: unknown; message?: unknown }
    return new XrpcError(answer.status, String(error ?? ""), `${pds} says ${JSON.stringify(message ?? "")}`)
  } catch {
    return new XrpcError(answer.status, "", `${pds} says no more`) // a proxy's page
  }
}

// unlessAborted waits for what is wanted, or until a signal aborts.
async function unlessAborted<T>(wanted: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return wanted
  let abort: (() => void) | undefined
  const aborted = new Promise<never>((_, reject) => {
    abort = () => reject(signal.reason)
    if (signal.aborted) abort()
    else signal.addEventListener("abort", abort)
  })
  try {
    return await Promise.race([wanted, aborted])
  } finally {
    if (abort !== undefined) signal.removeEventListener("abort", abort)
  }
}
