// Claims of KeyPackages. Each is kept until a write has used it: what a failed attempt has claimed, the next one
// uses. So a KeyPackage is used once at most, and many attempts take no more than one.

import type { Api, Output, Params } from "./api.js"
import { hex } from "./bytes.js"
import type { Clock } from "./clock.js"
import { idLength } from "./envelope.js"
import { isRefusal } from "./errors.js"
import type { Did } from "./ids.js"
import { Locks } from "./locks.js"
import type { Write } from "./outbox.js"
import { names } from "./records.js"
import { type Changes, getAll, put, type Store } from "./store.js"
import * as mls from "#lexicons"

type ClaimParams = Omit<Params<typeof mls.getKeyPackages.main>, "dids" | "idempotencyKey">
type KeyPackages = Output<typeof mls.getKeyPackages.main>["keyPackages"]

/** So long a claim is reused, in milliseconds: the server keeps it for half an hour. */
const goodFor = 25 * 60_000
/** So long the server gives the same answer again, to the write that has claimed first. */
const repeatedFor = 23 * 3_600_000

/** A claim whose KeyPackages are not all used. */
interface SavedClaim {
  /** Its idempotency key: with the same parameters the server gives the same KeyPackages again. */
  readonly key: string
  /** The service that was asked, if it is another one than the person's own. */
  readonly service?: Did
  readonly params: ClaimParams
  /** Whose KeyPackages were asked for. */
  readonly dids: readonly Did[]
  /** Whose KeyPackages no write has used. */
  readonly left: readonly Did[]
  /** The write that has it. Once that is gone, it is free for another one. */
  readonly owner: string
  readonly at: number
  /** Whose KeyPackages are in a request that was made, and may have arrived. */
  readonly used?: readonly Did[]
}

/** The claims of a device. */
export class Claims {
  private readonly locks = new Locks()

  constructor(
    private readonly store: Store,
    private readonly clock: Clock,
  ) {}

  /**
   * Claims a KeyPackage of each device of each person for a write, which has the name `owner`. It uses claims that no
   * other write has before it makes a new one.
   */
  async claim(api: Api, service: Did | undefined, dids: readonly Did[], params: ClaimParams, owner: string): Promise<{ keyPackages: KeyPackages; missing: Did[] }> {
    const keyPackages: KeyPackages = []
    const isMissing = (did: Did) => keyPackages.every((one) => one.did !== did)
    for (const saved of await this.take(service, dids, params, owner)) {
      const wanted = dids.filter((did) => saved.left.includes(did) && isMissing(did))
      const answer = await this.ask(api, saved)
      keyPackages.push(...answer.filter(({ did }) => wanted.includes(did as Did)))
    }
    const rest = dids.filter(isMissing)
    if (rest.length === 0) return { keyPackages, missing: [] }
    const made: SavedClaim = {
      key: hex(this.clock.randomBytes(idLength)), ...(service !== undefined && { service }), params, dids: rest, left: rest, owner, at: this.clock.now(),
    }
    await this.save(made)
    keyPackages.push(...(await this.ask(api, made)))
    return { keyPackages, missing: rest.filter(isMissing) }
  }

  // take makes a write the owner of what it can use.
  private take(service: Did | undefined, dids: readonly Did[], params: ClaimParams, owner: string): Promise<SavedClaim[]> {
    return this.locks.run("claims", async () => {
      const owners = new Set((await getAll<Write>(this.store, "outbox/")).map(({ content }) => (content as { claim?: string } | null)?.claim))
      const taken: SavedClaim[] = []
      const changes: Changes = new Map()
      for (const saved of await getAll<SavedClaim>(this.store, names.claims)) {
        const age = this.clock.now() - saved.at
        if (age > repeatedFor) changes.set(names.claim(saved.key), undefined)
        else if (saved.service !== service || !isSame(saved.params, params) || !saved.left.some((did) => dids.includes(did))) continue
        else if (saved.owner === owner) taken.push(saved)
        else if (saved.used === undefined && !owners.has(saved.owner) && age < goodFor) {
          put(changes, names.claim(saved.key), { ...saved, owner } satisfies SavedClaim)
          taken.push({ ...saved, owner })
        }
      }
      await this.store.write(changes)
      return taken
    })
  }

  // ask makes a claim, or repeats it. Whoever has none is not left in it: the next attempt asks for them anew.
  private async ask(api: Api, saved: SavedClaim): Promise<KeyPackages> {
    try {
      const { keyPackages } = await api.queryOnce(mls.getKeyPackages.main, { ...saved.params, dids: [...saved.dids], idempotencyKey: saved.key })
      const left = saved.left.filter((did) => keyPackages.some((one) => one.did === did))
      if (left.length < saved.left.length) await this.save({ ...saved, left })
      return keyPackages
    } catch (err) {
      if (isRefusal(err)) await this.store.write(new Map([[names.claim(saved.key), undefined]]))
      throw err
    }
  }

  private async save(saved: SavedClaim): Promise<void> {
    const changes: Changes = new Map()
    keep(changes, saved)
    await this.store.write(changes)
  }

  /** Adds to changes that a request has the KeyPackages of these people. */
  async use(owner: string, dids: readonly Did[], changes: Changes): Promise<void> {
    for (const saved of await this.of(owner)) keep(changes, { ...saved, used: saved.left.filter((did) => dids.includes(did)) })
  }

  /** Adds to changes that the request was accepted: what it has is not used again. */
  async spend(owner: string, changes: Changes): Promise<void> {
    for (const { used = [], ...saved } of await this.of(owner)) keep(changes, { ...saved, left: saved.left.filter((did) => !used.includes(did)) })
  }

  /** Adds to changes that the request was refused. If that was for its KeyPackages, they are not tried again. */
  async release(owner: string, changes: Changes, isBad: boolean): Promise<void> {
    for (const { used, ...saved } of await this.of(owner)) {
      keep(changes, { ...saved, left: isBad ? saved.left.filter((did) => !used?.includes(did)) : saved.left })
    }
  }

  private async of(owner: string): Promise<SavedClaim[]> {
    return (await getAll<SavedClaim>(this.store, names.claims)).filter((saved) => saved.owner === owner)
  }
}

function keep(changes: Changes, saved: SavedClaim): void {
  if (saved.left.length > 0) put(changes, names.claim(saved.key), saved)
  else changes.set(names.claim(saved.key), undefined)
}

function isSame(a: ClaimParams, b: ClaimParams): boolean {
  return a.cipherSuite === b.cipherSuite && a.receipts === b.receipts && a.convoId === b.convoId
}
