// Who is in a convo's group: docs/clients/DEVICES.md.

import { hex } from "./bytes.js"
import type { Core } from "./core.js"
import { type Device, isKnown } from "./devices.js"
import { DiscardedError } from "./errors.js"
import type { ConvoId, Did } from "./ids.js"
import { backoff } from "./clock.js"
import { once } from "./locks.js"
import type { Log } from "./log.js"
import { didOf, type Group } from "./mls.js"
import type { DeviceNews, News } from "./news.js"
import type { Outbox } from "./outbox.js"
import { lockOf, mustRead, names, presentIn, type Thread } from "./records.js"
import type { Changes } from "./store.js"
import type { RemoveContent } from "./write-commits.js"

/** What an app can decide about a device, or about a person. */
export interface Doubt {
  readonly convo: ConvoId
  readonly did: Did
  /** The device's signature key. It is absent for a person who has left. */
  readonly key?: Uint8Array
  /** Why nothing is encrypted for the device; or `left`: only the service says that the person has left. */
  readonly why: "waiting" | "unlisted" | "uninvited" | "left"
}

/** What {@link Members} call. */
export interface MembersHandler {
  /** Returns whether a device shall be used: see {@link ClientOptions.decide}. */
  decide(doubt: Doubt): Promise<boolean>
  /** Something has failed that nobody waits for. */
  later(done: Promise<void>): void
}

/** So often the groups are looked at in which an answer can be old, in milliseconds. */
const lookEvery = 3_600_000

/** Judges who is in groups. Messages wait until everybody in their group is known. */
export class Members {
  private readonly clear = new Map<string, number>() // until when everybody in a group is known
  private readonly versions = new Map<string, number>() // how often a group has changed: what was judged before is old
  private readonly removing = new Set<string>()
  private readonly settling = new Map<string, Promise<Device[]>>()
  private readonly watching = new Map<string, Promise<void>>()
  private readonly told = new Set<string>()

  constructor(
    private readonly core: Core,
    private readonly log: Log,
    private readonly outbox: () => Outbox,
    private readonly signal: AbortSignal,
    private readonly handler: MembersHandler,
  ) {}

  /** Judges a group's devices before a message, unless they are known. */
  prepare(convo: string): Promise<void> | undefined {
    if (this.isClear(convo)) return undefined
    return this.settle(convo as ConvoId).then(async () => {
      const [thread, group] = await this.read(convo)
      if (thread !== undefined && group?.active) this.core.devices.mustKnow(group, thread)
    })
  }

  /** Judges a group's devices, unless they are known. */
  async settled(convo: ConvoId): Promise<void> {
    if (!this.isClear(convo)) await this.settle(convo)
  }

  /** A group has other members: judges them, and again until all are known or gone. */
  changed(convo: ConvoId): void {
    this.clear.delete(convo)
    this.versions.set(convo, this.version(convo) + 1)
    this.handler.later(this.watch(convo))
  }

  /** Judges all groups, one after the other, and each hour those whose answers are old: a record can be deleted. */
  async begin(): Promise<void> {
    while (!this.signal.aborted) {
      for (const { convoId } of await presentIn(this.core.store)) {
        if (this.signal.aborted) return
        await this.settled(convoId).catch((err: unknown) => this.handler.later(Promise.reject(err)))
        if (!this.isClear(convoId)) this.handler.later(this.watch(convoId))
      }
      await this.core.clock.sleep(lookEvery, this.signal)
    }
  }

  // changedAll judges the other groups: a device of one of them is not known any more.
  private changedAll(): void {
    for (const convo of this.clear.keys()) this.changed(convo as ConvoId)
  }

  private isClear(convo: string): boolean {
    return this.core.clock.now() < (this.clear.get(convo) ?? 0)
  }

  private version(convo: string): number {
    return this.versions.get(convo) ?? 0
  }

  // watch judges one version of a group. The next one has a watch of its own.
  private watch(convo: ConvoId): Promise<void> {
    const version = this.version(convo)
    return once(this.watching, `${convo} ${version}`, async () => {
      for (let attempt = 1; !this.signal.aborted && version === this.version(convo); attempt++) {
        if ((await this.settle(convo)).length === 0) return
        await this.core.clock.sleep(backoff(this.core.clock, attempt), this.signal)
      }
    })
  }

  /** Asks about the devices of a convo's group that are not known, and does what follows. Returns those that stay unknown. */
  settle(convo: ConvoId): Promise<Device[]> {
    const version = this.version(convo)
    return once(this.settling, `${convo} ${version}`, async () => {
      const [thread, group] = await this.read(convo)
      if (thread === undefined || group === undefined || !group.active || thread.left) return []
      await this.removeLeavers(thread, group)
      const before = group.members.map((leaf) => this.core.devices.of(leaf).state)
      const after = await this.core.devices.judge(group.members)
      await this.tell(convo, after.filter(({ state }, i) => state !== before[i]))
      if (after.some(({ state }, i) => state === "unlisted" && isKnown(before[i] as Device["state"]))) this.changedAll()
      const unknown: Device[] = []
      for (const device of this.core.devices.unknownIn(group, thread)) {
        if (!(await this.settleOne(thread, device))) unknown.push(device)
      }
      await this.core.locks.run(lockOf(convo), () => this.log.release(convo))
      if (unknown.length === 0 && version === this.version(convo)) this.clear.set(convo, this.core.devices.freshUntil(group))
      if (unknown.length === 0 || after.some(({ state }, i) => state !== before[i])) this.outbox().resume(convo)
      return unknown
    })
  }

  // settleOne asks the app about a device, and takes it out of the group if its account says so. It returns
  // whether the device is known now.
  private async settleOne(thread: Thread, { did, key, state }: Device): Promise<boolean> {
    const why = isKnown(state) ? "uninvited" : (state as "waiting" | "unlisted")
    const doubt: Doubt = { convo: thread.convoId, did, key, why }
    if (why !== "unlisted") await this.tellOnce(thread.convoId, { change: why, did, key })
    if (await this.handler.decide(doubt)) {
      if (!isKnown(state)) await this.core.devices.accept({ identity: did, signatureKey: key })
      await this.admit(thread.convoId, did)
      return true
    }
    if (why === "unlisted") await this.remove(thread.convoId, did, key)
    return false
  }

  // admit lets a person be in a group who has entered by themselves.
  private admit(convo: ConvoId, did: Did): Promise<void> {
    return this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (!thread?.uninvited?.includes(did)) return
      await this.log.save({ ...thread, uninvited: thread.uninvited.filter((one) => one !== did) })
    })
  }

  // removeLeavers commits the proposals by which members have removed their own leaves. If this device is one of
  // those, its person leaves, and the others commit that.
  private async removeLeavers({ convoId, leaving = [] }: Thread, { members }: Group): Promise<void> {
    if (leaving.includes(hex(this.core.mls.signatureKey))) return
    const gone = members.filter(({ signatureKey }) => leaving.includes(hex(signatureKey)))
    for (const { identity, signatureKey } of gone) await this.remove(convoId, didOf(identity) as Did, signatureKey, true)
  }

  // remove takes a device out of the group, once in a life of the client and version of the group. The service
  // lets its own person do it, those who may remove people, and everybody if it has proposed that itself. To
  // the others it is refused: the app has not asked for it, so it does not hear that.
  private async remove(convo: ConvoId, did: Did, key: Uint8Array, leaving = false): Promise<void> {
    const content: RemoveContent = { did, device: hex(key), ...(leaving && { leaving }) }
    const name = [convo, this.version(convo), did, content.device].join(" ")
    if (this.removing.has(name)) return
    this.removing.add(name)
    const { write, settled } = await this.outbox().add(convo, "remove", { ...content })
    settled.catch((err: unknown) => {
      if (!(err instanceof DiscardedError)) this.handler.later(this.outbox().discard(write.id))
    })
  }

  private async tell(convo: ConvoId, devices: readonly Device[]): Promise<void> {
    for (const { did, key, state } of devices) {
      if (state !== "accepted") await this.tellOnce(convo, { change: state, did, key })
    }
  }

  private async tellOnce(convo: ConvoId, device: DeviceNews): Promise<void> {
    const name = [convo, device.change, device.did, hex(device.key)].join(" ")
    if (this.told.has(name)) return
    this.told.add(name)
    const changes: Changes = new Map()
    this.core.news.add(changes, { convo, device } satisfies News)
    await this.core.store.write(changes)
    await this.core.news.deliver()
  }

  private async read(convo: string): Promise<[Thread | undefined, Group | undefined]> {
    const thread = await this.log.thread(convo)
    if (thread === undefined) return [undefined, undefined]
    return [thread, this.core.mls.describe(await mustRead(this.core.store, names.group(convo)))]
  }
}

/** What has become of the devices between two states of a group. */
export function changesOf(before: Pick<Group, "members">, after: Pick<Group, "members">): DeviceNews[] {
  const key = ({ identity, signatureKey }: Group["members"][number]) => `${didOf(identity)} ${hex(signatureKey)}`
  const [were, are] = [new Set(before.members.map(key)), new Set(after.members.map(key))]
  const entered = after.members.filter((member) => !were.has(key(member)))
  const gone = before.members.filter((member) => !are.has(key(member)))
  const isNewKeyOf = (a: Group["members"][number], b: Group["members"][number]) => a.index === b.index && didOf(a.identity) === didOf(b.identity)
  const news = (change: DeviceNews["change"]) => ({ identity, signatureKey }: Group["members"][number]): DeviceNews =>
    ({ change, did: didOf(identity) as Did, key: signatureKey })
  return [
    ...entered.map((member) => news(gone.some((old) => isNewKeyOf(old, member)) ? "keyChanged" : "entered")(member)),
    ...gone.filter((old) => !entered.some((member) => isNewKeyOf(old, member))).map(news("left")),
  ]
}
