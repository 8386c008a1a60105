// The devices of this person: docs/clients/DEVICES.md. A new one enters the person's convos, and a dead one is
// taken out of everything.
//
// A device enters by an external commit of its own. That a device which is in the convo adds the new one was the
// other way. It needs a second device that is switched on; it uses up a KeyPackage of the new device for each
// convo, of which one caller gets 30 in 24 hours; and the devices must agree on who of them does it. An external
// commit needs none of that, and the members judge the new leaf by the same record of the account.

import type { Accounts } from "./accounts.js"
import { AccountAwayError } from "./accounts.js"
import { type Api, withIdempotencyKey } from "./api.js"
import { groupOf } from "./binding.js"
import { fromHex, hex, same, sha256 } from "./bytes.js"
import { backoff } from "./clock.js"
import type { Core } from "./core.js"
import { DiscardedError, isRefusal, NoAnswerError, OwnDeviceError, XrpcError } from "./errors.js"
import type { ConvoId } from "./ids.js"
import { Locks, once } from "./locks.js"
import type { Log } from "./log.js"
import { didOf } from "./mls.js"
import type { Outbox } from "./outbox.js"
import { names, presentIn, rejoinQueue } from "./records.js"
import { type Changes, get, getAll, put } from "./store.js"
import type { RemoveContent } from "./write-commits.js"
import type { RejoinContent, RetireContent } from "./write-convos.js"
import * as mls from "#lexicons"

/** A device of this person. */
export interface OwnDevice {
  /** The SHA-256 of its signature key, in hexadecimal: the service names devices so. */
  readonly deviceId: string
  /** Its signature key. It is absent if only the service has something of the device. */
  readonly key?: Uint8Array
  /** Its name in its record. */
  readonly name?: string
  /** True for the device that asks. */
  readonly own: boolean
  /** Whether the account lists it. */
  readonly listed: boolean
  /** How many of its KeyPackages others can claim at the service. */
  readonly keyPackages: number
  /** The convos in which it has a leaf, of those that this device is in. */
  readonly convos: readonly ConvoId[]
}

/** A device that is taken out. It is stored until all is done. */
interface Removal {
  readonly deviceId: string
  /** Its signature key, in hexadecimal, once it is known. */
  readonly key?: string
}

/** What {@link OwnDevices} call. */
export interface OwnDevicesHandler {
  /** Lists this device in its account. */
  list(): Promise<void>
  /** Whether this device enters the convos of its person by itself. */
  readonly admits: boolean
  /** Joins a convo with this device's Welcome, if it has one. */
  join(convo: ConvoId): Promise<void>
  /** This device is in a convo: reads it. */
  entered(convo: ConvoId): Promise<void>
  /** Something has failed that nobody waits for. */
  later(done: Promise<void>): void
}

/** A random part of this is waited before a convo is entered, in milliseconds. */
const mostWait = 2_000
/** So long a leaving device waits for what need not be: proposals, and services that are not the person's own. */
const longestGoodbye = 10_000

/** Lists the devices of this person, and lets them enter convos and leave them. */
export class OwnDevices {
  private readonly turns = new Locks()
  private readonly entering = new Map<string, Promise<void>>()
  private readonly removing = new Map<string, Promise<void>>()

  constructor(
    private readonly core: Core,
    private readonly log: Log,
    private readonly outbox: Outbox,
    private readonly accounts: Accounts,
    private readonly signal: AbortSignal,
    private readonly handler: OwnDevicesHandler,
  ) {}

  // Entering

  /**
   * Enters the convos of this person at its own service that this device is not in, one after the other; also those
   * that it was removed from, if its account still lists it.
   */
  async enterAll(): Promise<void> {
    await this.handler.list()
    for await (const convo of this.convos()) {
      await this.enter(convo, true).catch((err: unknown) => this.handler.later(Promise.reject(err)))
    }
  }

  // convos are the open convos of this person at its own service, without requests.
  private async *convos(): AsyncGenerator<ConvoId> {
    for (let cursor: string | undefined; ; ) {
      const page = await this.core.api.query(mls.getConvos.main, { requests: false, ...(cursor !== undefined && { cursor }) })
      for (const { id, closedAt } of page.conversations) if (closedAt === undefined) yield id as ConvoId
      cursor = page.cursor
      if (cursor === undefined) return
    }
  }

  // enterWhere enters the convos that another device is in. If that is the person's only one there, the person
  // leaves them with it.
  private async enterWhere(deviceId: string): Promise<void> {
    for await (const convo of this.convos()) {
      if (await this.isIn(convo, true)) continue
      try {
        const { groupInfo } = await this.core.api.query(mls.getGroupInfo.main, { convoId: convo })
        const own = this.core.mls.infoOf(groupInfo).members.filter(({ identity }) => didOf(identity) === this.core.did)
        const ids = await Promise.all(own.map(({ signatureKey }) => sha256(signatureKey)))
        if (ids.includes(deviceId)) await this.enter(convo, true)
      } catch (err) {
        this.handler.later(Promise.reject(err))
      }
    }
  }

  /**
   * Enters a convo of this person after a random wait: with its Welcome, or else by an external commit, if another
   * listed device of the person is in the group.
   *
   * @param again set to enter a convo too that this device was removed from
   */
  enter(convo: ConvoId, again = false): Promise<void> {
    return once(this.entering, convo, async () => {
      if (await this.isIn(convo, again)) return
      await this.turns.run("", async () => {
        await this.core.clock.sleep(this.core.clock.random() * mostWait, this.signal)
        if (this.signal.aborted || (await this.isIn(convo, again))) return
        await this.handler.join(convo)
        if (!(await this.isIn(convo, again))) await this.enterByItself(convo)
      })
    })
  }

  private async isIn(convo: ConvoId, again: boolean): Promise<boolean> {
    if (this.core.services.of(convo) !== undefined) return true // another service's convos are entered by invitation
    const thread = await this.log.thread(convo)
    return thread !== undefined && !(again && thread.left)
  }

  private async enterByItself(convo: ConvoId): Promise<void> {
    const queue = rejoinQueue(convo)
    if (this.outbox.pending(queue).length > 0) return // an earlier life has begun it
    await this.handler.list()
    const content: RejoinContent = { convoId: convo, own: true }
    const { write, settled } = await this.outbox.add(queue, "rejoin", { ...content })
    await this.unlessRefused(write.id, settled)
    await this.handler.entered(convo)
  }

  // unlessRefused waits for a write that the app has not asked for, so it is not in its list of refused ones.
  private async unlessRefused(id: string, settled: Promise<unknown>): Promise<void> {
    try {
      await settled
    } catch (err) {
      if (!(err instanceof DiscardedError)) await this.outbox.discard(id)
      throw err
    }
  }

  // Listing

  /**
   * The devices of this person.
   *
   * @throws AccountAwayError
   */
  async list(): Promise<OwnDevice[]> {
    const { did, api, mls: library } = this.core
    const [records, stats] = await Promise.all([this.accounts.devices(did), api.query(mls.getKeyPackageStats.main, {})])
    const devices = new Map<string, OwnDevice>()
    const add = (deviceId: string, more: Partial<OwnDevice>) => {
      const before = devices.get(deviceId) ?? { deviceId, own: false, listed: false, keyPackages: 0, convos: [] }
      devices.set(deviceId, { ...before, ...more })
    }
    add(await sha256(library.signatureKey), { own: true, key: library.signatureKey })
    for (const { key, name } of records) add(await sha256(key), { key, listed: true, ...(name !== undefined && { name }) })
    for (const { deviceId, available, lastResort } of stats.byDevice) add(deviceId, { keyPackages: available + lastResort })
    for (const { convoId, key } of await this.leaves()) {
      const deviceId = await sha256(key)
      add(deviceId, { key, convos: [...(devices.get(deviceId)?.convos ?? []), convoId] })
    }
    return [...devices.values()].filter(isThere)
  }

  // leaves are the leaves of this person in the groups that this device is in.
  private async leaves(): Promise<{ convoId: ConvoId; key: Uint8Array }[]> {
    const all = []
    for (const { convoId } of await presentIn(this.core.store)) {
      const group = await groupOf(this.core, convoId)
      const own = group?.active ? group.members.filter(({ identity }) => didOf(identity) === this.core.did) : []
      all.push(...own.map(({ signatureKey: key }) => ({ convoId, key })))
    }
    return all
  }

  // Removing

  /**
   * Takes another device of this person out of everything: its record, its leaves in the groups that this device
   * is in, its KeyPackages, its push targets and its sessions. A later life of the client goes on with it.
   *
   * @throws OwnDeviceError if it is this device
   */
  async remove(deviceId: string): Promise<void> {
    if (deviceId === (await sha256(this.core.mls.signatureKey))) {
      throw new OwnDeviceError("this is the device itself: call signOut()")
    }
    if ((await this.core.store.read(names.removal(deviceId))) === undefined) await this.save({ deviceId })
    return this.finish(deviceId)
  }

  /** Goes on with what an earlier life has not finished. */
  async resume(): Promise<void> {
    for (const { deviceId } of await getAll<Removal>(this.core.store, names.removals)) this.handler.later(this.finish(deviceId))
  }

  private finish(deviceId: string): Promise<void> {
    return once(this.removing, deviceId, async () => {
      if (this.handler.admits) await this.enterWhere(deviceId)
      const key = await this.keyOf(deviceId)
      if (key !== undefined) await this.unlist(key)
      const leaves = (await this.leaves()).filter((leaf) => key !== undefined && same(leaf.key, key))
      await Promise.all([this.endAtServices(deviceId), ...leaves.map(({ convoId }) => this.takeOut(convoId, key as Uint8Array))])
      await this.core.store.write(new Map([[names.removal(deviceId), undefined]]))
    })
  }

  // keyOf finds the signature key of a device, and remembers it: nothing else does when the record is gone.
  private async keyOf(deviceId: string): Promise<Uint8Array | undefined> {
    const saved = await get<Removal>(this.core.store, names.removal(deviceId))
    if (saved?.key !== undefined) return fromHex(saved.key)
    const leaves = (await this.leaves()).map(({ key }) => key)
    const records = await this.patiently(() => this.accounts.devices(this.core.did))
    for (const key of [...leaves, ...records.map((record) => record.key)]) {
      if ((await sha256(key)) !== deviceId) continue
      await this.save({ deviceId, key: hex(key) })
      return key
    }
    return undefined
  }

  private async save(removal: Removal): Promise<void> {
    const changes: Changes = new Map()
    put(changes, names.removal(removal.deviceId), removal)
    await this.core.store.write(changes)
  }

  private async unlist(key: Uint8Array): Promise<void> {
    await this.patiently(() => this.accounts.unlist(key))
    await this.core.devices.gone({ identity: this.core.did, signatureKey: key })
  }

  // takeOut removes a leaf. Another device can be faster: then nothing is left to do.
  private async takeOut(convo: ConvoId, key: Uint8Array): Promise<void> {
    const content: RemoveContent = { did: this.core.did, device: hex(key) }
    const { write, settled } = await this.outbox.add(convo, "remove", { ...content })
    await this.unlessRefused(write.id, settled).catch((err: unknown) => {
      if (!isRefusal(err) && !(err instanceof DiscardedError)) throw err // the person is not in it any more
    })
  }

  private async endAtServices(deviceId: string): Promise<void> {
    const { services } = this.core
    const others = services.others().map((service) => this.endAt(services.at(service), deviceId))
    for (const api of [undefined, ...services.leaving].map((service) => services.at(service))) {
      await api.procedure(mls.withdrawKeyPackages.main, withIdempotencyKey({ deviceId }, this.core.clock))
      await this.endAt(api, deviceId)
    }
    await this.atMost(longestGoodbye, others)
  }

  // endAt ends the push targets of a device and its sessions, if the service has any.
  private async endAt(api: Api, deviceId: string): Promise<void> {
    await lacking(api.procedure(mls.unregisterPushTarget.main, withIdempotencyKey({ deviceId }, this.core.clock)))
    await lacking(api.procedure(mls.deleteSession.main, { deviceId }))
  }

  // Signing out

  /** Reports whether this device has begun to sign out. */
  async isSigningOut(): Promise<boolean> {
    return (await this.core.store.read(names.signingOut)) !== undefined
  }

  /**
   * Takes this device out of everything but its store. It proposes to remove its leaves: the other devices of the
   * person, or other members, commit that. A later life of the client repeats it.
   */
  async signOut(): Promise<void> {
    await this.core.store.write(new Map([[names.signingOut, new Uint8Array()]]))
    await this.atMost(longestGoodbye, (await presentIn(this.core.store)).map(({ convoId }) => this.retire(convoId)))
    await this.patiently(() => this.accounts.unlist(this.core.mls.signatureKey))
    await this.endAtServices(await sha256(this.core.mls.signatureKey))
  }

  private async retire(convo: ConvoId): Promise<void> {
    const content: RetireContent = { device: hex(this.core.mls.signatureKey) }
    const { write, settled } = await this.outbox.add(convo, "retire", { ...content })
    await this.unlessRefused(write.id, settled)
  }

  // atMost waits for steps that need not succeed, and not longer than so many milliseconds.
  private async atMost(ms: number, steps: readonly Promise<void>[]): Promise<void> {
    const done = new AbortController()
    const all = Promise.allSettled(steps).then(() => done.abort())
    await Promise.race([all, this.core.clock.sleep(ms, AbortSignal.any([done.signal, this.signal]))])
  }

  // patiently repeats what only fails because nobody answers.
  private async patiently<T>(step: () => Promise<T>): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await step()
      } catch (err) {
        if (!(err instanceof NoAnswerError || err instanceof AccountAwayError)) throw err
        await this.core.clock.sleep(backoff(this.core.clock, attempt), this.signal)
        if (this.signal.aborted) throw err
      }
    }
  }
}

function isThere({ own, listed, keyPackages, convos }: OwnDevice): boolean {
  return own || listed || keyPackages > 0 || convos.length > 0
}

// lacking lets a service lack a method: it has nothing of the kind then.
async function lacking(step: Promise<unknown>): Promise<void> {
  await step.catch((err: unknown) => {
    if (!(err instanceof XrpcError) || err.status !== 501) throw err
  })
}
