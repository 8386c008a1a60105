// Whose key a leaf has: the account says it, in its own repository. docs/clients/DEVICES.md.

import { AccountAwayError, type Accounts } from "./accounts.js"
import { hex, same } from "./bytes.js"
import type { Clock } from "./clock.js"
import { AwayError } from "./errors.js"
import { asDid, type Did } from "./ids.js"
import { once } from "./locks.js"
import { didOf, type Group, type Member, type Mls } from "./mls.js"
import { names, type Thread } from "./records.js"
import { type Changes, getAll, put, type Store } from "./store.js"

/**
 * What a client knows of a device, which is a signature key in an account's name:
 *
 * | state | |
 * |---|---|
 * | `listed` | the account lists it |
 * | `accepted` | the account does not list it, or could not be asked, and the app has accepted it |
 * | `waiting` | the account could not be asked yet |
 * | `unlisted` | the account does not list it |
 */
export interface Device {
  readonly did: Did
  readonly key: Uint8Array
  readonly state: "listed" | "accepted" | "waiting" | "unlisted"
  /** When the account has answered last, in milliseconds of Unix time; 0 if it never has. */
  readonly askedAt: number
}

/** A leaf, or the leaf of a KeyPackage. */
export type Leaf = Pick<Member, "identity" | "signatureKey">

/** A device whose account cannot be asked now, or that its account does not list: nothing is encrypted for it. */
export class UnknownDeviceError extends AwayError {
  override readonly name = "UnknownDeviceError"
  override readonly code = "UnknownDevice"

  constructor(readonly devices: readonly Device[], cause?: unknown) {
    const text = devices.map(({ did, state }) => `${did} has a device that ${state === "unlisted" ? "it does not list" : "waits to be checked"}`)
    super(text.join("; "), devices.every(({ state }) => state === "unlisted") ? askAgainAfter : undefined, { cause })
  }
}

/** So long an answer counts before the account is asked again, in milliseconds. */
const freshFor = 24 * 3_600_000
/** So long it counts for other devices of the own account: this device takes those that were stolen out of groups. */
const ownFreshFor = 3_600_000
/** So long a client waits before it asks again for a listed device whose account was away. */
const askAwayAfter = 3_600_000
/** So many accounts are asked at once. */
const mostAtOnce = 8
/** So long a client waits before it asks again for a device that is not listed. */
const askAgainAfter = 60_000

/** What {@link Devices} work with. */
export interface DevicesParts {
  readonly did: Did
  readonly accounts: Accounts
  readonly store: Store
  readonly mls: Mls
  readonly clock: Clock
  readonly signal: AbortSignal
}

/** The devices that a client knows. */
export class Devices {
  private readonly asking = new Map<string, Promise<Device>>()
  private readonly triedAt = new Map<string, number>() // when the account of a listed device was away

  private constructor(
    private readonly parts: DevicesParts,
    private readonly known: Map<string, Device>,
  ) {}

  static async open(parts: DevicesParts): Promise<Devices> {
    const all = await getAll<Device>(parts.store, names.devices)
    return new Devices(parts, new Map(all.map((device) => [nameOf(device.did, device.key), device])))
  }

  /** What is known of a leaf's device. It asks nobody. */
  of({ identity, signatureKey }: Leaf): Device {
    const did = didOf(identity)
    const own = did === this.parts.did && same(signatureKey, this.parts.mls.signatureKey)
    const known = this.known.get(nameOf(did, signatureKey))
    return known ?? { did: did as Did, key: signatureKey, state: own ? "listed" : "waiting", askedAt: 0 }
  }

  /** The devices of a group for which nothing may be encrypted. */
  unknownIn(group: Group, thread: Thread): Device[] {
    const devices = group.members.map((leaf) => this.of(leaf))
    return devices.filter(({ did, state }) => !isKnown(state) || thread.uninvited?.includes(did))
  }

  /** @throws UnknownDeviceError if nothing may be encrypted for the group now */
  mustKnow(group: Group, thread: Thread): void {
    const unknown = this.unknownIn(group, thread)
    if (unknown.length > 0) throw new UnknownDeviceError(unknown)
  }

  /**
   * Asks the accounts of devices that are not known, or not lately. A device that was listed stays so
   * while its account cannot be asked.
   */
  async judge(leaves: readonly Leaf[]): Promise<Device[]> {
    const devices: Device[] = []
    const left = leaves.entries()
    const work = async () => {
      for (const [i, leaf] of left) devices[i] = await this.judgeOne(leaf)
    }
    await Promise.all(Array.from({ length: mostAtOnce }, work))
    return devices
  }

  /** When {@link judge} asks an account of a group again at the earliest, in milliseconds of Unix time. */
  freshUntil({ members }: Group): number {
    return Math.min(...members.map((leaf) => this.askAt(this.of(leaf))))
  }

  private askAt({ did, key, state, askedAt }: Device): number {
    const own = did === this.parts.did
    if (state === "accepted" || (own && same(key, this.parts.mls.signatureKey))) return Number.POSITIVE_INFINITY
    if (state === "waiting") return 0
    if (state === "unlisted") return askedAt + askAgainAfter
    return Math.max(askedAt + (own ? ownFreshFor : freshFor), (this.triedAt.get(nameOf(did, key)) ?? 0) + askAwayAfter)
  }

  private judgeOne(leaf: Leaf): Promise<Device> {
    const device = this.of(leaf)
    if (this.parts.clock.now() < this.askAt(device)) return Promise.resolve(device)
    return once(this.asking, nameOf(device.did, device.key), () => this.ask(device))
  }

  private async ask(device: Device): Promise<Device> {
    const { accounts, clock, signal } = this.parts
    try {
      const listed = isDid(device.did) && (await accounts.lists(device.did, device.key, signal))
      return await this.save({ ...device, state: listed ? "listed" : "unlisted", askedAt: clock.now() })
    } catch (err) {
      if (!(err instanceof AccountAwayError)) throw err
      this.triedAt.set(nameOf(device.did, device.key), clock.now())
      return device
    }
  }

  /**
   * Forgets how fresh the answer about a device is: its account is asked before the next message. While the account
   * is away, a listed device stays so.
   */
  askAgain(leaf: Leaf, changes: Changes): void {
    const device = this.of(leaf)
    if (device.state !== "listed" || same(device.key, this.parts.mls.signatureKey)) return
    const name = nameOf(device.did, device.key)
    const old: Device = { ...device, askedAt: 0 }
    put(changes, names.knownDevice(device.did, hex(device.key)), old)
    this.known.set(name, old)
    this.triedAt.delete(name)
  }

  /** Uses a device as if its account listed it. */
  async accept(leaf: Leaf): Promise<void> {
    await this.save({ ...this.of(leaf), state: "accepted" })
  }

  /** This person has taken a device's record away. */
  async gone(leaf: Leaf): Promise<void> {
    const changes: Changes = new Map()
    const device: Device = { ...this.of(leaf), state: "unlisted", askedAt: this.parts.clock.now() }
    put(changes, names.knownDevice(device.did, hex(device.key)), device)
    await this.parts.store.write(changes)
    this.known.set(nameOf(device.did, device.key), device)
  }

  private async save(device: Device): Promise<Device> {
    const before = this.of({ identity: device.did, signatureKey: device.key })
    if (before.state === "accepted" && device.state !== "listed") return before
    const changes: Changes = new Map()
    put(changes, names.knownDevice(device.did, hex(device.key)), device)
    await this.parts.store.write(changes)
    this.known.set(nameOf(device.did, device.key), device)
    return device
  }
}

/** Reports whether messages may be encrypted for a device. */
export function isKnown(state: Device["state"]): boolean {
  return state === "listed" || state === "accepted"
}

function nameOf(did: string, key: Uint8Array): string {
  return `${did} ${hex(key)}`
}

function isDid(did: string): boolean {
  try {
    asDid(did)
    return true
  } catch {
    return false
  }
}
