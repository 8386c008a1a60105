// The keeper of the stock of KeyPackages: docs/KEYPACKAGES.md.

import type { Api } from "./api.js"
import { hex, sha256 } from "./bytes.js"
import type { Core } from "./core.js"
import { XrpcError } from "./errors.js"
import type { LexValue } from "./json.js"
import type { Outbox } from "./outbox.js"
import { names } from "./records.js"
import { mostAtOnce, type PublishContent } from "./write-keypackages.js"
import * as mls from "#lexicons"

/** The queue of publications. */
export const publishQueue = "keypackages"

/** The most KeyPackages in one list, or in one withdrawal. */
const pageSize = 250

/** The states in which a Welcome can still name a KeyPackage. */
const usable = new Set(["available", "claimed", "orphaned"])

/** The device's id: the SHA-256 of its signature key, in hexadecimal. */
export function deviceIdOf(core: Core): Promise<string> {
  return sha256(core.mls.signatureKey)
}

/** Keeps enough KeyPackages of this device published, and always one of last resort. */
export class KeyPackageStock {
  /** @param full how many one-time KeyPackages a full stock has, at most 99 */
  constructor(
    private readonly core: Core,
    private readonly outbox: Outbox,
    private readonly full = mostAtOnce - 1,
  ) {}

  private compared = false
  private rejected = false // some of the last publication

  /**
   * Asks how many are available, and publishes what is missing if the server says that more are needed
   * or none is of last resort. The first time it also withdraws those that this device cannot use.
   * Call it after the start, once a day, and at a `#keyPackagesEvent`.
   *
   * @returns how many were published
   */
  async keep(): Promise<number> {
    if (this.outbox.pending(publishQueue).length > 0) return 0
    if (!this.compared) await this.withdrawLost()
    this.compared = true
    const device = await this.counts()
    if (device !== undefined && !device.needsReplenish && device.lastResort > 0) return 0
    return this.publish(Math.max(0, this.full - (device?.available ?? 0)), (device?.lastResort ?? 0) === 0)
  }

  /** Publishes what the server has rejected, now that the time is another one. */
  async again(): Promise<void> {
    if (this.rejected) await this.keep()
  }

  /**
   * Publishes new KeyPackages, and returns how many the server took.
   *
   * @throws XrpcError if it took none
   */
  async publish(oneTime: number, lastResort: boolean): Promise<number> {
    if (oneTime === 0 && !lastResort) return 0
    const content: PublishContent = { oneTime, lastResort }
    const added = await this.outbox.add(publishQueue, "publish", { ...content } satisfies LexValue)
    const { published, rejected } = (await this.outbox.outcome(added)) as { published: number; rejected: string[] }
    this.rejected = rejected.length > 0
    const [, error = "", text = ""] = /^(\w*): (.*)$/s.exec(rejected[0] ?? "") ?? []
    if (published === 0 && this.rejected) throw new XrpcError(400, error, text)
    return published
  }

  /** Withdraws at a former home what nobody has claimed there. What was claimed can be on its way back. */
  async withdrawAt(api: Api): Promise<void> {
    await this.withdraw(api, await this.refs(api, (state) => state === "available"))
  }

  // withdrawLost withdraws those whose private parts this device has lost, as with an older copy of its
  // store: nobody could welcome it by them. What the server has lost it asks for by needsReplenish.
  private async withdrawLost(): Promise<void> {
    const known = await this.refs(this.core.api, (state) => usable.has(state))
    // Private parts are stored before their KeyPackages are sent: read now, the store has them all.
    const held = new Set(await this.core.store.list(names.keyPackage("")))
    await this.withdraw(this.core.api, known.filter((ref) => !held.has(names.keyPackage(ref))))
  }

  // refs lists this device's KeyPackages at a service that are in some states.
  private async refs(api: Api, isWanted: (state: string) => boolean): Promise<string[]> {
    const deviceId = await deviceIdOf(this.core)
    const all: string[] = []
    for (let cursor: string | undefined; ; ) {
      const page = await api.query(mls.getOwnKeyPackages.main, { deviceId, limit: pageSize, ...(cursor !== undefined && { cursor }) })
      for (const { keyPackageRef, state } of page.keyPackages) if (isWanted(state)) all.push(keyPackageRef)
      cursor = page.cursor
      if (cursor === undefined) return all
    }
  }

  private async withdraw(api: Api, refs: readonly string[]): Promise<void> {
    const deviceId = await deviceIdOf(this.core)
    for (let i = 0; i < refs.length; i += pageSize) {
      await api.procedure(mls.withdrawKeyPackages.main, {
        deviceId, keyPackageRefs: refs.slice(i, i + pageSize), idempotencyKey: hex(this.core.clock.randomBytes(16)),
      })
    }
  }

  private async counts() {
    const deviceId = await deviceIdOf(this.core)
    const { byDevice } = await this.core.api.query(mls.getKeyPackageStats.main, { deviceId })
    return byDevice.find((device) => device.deviceId === deviceId)
  }
}
