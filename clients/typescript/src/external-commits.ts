// External commits, by which a device enters a group again. A stuck device follows steps 2 to 4 of
// docs/clients/DISPUTES.md.

import { ContraryError, mustFit, mustHaveOwn } from "./binding.js"
import type { Core } from "./core.js"
import { UnknownDeviceError } from "./devices.js"
import { errorName, XrpcError } from "./errors.js"
import type { ConvoId } from "./ids.js"
import { didOf, type Staged } from "./mls.js"
import { isStuck, names, type Thread } from "./records.js"
import { get } from "./store.js"
import * as mls from "#lexicons"

const second = 1000

/** Bounds of the random wait before an attempt: the first one, and up to which it doubles. */
const firstBound = 50
const mostBound = second
/** After `patientFor` the bound doubles further: nobody is there who could provide a GroupInfo. */
const patientFor = 60 * second
const mostLateBound = 60 * second
/** So long a device waits for a GroupInfo that the committer has not signed. */
const trustAfter = 2 * second
const trustAfterDisputed = 8 * second // while the convo is in dispute

/** How far a stuck device is. */
interface Attempts {
  readonly since: number
  bound: number
}

/** Makes external commits. */
export class ExternalCommits {
  private readonly attempts = new Map<string, Attempts>()

  constructor(
    private readonly core: Core,
    private readonly signal: AbortSignal,
  ) {}

  /**
   * Makes an external commit, with the server's GroupInfo. A stuck device waits until that is one that
   * it can use, and that another member than the committer has signed.
   *
   * @param own set if the device is new in the convo, and another listed device of its person must be in the group
   * @throws XrpcError `InvalidGroupInfo` if MLS refuses the GroupInfo, and the device is not stuck
   * @throws ContraryError if it is not of the convo's group, and the device is not stuck
   */
  async stage(convoId: ConvoId, own = false): Promise<Staged> {
    for (;;) {
      const thread = await get<Thread>(this.core.store, names.thread(convoId))
      if (thread === undefined || !isStuck(thread)) return this.join(convoId, await this.groupInfo(convoId), own)
      const staged = await this.attempt(thread)
      if (staged !== undefined) return staged
    }
  }

  /** Forgets how often a device has tried: it is in the group again. */
  accepted(convoId: string): void {
    this.attempts.delete(convoId)
  }

  private async attempt(thread: Thread): Promise<Staged | undefined> {
    const { clock } = this.core
    const { convoId } = thread
    const so = this.attempts.get(convoId) ?? { since: clock.now(), bound: firstBound }
    this.attempts.set(convoId, so)
    const dispute = await this.report(thread)
    await clock.sleep(clock.random() * so.bound, this.signal)
    const waited = clock.now() - so.since
    so.bound = Math.min(2 * so.bound, waited < patientFor ? mostBound : mostLateBound)
    const distrusted = dispute?.committer ?? thread.failed?.committer
    const trusts = waited > (dispute?.disputed ? trustAfterDisputed : trustAfter)
    try {
      const groupInfo = await this.groupInfo(convoId)
      if (!trusts && didOf(this.core.mls.infoOf(groupInfo).signer) === distrusted) return undefined
      return await this.join(convoId, groupInfo)
    } catch (err) {
      if (err instanceof XrpcError && !isUnusable(err)) throw err
      if (this.signal.aborted) throw err
      return undefined // another member provides a better one
    }
  }

  // report says which commit could not be processed. After a restore the server may not have it.
  private async report({ convoId, failed }: Thread) {
    if (failed === undefined) return undefined
    try {
      return await this.core.api.procedure(mls.reportCommit.main, { convoId, epoch: failed.epoch, reason: "undecryptable" })
    } catch (err) {
      if (errorName(err) !== "EpochMismatch") throw err
      return undefined
    }
  }

  private async groupInfo(convoId: string): Promise<Uint8Array> {
    return (await this.core.api.query(mls.getGroupInfo.main, { convoId })).groupInfo
  }

  private async join(convoId: ConvoId, groupInfo: Uint8Array, own = false): Promise<Staged> {
    try {
      const offered = this.core.mls.infoOf(groupInfo)
      await mustFit(this.core, "groupInfo", convoId, offered)
      if (own) await mustHaveOwn(this.core, convoId, offered)
      return await this.core.mls.joinExternal(groupInfo)
    } catch (err) {
      if (err instanceof ContraryError || err instanceof UnknownDeviceError) throw err
      throw new XrpcError(400, "InvalidGroupInfo", String(err))
    }
  }
}

/** Reports whether an external commit failed because of the GroupInfo: with another one it can succeed. */
export function isUnusable(err: unknown): boolean {
  return ["GroupInfoNotFound", "InvalidGroupInfo", "InvalidCommit"].includes(errorName(err))
}
