// Commits that a device cannot process, and groups that are split: docs/clients/DISPUTES.md.

import { fromHex, sha256 } from "./bytes.js"
import type { Input } from "./api.js"
import type { Core } from "./core.js"
import { errorName, XrpcError, successorIn } from "./errors.js"
import type { StreamEvent } from "./events.js"
import { isUnusable } from "./external-commits.js"
import type { ConvoId } from "./ids.js"
import { once } from "./locks.js"
import type { Log } from "./log.js"
import { didOf } from "./mls.js"
import type { Outbox } from "./outbox.js"
import { isStuck, lockOf, names, rejoinQueue, resetQueue, type Thread } from "./records.js"
import * as mls from "#lexicons"

/** Bounds of the random wait before a device sends its GroupInfo: the first one, and up to which it doubles. */
const firstBound = 1000
const mostBound = 5000

/** What an app can show of a dispute. */
export interface Dispute {
  /**
   * `failed`: this device could not process a commit, and comes back by itself; `returned`: it is back.
   * `disputed`, `ended` and `forked` are of the convo, in the words of `#disputeEvent`.
   */
  readonly change: string
  /** The epoch that the commit creates, or in which the group is split. */
  readonly epoch: number
  /** The DID of the commit's sender. It is absent if the group is split. */
  readonly committer?: string
}

/** What a person has read, or a device has got. */
export interface Position {
  readonly seq: number
  readonly delivered?: number
}

/** The epoch that a device is in. */
interface Present {
  readonly epoch: number
  readonly authenticatorHash: Uint8Array
  readonly state: Uint8Array
}

/** What disputes call. */
export interface DisputesHandler {
  onDispute(convo: ConvoId, dispute: Dispute): void
  /** Reads the log. It does not throw if the device is stuck or the person is not a member any more. */
  sync(convo: ConvoId): Promise<void>
}

/** Brings a device back that is stuck, and compares its epochs with those of others. */
export class Disputes {
  private readonly returning = new Map<string, Promise<void>>()
  private readonly comparing = new Map<string, Promise<void>>()
  private readonly reported = new Map<string, number>()

  constructor(
    private readonly core: Core,
    private readonly log: Log,
    private readonly outbox: Outbox,
    private readonly signal: AbortSignal,
    private readonly handler: DisputesHandler,
  ) {}

  /** Brings a device back if it is stuck, and sends what has waited for that. */
  comeBack(convo: ConvoId): Promise<void> {
    return once(this.returning, convo, () => this.enterAll(convo))
  }

  /** Does what an event asks for. The log has been read up to it. */
  async take(convoId: ConvoId, event: Extract<StreamEvent, { type: "disputeEvent" }>["body"]): Promise<void> {
    const { change, epoch, committer } = event
    this.handler.onDispute(convoId, { change, epoch, ...(committer && { committer }) })
    if (change === "disputed") this.outbox.hold(convoId)
    if (change === "ended") [convoId, rejoinQueue(convoId), resetQueue(convoId)].forEach((queue) => this.outbox.release(queue))
    else await this.compare(convoId)
  }

  /**
   * Moves a cursor, and reports the device's epoch with it, once per epoch. Returns whether another
   * member reports another group: then call {@link compare}.
   */
  async moveCursor(convoId: ConvoId, position: Position): Promise<boolean> {
    const present = await this.present(convoId)
    const news = present !== undefined && this.reported.get(convoId) !== present.epoch
    const { forked } = await this.core.api.procedure(mls.updateCursor.main, {
      convoId, ...position, ...(news && { epoch: present.epoch, authenticatorHash: present.authenticatorHash }),
    })
    if (news) this.reported.set(convoId, present.epoch)
    return forked === true
  }

  /** Reports the device's epoch, and brings the device back if it is in the smaller part of a fork. */
  async compare(convo: ConvoId): Promise<void> {
    await once(this.comparing, convo, () => this.report(convo))
    if (isStuck(await this.log.thread(convo))) await this.comeBack(convo)
  }

  // enterAll enters the group until the device can follow the log: the next commit can fail too, and
  // the GroupInfo can be that of the smaller part of a fork.
  private async enterAll(convo: ConvoId): Promise<void> {
    for (let thread = await this.log.thread(convo); isStuck(thread); thread = await this.log.thread(convo)) {
      const failed = thread?.failed
      if (failed !== undefined) this.handler.onDispute(convo, { change: "failed", ...failed })
      if (!(await this.enter(convo))) return
      this.outbox.resume(convo)
      await this.handler.sync(convo)
      if (failed !== undefined) this.handler.onDispute(convo, { change: "returned", ...failed })
      await once(this.comparing, convo, () => this.report(convo))
    }
    this.outbox.resume(convo)
  }

  // enter enters the group by external commit, also by one that an earlier life has begun. It returns
  // false if the person is not a member any more.
  private async enter(convo: ConvoId): Promise<boolean> {
    const queue = rejoinQueue(convo)
    for (;;) {
      const begun = this.outbox.pending(queue)[0]
      const write = begun ?? (await this.outbox.add(queue, "rejoin", { convoId: convo })).write
      try {
        await this.outbox.settled(write)
        return true
      } catch (err) {
        await this.outbox.discard(write.id)
        if (errorName(err) === "NotMember") return this.leave(convo)
        if (successorIn(String(err)) !== undefined) return false // the client goes on there
        if (!isUnusable(err)) throw err
      }
    }
  }

  private async leave(convo: ConvoId): Promise<false> {
    await this.change(convo, ({ stuck: _, failed: __, ...thread }) => ({ ...thread, left: true }))
    return false
  }

  // report reports the device's epoch. If more members differ than agree, the device is stuck from now
  // on. If the convo is in dispute, and the server's GroupInfo is missing or the committer's, the device
  // provides its own one, as soon as another member agrees.
  private async report(convoId: ConvoId): Promise<void> {
    const { clock, did, mls: library } = this.core
    for (let bound = firstBound; ; bound = Math.min(2 * bound, mostBound)) {
      const present = await this.present(convoId)
      if (present === undefined) return
      const { state, ...reported } = present
      try {
        const { agreeing = 0, differing = 0, disputed, committer } = await this.reportEpoch(convoId, reported)
        if (differing > agreeing) return await this.leaveFork(convoId, present)
        if (!disputed || committer === undefined || committer === did) return
        await clock.sleep(clock.random() * bound, this.signal)
        if (!(await this.lacksGroupInfo(convoId, committer, present.epoch))) return
        const { groupInfoStored } = await this.reportEpoch(convoId, { ...reported, groupInfo: await library.groupInfo(state) })
        if (groupInfoStored) return
      } catch (err) {
        if (["EpochMismatch", "InvalidGroupInfo"].includes(errorName(err))) return // the server is elsewhere
        throw err
      }
    }
  }

  private async reportEpoch(convoId: ConvoId, report: Omit<Input<typeof mls.reportEpoch.main>, "convoId">) {
    const answer = await this.core.api.procedure(mls.reportEpoch.main, { convoId, ...report })
    this.reported.set(convoId, report.epoch)
    return answer
  }

  // lacksGroupInfo reports whether others need a GroupInfo of this epoch by another than the committer.
  private async lacksGroupInfo(convoId: ConvoId, committer: string, epoch: number): Promise<boolean> {
    try {
      const { groupInfo } = await this.core.api.query(mls.getGroupInfo.main, { convoId })
      const info = this.core.mls.infoOf(groupInfo)
      return didOf(info.signer) === committer && info.epoch === epoch
    } catch (err) {
      const missing = errorName(err) === "GroupInfoNotFound"
      if ((err instanceof XrpcError && !missing) || this.signal.aborted) throw err
      return true // there is none, or it is not one
    }
  }

  private leaveFork(convo: ConvoId, { epoch }: Present): Promise<void> {
    return this.change(convo, async (thread) => {
      const present = await this.present(convo)
      return present?.epoch === epoch ? { ...thread, stuck: true } : thread
    })
  }

  private change(convo: ConvoId, changed: (thread: Thread) => Thread | Promise<Thread>): Promise<void> {
    return this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (thread !== undefined) await this.log.save(await changed(thread))
    })
  }

  // present returns the epoch that the device is in, and nothing if it is not in the group.
  private async present(convo: ConvoId): Promise<Present | undefined> {
    const thread = await this.log.thread(convo)
    const state = await this.core.store.read(names.group(convo))
    if (thread === undefined || thread.stuck || thread.lost || thread.left || state === undefined) return undefined
    const { epoch, active, authenticator } = this.core.mls.describe(state)
    return active ? { epoch, authenticatorHash: fromHex(await sha256(authenticator)), state } : undefined
  }
}
