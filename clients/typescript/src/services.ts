// The services of a person's convos: docs/NETWORK.md. A convo lives at one of them. The person's home
// has the KeyPackages, and the invitations to convos of the others.

import { Api } from "./api.js"
import { Claims } from "./claims.js"
import type { Clock } from "./clock.js"
import { AwayError, errorName, NoAnswerError, resetsAt, SealError, verdictOf, XrpcError } from "./errors.js"
import { documentOf, entryOf, publicDirectory } from "./hosts.js"
import type { ConvoId, Did } from "./ids.js"
import { names, type Thread } from "./records.js"
import { type Changes, get, getAll, put, type Store } from "./store.js"
import type { Call, Transport } from "./transport.js"
import * as mls from "#lexicons"

/** The most people of one claim. */
const mostClaimed = 100

/** How a client reaches other services than the one that its transport reaches. */
export interface OtherServices {
  /** The DID of the service that the client's transport reaches: the person's home. */
  readonly home: Did
  /**
   * Makes a way to another service. {@link endpointOf} finds where it answers. A client asks once in its
   * life for each service.
   */
  way(service: Did, deviceId: string): Transport
}

/** A convo of another service, from the time when this person has answered the invitation. */
export interface Elsewhere {
  readonly convoId: ConvoId
  readonly service: Did
  /** Set until the service knows that this person does not want to be in the convo. */
  readonly declined?: true
}

/** So long after a move invitations can arrive at the old home, in milliseconds: docs/NETWORK.md. */
const leavingFor = 8 * 24 * 3_600_000

/** Where a person's home is, and where it was. */
interface Home {
  readonly home: Did
  /** The homes of before, of which the latter ones can still get invitations. */
  readonly former: readonly Did[]
  readonly leaving: readonly Did[]
  /** When the person has moved, in milliseconds of Unix time. */
  readonly movedAt: number
}

/** What services work with. */
export interface ServicesParts {
  readonly store: Store
  readonly transport: Transport
  readonly others: OtherServices | undefined
  readonly deviceId: string
  readonly clock: Clock
  readonly signal: AbortSignal
}

/** The services that a client knows. `undefined` is the home. */
export class Services {
  /** Passes each call on to the service of its convo, and any other call to the home. */
  readonly transport: Transport
  readonly claims: Claims
  private readonly prepared = new Map<string, Claimed>()
  private readonly apis = new Map<Did | undefined, Api>()

  private constructor(
    private readonly parts: ServicesParts,
    private readonly elsewhere: Map<string, Elsewhere>,
    private moved: Home | undefined,
  ) {
    const { transport, others } = parts
    this.transport = others === undefined ? transport : this.router(transport)
    this.claims = new Claims(parts.store, parts.clock)
  }

  static async open(parts: ServicesParts): Promise<Services> {
    const all = await getAll<Elsewhere>(parts.store, names.services)
    return new Services(parts, new Map(all.map((one) => [one.convoId, one])), await get<Home>(parts.store, names.home))
  }

  /** The home's DID, if there are other services. It is another one than the options say after a move. */
  get home(): Did | undefined {
    return this.parts.others && (this.moved?.home ?? this.parts.others.home)
  }

  /** The homes of before, the last one first. */
  get former(): readonly Did[] {
    return this.moved?.former ?? []
  }

  /** The homes of before that this device has not left yet: {@link left}. */
  get leaving(): readonly Did[] {
    return this.moved?.leaving ?? []
  }

  /**
   * Makes another service the home, in one step: the convos at the old one are elsewhere from now on, and those
   * at the new one are not. No event stream may run.
   */
  async moveHome(to: Did): Promise<void> {
    const from = this.home
    if (from === undefined) throw new Error("this client has no way to other services")
    if (from === to) return
    const changes: Changes = new Map()
    for (const { convoId, service } of this.convos()) {
      if (service === to) changes.set(names.service(convoId), undefined)
    }
    const here = (await getAll<Thread>(this.parts.store, names.threads)).filter(({ convoId }) => this.of(convoId) === undefined)
    const placed = here.map(({ convoId }): Elsewhere => ({ convoId, service: from }))
    for (const entry of placed) put(changes, names.service(entry.convoId), entry)
    const not = (all: readonly Did[], ...these: Did[]) => all.filter((one) => !these.includes(one))
    const moved: Home = { home: to, former: [from, ...not(this.former, from, to)], leaving: [from, ...not(this.leaving, from, to)], movedAt: this.parts.clock.now() }
    put(changes, names.home, moved)
    const { store } = this.parts // the home's place in its event stream has a name of its own
    changes.set(names.cursorAt(from), await store.read(names.cursor))
    changes.set(names.cursor, await store.read(names.cursorAt(to)))
    changes.set(names.cursorAt(to), undefined)
    await store.write(changes)
    for (const { convoId, service } of this.convos()) if (service === to) this.elsewhere.delete(convoId)
    for (const entry of placed) this.elsewhere.set(entry.convoId, entry)
    this.moved = moved
    this.apis.clear()
  }

  /** Remembers that nothing of this device is at a former home any more but its convos, if no invitation can come. */
  async left(former: Did): Promise<void> {
    if (this.moved === undefined || this.parts.clock.now() < this.moved.movedAt + leavingFor) return
    this.moved = { ...this.moved, leaving: this.leaving.filter((one) => one !== former) }
    const changes: Changes = new Map()
    put(changes, names.home, this.moved)
    await this.parts.store.write(changes)
  }

  /** The service of a convo. */
  of(convo: string): Did | undefined {
    return this.elsewhere.get(convo)?.service
  }

  /** All convos of other services. */
  convos(): Elsewhere[] {
    return [...this.elsewhere.values()]
  }

  /** The other services that convos are at. */
  others(): Did[] {
    return [...new Set(this.convos().filter(({ declined }) => !declined).map(({ service }) => service))]
  }

  /** The methods of a service. */
  at(service: Did | undefined): Api {
    const { clock, signal } = this.parts
    const known = service === this.home ? undefined : service
    const api = this.apis.get(known) ?? new Api(this.way(known), clock, signal)
    this.apis.set(known, api)
    return api
  }

  /**
   * Remembers where a convo is. Its calls go there from now on.
   *
   * @throws Error if the convo is one of another service: no service speaks for those of others
   */
  async place(entry: Elsewhere): Promise<void> {
    const { convoId, service } = entry
    if (this.parts.others === undefined) throw new Error("this client has no way to other services")
    if (service === this.home) throw new Error(`${service} is this person's own service`)
    const before = this.of(convoId)
    const taken = before === undefined && (await this.parts.store.read(names.thread(convoId))) !== undefined
    if (taken || (before !== undefined && before !== service)) {
      throw new Error(`${service} invites to convo ${convoId}, which is at another service`)
    }
    const changes: Changes = new Map()
    put(changes, names.service(convoId), entry)
    await this.parts.store.write(changes)
    this.elsewhere.set(convoId, entry)
  }

  /**
   * Adds to changes that a convo goes on as another one, at the same service. Calls go there at once.
   *
   * @throws Error if the other one is at another service
   */
  succeed(convo: ConvoId, successor: ConvoId, changes: Changes): void {
    const [service, other] = [this.of(convo), this.of(successor)]
    if (other !== undefined && other !== service) throw new Error(`convo ${convo} goes on as ${successor}, which is at another service`)
    if (service === undefined || other !== undefined) return
    const entry: Elsewhere = { convoId: successor, service }
    put(changes, names.service(successor), entry)
    this.elsewhere.set(successor, entry)
  }

  /** Forgets a convo that this device did not enter. */
  async forget(convo: ConvoId): Promise<void> {
    await this.parts.store.write(new Map([[names.service(convo), undefined]]))
    this.elsewhere.delete(convo)
  }

  /**
   * Claims a KeyPackage of each device of each person, at the person's home. The same write gets the same
   * ones again.
   *
   * @param convo a convo that there is already
   * @param some set to go without the people who have none, or whose home cannot be reached
   * @param claim a name of the write that they are for: see {@link Claims}
   * @returns receipts of what was claimed at other services than the convo's, and who has none for this caller
   * @throws AwayError if the home of somebody cannot be reached now
   */
  async claim(dids: readonly Did[], cipherSuite: string, claim: string, convo?: string, some = false): Promise<Claimed> {
    const key = [claim, ...dids].join(" ")
    const prepared = this.prepared.get(key)
    this.prepared.delete(key)
    return prepared ?? this.claimAll(dids, cipherSuite, claim, convo, some)
  }

  /** Claims what the next {@link claim} returns too. */
  async prepare(dids: readonly Did[], cipherSuite: string, claim: string, convo: string): Promise<Claimed> {
    const claimed = await this.claimAll(dids, cipherSuite, claim, convo, false)
    this.prepared.set([claim, ...dids].join(" "), claimed)
    return claimed
  }

  private async claimAll(dids: readonly Did[], cipherSuite: string, claim: string, convo: string | undefined, some: boolean): Promise<Claimed> {
    const here = (convo === undefined ? undefined : this.of(convo)) ?? this.home
    const claimed: { keyPackages: string[]; receipts: string[]; missing: Did[] } = { keyPackages: [], receipts: [], missing: [] }
    for (const [service, people] of await this.homesOf(dids, here, some)) {
      const elsewhere = service !== here
      const params = { cipherSuite, ...(elsewhere ? { receipts: true } : convo && { convoId: convo }) }
      const claiming = this.claims.claim(this.at(service), service, people, params, claim)
      const { keyPackages, missing } = await (elsewhere ? claiming.catch((err: unknown) => this.refusedBy(service, err, some)) : claiming)
      claimed.missing.push(...missing)
      claimed.keyPackages.push(...keyPackages.map(({ keyPackage }) => keyPackage))
      if (elsewhere) claimed.receipts.push(...keyPackages.flatMap(({ receipt }) => receipt ?? []))
    }
    return claimed
  }

  // homesOf asks the convo's service where people have their KeyPackages. Who has not said so has them
  // there, if anywhere. It returns at most mostClaimed people at a time.
  private async homesOf(dids: readonly Did[], here: Did | undefined, some: boolean): Promise<[Did | undefined, Did[]][]> {
    const homes = new Map<Did | undefined, Did[]>()
    for (const did of dids) {
      const home = await this.homeOf(did, here).catch((err: unknown) => {
        if (errorName(err) !== "ServiceUnavailable") throw err
        if (!some) throw this.away(did, err) // a host of this person does not answer
        return null
      })
      if (home !== null) homes.set(home, [...(homes.get(home) ?? []), did])
    }
    return [...homes].flatMap(([home, all]) => chunks(all, mostClaimed).map((people): [Did | undefined, Did[]] => [home, people]))
  }

  private async homeOf(did: Did, here: Did | undefined): Promise<Did | undefined> {
    if (this.parts.others === undefined) return undefined
    const { deliveryService } = await this.at(here).queryOnce(mls.getDeliveryService.main, { did })
    return (deliveryService as Did | undefined) ?? here
  }

  // What another service refuses is no word of the person's own: it must not stop the client.
  private refusedBy(service: Did | undefined, err: unknown, some: boolean): { keyPackages: []; missing: [] } {
    if (some && (err instanceof XrpcError || err instanceof NoAnswerError)) return { keyPackages: [], missing: [] }
    const verdict = verdictOf(err)
    if (verdict === "again" || verdict === "later") throw this.away(service, err)
    if (verdict === "stop") throw new SealError(`${service}: ${messageOf(err)}`, { cause: err })
    throw err
  }

  private away(whose: Did | undefined, err: unknown): AwayError {
    const until = err instanceof XrpcError ? resetsAt(err) : undefined
    const wait = until === undefined ? undefined : Math.max(until - this.parts.clock.now(), 0)
    return new AwayError(`${whose}: ${messageOf(err)}`, wait ?? (err instanceof XrpcError ? err.retryAfter : undefined), { cause: err })
  }

  private way(service: Did | undefined): Transport {
    const { transport, others, deviceId } = this.parts
    const to = service ?? this.home
    if (to === undefined || to === others?.home) return transport
    if (others === undefined) throw new Error("this client has no way to other services")
    return others.way(to, deviceId)
  }

  private router({ receive }: Transport): Transport {
    const to = (call: Call) => this.at(this.of(convoOf(call))).transport
    return {
      call: (call) => to(call).call(call),
      ...(receive && { receive: async (call: Call) => receiveBy(to(call), call) }),
    }
  }
}

/** KeyPackages, and receipts of those that were claimed at other services. */
export interface Claimed {
  /** base64url. */
  readonly keyPackages: readonly string[]
  readonly receipts: readonly string[]
  /** Who has no KeyPackage for this person. */
  readonly missing: readonly Did[]
}

function messageOf(err: unknown): string {
  return err instanceof Error ? err.message : String(err)
}

function chunks<T>(all: readonly T[], most: number): T[][] {
  return all.length === 0 ? [] : [all.slice(0, most), ...chunks(all.slice(most), most)]
}

function receiveBy(transport: Transport, call: Call): Promise<Uint8Array> {
  if (transport.receive === undefined) throw new Error("the transport receives no bytes")
  return transport.receive(call)
}

// convoOf finds the convo of a call. Quotes within texts of JSON are escaped, so the pattern is a member.
function convoOf({ params, body }: Call): string {
  return params?.get("convoId") ?? /"convoId":"([^"\\]*)"/.exec(body ?? "")?.[1] ?? ""
}

/**
 * Finds where a service answers, by its DID document. Only `did:web` and `did:plc` are known.
 *
 * @param directory the PLC directory
 */
export async function endpointOf(service: Did, directory = publicDirectory): Promise<string> {
  const way = { fetch: (input: string, init: RequestInit) => fetch(input, init), loopback: true }
  const entry = entryOf((await documentOf(service, directory, way))?.service, service, "#atproto_mls")
  if (typeof entry?.serviceEndpoint !== "string") throw new Error(`${service} names no delivery service`)
  return entry.serviceEndpoint
}
