// Making good what a server has lost: docs/RECOVERY.md.

import type { Core } from "./core.js"
import type { Did } from "./ids.js"
import { errorName, OutOfStepError, verdictOf, XrpcError } from "./errors.js"
import type { LexValue } from "./json.js"
import { deviceIdOf, publishQueue } from "./keypackages.js"
import type { KeptWrite } from "./kept.js"
import { once } from "./locks.js"
import type { Log } from "./log.js"
import { didOf } from "./mls.js"
import type { Outbox } from "./outbox.js"
import { type Item, lockOf, mustRead, names, rejoinQueue, type Thread } from "./records.js"
import { hex } from "./bytes.js"
import { type AddContent, committing } from "./write-commits.js"
import { type Changes, getAll } from "./store.js"
import * as mls from "#lexicons"

/** How far a recovery goes. It goes on when the log has not grown for a while. */
enum Phase {
  /** Sends again what belongs to the epoch that the server is in. */
  Messages,
  /** Also sends again the commit that ends this epoch. */
  Commits,
  /** Does not wait for lost commits any more: a device that is ahead enters the group again. */
  Enter,
  /** Encrypts the lost messages again that no longer fit. */
  Anew,
}

const second = 1000
const minute = 60 * second

/** How long the log has not grown when a phase begins, in milliseconds. */
const commitsAfter = 10 * second
const enterAfter = 10 * minute
const enterSpread = 5 * minute // chosen at random, so that not all devices enter at once
const anewAfter = 5 * minute // after Enter
const lookEvery = 5 * second
const lookLaterEvery = minute // once it does not wait for lost commits any more

/** What one round did. */
interface Round {
  /** What changed on the server. */
  progress: boolean
  /** What the device waits for. */
  waiting: string | undefined
  /** The log goes another way than the device's group. */
  forked: boolean
}

/** Makes good what a server has lost of convos. */
export class Recovery {
  private readonly running = new Map<string, Promise<void>>()

  constructor(
    private readonly core: Core,
    private readonly log: Log,
    private readonly outbox: Outbox,
    private readonly signal: AbortSignal,
  ) {}

  /** Recovers a convo, unless that is going on already, and then sends what waits for it. */
  start(convo: string): Promise<void> {
    return once(this.running, convo, () => this.run(convo))
  }

  private async run(convo: string): Promise<void> {
    const { clock } = this.core
    await this.republish()
    const enterAt = enterAfter + clock.random() * enterSpread
    let quietSince = clock.now()
    let phase = Phase.Messages
    let entered: number | undefined
    for (;;) {
      const before = await this.cursor(convo)
      const round = await this.round(convo, phase)
      if (round.waiting === undefined) break
      if (this.signal.aborted) return
      if (round.progress || (await this.cursor(convo)) !== before) quietSince = clock.now()
      const quiet = clock.now() - quietSince
      if (phase < Phase.Enter && (round.forked || quiet >= enterAt)) phase = Phase.Enter
      else if (phase < Phase.Commits && quiet >= commitsAfter) phase = Phase.Commits
      if (phase === Phase.Enter) {
        entered ??= clock.now()
        if (!round.forked && clock.now() - entered >= anewAfter) phase = Phase.Anew
      }
      await clock.sleep(phase < Phase.Enter ? lookEvery : lookLaterEvery, this.signal)
    }
    await this.end(convo)
  }

  private async cursor(convo: string): Promise<number> {
    return (await this.log.thread(convo))?.cursor ?? 0
  }

  private async end(convo: string): Promise<void> {
    await this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (thread?.lost === undefined) return
      const { lost: _, ...found } = thread
      await this.log.save(found)
    })
    this.outbox.resume(convo)
  }

  // republish publishes the KeyPackages again whose publication the server may have lost. A used one
  // comes back too: the commit that used it needs it.
  private async republish(): Promise<void> {
    for (const kept of await this.outbox.kept.of(publishQueue)) await this.resendOne(kept)
  }

  private async round(convo: string, phase: Phase): Promise<Round> {
    const round: Round = { progress: false, waiting: undefined, forked: false }
    try {
      await this.read(convo)
      await this.resend(convo, phase, round)
      await this.read(convo)
    } catch (err) {
      if (errorName(err) === "NotMember") return { ...round, waiting: undefined } // it has left
      if (errorName(err) === "ConvoNotFound") return this.notFound(convo, phase, round)
      if (!(err instanceof OutOfStepError)) throw err
      round.forked = true
    }
    if (round.forked || (await this.ahead(convo))) {
      round.waiting = "a commit of another device"
      if (phase < Phase.Enter || round.progress) return round
      await this.enter(convo)
      round.progress = true
      round.forked = false
    }
    if (phase >= Phase.Enter) await this.makeAnew(convo, phase, round)
    if (round.waiting === undefined) await this.confirmAgain(convo)
    return round
  }

  // notFound waits for the commit that added this device, or for another addition. When the first will
  // not come any more, the KeyPackage that it used is withdrawn: the server may hand it out again.
  private async notFound(convo: string, phase: Phase, round: Round): Promise<Round> {
    const joinedWith = (await this.log.thread(convo))?.joinedWith
    if (phase >= Phase.Enter && joinedWith !== undefined) {
      await this.core.api.procedure(mls.withdrawKeyPackages.main, {
        deviceId: await deviceIdOf(this.core), keyPackageRefs: [joinedWith],
        idempotencyKey: hex(this.core.clock.randomBytes(16)),
      })
    }
    return { ...round, waiting: "the commit that added it" }
  }

  private async read(convo: string): Promise<void> {
    await this.core.locks.run(lockOf(convo), () => this.log.read(convo))
  }

  private async ahead(convo: string): Promise<boolean> {
    const { convo: view } = await this.core.api.query(mls.getConvo.main, { convoId: convo })
    return this.core.mls.describe(await mustRead(this.core.store, names.group(convo))).epoch > view.epoch
  }

  // resend sends a convo's lost writes in their order, as far as they need not wait for other devices.
  // It sends one commit at most: others may have messages of the epoch that it creates.
  private async resend(convo: string, phase: Phase, round: Round): Promise<void> {
    const lost = await this.lostWrites(convo)
    if (lost.length === 0) return
    const { convo: view } = await this.core.api.query(mls.getConvo.main, { convoId: convo })
    let epoch = view.epoch
    let commits = phase >= Phase.Commits
    for (const kept of lost) {
      const { kind, sealed } = kept.write
      const commit = committing.has(kind)
      const fits = kind === "leave"
        ? round.waiting === undefined
        : !kept.forked && (commit ? commits && sealed.epoch === epoch + 1 : sealed.epoch === epoch)
      if (!fits || !(await this.resendOne(kept))) {
        round.waiting = `its ${kind} of epoch ${sealed.epoch ?? "?"}, and the server is in ${epoch}`
        continue
      }
      round.progress = true
      if (commit) {
        epoch++
        commits = false
      }
    }
  }

  /** Reports whether the server has taken a kept write again. */
  private async resendOne(kept: KeptWrite): Promise<boolean> {
    const { method, body } = kept.write.sealed
    try {
      await this.core.api.resend(method, body)
    } catch (err) {
      if (!(err instanceof XrpcError) || verdictOf(err) === "stop" || verdictOf(err) === "later") throw err
      return false
    }
    const changes: Changes = new Map()
    this.outbox.kept.drop(kept, changes)
    this.outbox.kept.add(kept.write, changes)
    await this.core.store.write(changes)
    return true
  }

  // lostWrites returns the kept writes of a convo that the log does not have. It has been read to its
  // end.
  private async lostWrites(convo: string): Promise<KeptWrite[]> {
    const thread = await this.log.thread(convo)
    const items = await getAll<Item>(this.core.store, names.items(convo))
    const there = new Set(items.map(({ digest }) => digest))
    const ids = new Set(items.map(({ messageId }) => messageId))
    const own = [...(await this.outbox.kept.of(convo)), ...(await this.outbox.kept.of(rejoinQueue(convo)))]
    return own.filter(({ write }) => isLost(thread, write.sealed) && !ids.has(messageIdOf(write.content)))

    function isLost(thread: Thread | undefined, sealed: KeptWrite["write"]["sealed"]): boolean {
      if (sealed.digest === undefined) return thread?.rewound === true && thread.left === true // a leave
      if (there.has(sealed.digest)) return false
      return thread?.rewound === true || (sealed.epoch ?? 0) >= (thread?.entered ?? 0)
    }
  }

  // enter marks what belongs to the branch that the device leaves, and enters the group again.
  private async enter(convo: string): Promise<void> {
    const changes: Changes = new Map()
    for (const kept of await this.lostWrites(convo)) {
      if (kept.write.kind !== "leave") this.outbox.kept.fork(kept, changes)
    }
    await this.outbox.outcome(await this.outbox.add(rejoinQueue(convo), "rejoin", { convoId: convo }, changes))
    await this.read(convo)
  }

  // makeAnew makes the lost additions again, and then the lost messages. Other lost commits only
  // changed keys, or any member makes them again.
  private async makeAnew(convo: string, phase: Phase, round: Round): Promise<void> {
    round.waiting = undefined
    for (const kept of await this.lostWrites(convo)) {
      const { kind } = kept.write
      if (kind === "add") await this.addAnew(convo, kept)
      else if (committing.has(kind)) await this.drop(kept)
      else if (phase < Phase.Anew) round.waiting = "others, before it writes again"
      else if (kind === "send") await this.sendAnew(convo, kept)
      else if (!(await this.resendOne(kept))) await this.drop(kept) // a leave that is of no use any more
    }
  }

  private async drop(kept: KeptWrite): Promise<void> {
    const changes: Changes = new Map()
    this.outbox.kept.drop(kept, changes)
    await this.core.store.write(changes)
  }

  // addAnew adds those again who are not on the roster.
  private async addAnew(convo: string, kept: KeptWrite): Promise<void> {
    const { dids } = kept.write.content as unknown as AddContent
    const { convo: view } = await this.core.api.query(mls.getConvo.main, { convoId: convo })
    const there = new Set(view.members.map(({ did }) => didOf(did)))
    const gone = dids.filter((did: Did) => !there.has(did))
    if (gone.length === 0) return this.drop(kept)
    await this.writeAnew(convo, kept, "add", { dids: gone, claim: hex(this.core.clock.randomBytes(16)) })
  }

  private sendAnew(convo: string, kept: KeptWrite): Promise<void> {
    return this.writeAnew(convo, kept, "send", kept.write.content)
  }

  // writeAnew puts a write into the outbox, and in the same step forgets the one that was lost.
  private async writeAnew(convo: string, kept: KeptWrite, kind: string, content: LexValue): Promise<void> {
    const changes: Changes = new Map()
    this.outbox.kept.drop(kept, changes)
    const digest = kept.write.sealed.digest
    if (digest !== undefined) {
      changes.set(names.looseItem(convo, digest), undefined)
      changes.set(names.own(digest), undefined)
    }
    await this.outbox.add(convo, kind, content, changes)
  }

  // confirmAgain confirms the Welcome that the device joined with, if the server has it as a new one.
  private async confirmAgain(convoId: string): Promise<void> {
    const keyPackageRef = (await this.log.thread(convoId))?.joinedWith
    if (keyPackageRef === undefined) return
    try {
      await this.core.api.query(mls.getWelcome.main, { convoId, keyPackageRef })
      await this.core.api.procedure(mls.confirmWelcome.main, { convoId, keyPackageRef, success: true })
    } catch (err) {
      if (!["WelcomeNotFound", "WelcomeConsumed", "NotMember"].includes(errorName(err))) throw err
    }
  }
}

function messageIdOf(content: LexValue): string {
  if (typeof content !== "object" || content === null || !("id" in content)) return ""
  return String(content.id)
}
