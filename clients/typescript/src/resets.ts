// A convo that was reset goes on under another id: docs/clients/DISPUTES.md.

import { hex } from "./bytes.js"
import { ContraryError, groupOf, mustSucceed, successorIdOf, tellContrary } from "./binding.js"
import type { Core } from "./core.js"
import { errorName, isRefusal, OutOfStepError, successorIn, UnknownConvoError, XrpcError } from "./errors.js"
import type { ConvoId } from "./ids.js"
import { idLength } from "./envelope.js"
import type { LexValue } from "./json.js"
import { once } from "./locks.js"
import type { Log } from "./log.js"
import type { Outbox } from "./outbox.js"
import { type Item, lockOf, mustRead, names, rejoinQueue, resetQueue, type Thread } from "./records.js"
import { type Changes, get, put } from "./store.js"
import type { ResetContent } from "./write-convos.js"
import * as mls from "#lexicons"

/** What resets call. */
export interface ResetsHandler {
  /** Enters the convo that goes on in the place of another one. */
  enter(convo: ConvoId): Promise<void>
  onMoved(convo: ConvoId, successor: ConvoId): void
}

/** Makes resets, and follows those of others. */
export class Resets {
  private readonly making = new Map<string, Promise<ConvoId>>()
  private readonly following = new Map<string, Promise<void>>()

  constructor(
    private readonly core: Core,
    private readonly log: Log,
    private readonly outbox: Outbox,
    private readonly handler: ResetsHandler,
  ) {}

  /** Reports whether this device is on its way into the successor of a convo. */
  follows(convo: string): boolean {
    return this.following.has(convo)
  }

  /** Resets a convo, unless that is under way or somebody has done it, and goes on in its successor. */
  make(convo: ConvoId, reason: string): Promise<ConvoId> {
    return once(this.making, convo, async () => {
      const successor = await this.write(convo, reason).catch((err: unknown) => {
        const other = err instanceof XrpcError ? successorIn(err.text) : undefined
        if (other === undefined) throw err
        return other
      })
      await this.follow(convo, successor)
      return (await this.log.thread(convo))?.successor ?? successor
    })
  }

  private async write(convo: ConvoId, reason: string): Promise<ConvoId> {
    const queue = resetQueue(convo) // of its own: the convo's may be held
    const [begun] = this.outbox.pending(queue)
    const content = begun?.content ?? (await this.contentOf(convo, reason))
    const settled = begun ? this.outbox.settled(begun) : (await this.outbox.add(queue, "reset", content)).settled
    return ((await this.outbox.outcome({ settled })) as unknown as { convoId: ConvoId }).convoId
  }

  private async contentOf(convo: ConvoId, reason: string): Promise<LexValue> {
    const { clock, store, mls: library } = this.core
    const { groupId: old } = library.describe(await mustRead(store, names.group(convo)))
    const groupId = hex(await successorIdOf(old, clock.randomBytes(idLength)))
    const content: ResetContent = { convoId: convo, groupId, reason, claim: hex(clock.randomBytes(idLength)) }
    return content as unknown as LexValue
  }

  /** Goes on in what the service says is the successor of a convo, because the person wants that. */
  async moveTo(convo: ConvoId, successor: ConvoId): Promise<void> {
    await this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (thread === undefined) throw new UnknownConvoError(`this device is not in convo ${convo}`)
      const { doubted: _, ...rest } = thread
      await this.log.save({ ...rest, moveTo: successor })
    })
    await this.follow(convo, successor)
  }

  /** Goes on in the successor of a convo. It is stored, and a later life repeats what a crash has ended. */
  follow(convo: ConvoId, successor: ConvoId): Promise<void> {
    return once(this.following, convo, () => this.goOn(convo, successor))
  }

  /** The successor of a convo, if its log ends with the entry of a reset. */
  async look({ convoId, cursor }: Thread): Promise<ConvoId | undefined> {
    const last = await get<Item>(this.core.store, names.item(convoId, cursor))
    if (last?.kind !== "reset") return undefined
    const { convo } = await this.core.api.query(mls.getConvo.main, { convoId })
    return convo.successorConvoId as ConvoId | undefined
  }

  private async goOn(convo: ConvoId, successor: ConvoId): Promise<void> {
    const before = await this.log.thread(convo)
    if (before === undefined || before.left || before.doubted === successor) return
    await this.note(convo, successor)
    await this.waitIfOwn(convo, successor)
    await this.readToItsEnd(convo) // it says who may be in the successor
    try {
      if ((await this.log.thread(successor)) === undefined) await this.handler.enter(successor)
      else await this.check(convo, successor)
    } catch (err) {
      if (err instanceof ContraryError) return this.doubt(convo, successor)
      const next = errorName(err) === "ConvoClosed" ? successorIn(String(err)) : undefined
      if (next === undefined) throw err
      await this.pass(convo, successor) // it was reset too
      return this.goOn(convo, next)
    }
    for (const { write } of await this.outbox.refused()) { // no way back is needed, nor another reset
      if ([rejoinQueue(convo), resetQueue(convo)].includes(write.queue)) await this.outbox.discard(write.id)
    }
    await this.outbox.move(convo, successor)
    const first = await this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (thread === undefined || thread.successor !== undefined) return false
      await this.log.save({ ...thread, successor })
      return true
    })
    if (first) this.handler.onMoved(convo, successor)
  }

  // pass notes the group of a successor that this device does not enter: the next one is bound to it.
  private async pass(convo: ConvoId, successor: ConvoId): Promise<void> {
    const { convo: { groupId } } = await this.core.api.query(mls.getConvo.main, { convoId: successor })
    await this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (thread !== undefined) await this.log.save({ ...thread, resetVia: [...(thread.resetVia ?? []), groupId] })
    })
  }

  // check checks a successor in which this device is already: its Welcome has come before the news of the reset.
  private check(convo: ConvoId, successor: ConvoId): Promise<void> {
    return this.core.locks.run(lockOf(successor), async () => {
      const [before, thread, group] = [await this.log.thread(convo), await this.log.thread(successor), await groupOf(this.core, successor)]
      if (before === undefined || thread === undefined || group === undefined) return
      try {
        const expected = await mustSucceed(this.core, before, group)
        await this.log.save({ ...thread, expected, uninvited: (thread.uninvited ?? []).filter((did) => !expected.includes(did)) })
      } catch (err) {
        if (err instanceof ContraryError) await tellContrary(this.core, convo, err.what, err.message)
        throw err
      }
    })
  }

  // doubt stays in a convo whose successor its members have not made, as far as MLS shows. The app has heard
  // it, and can ask the person.
  private doubt(convo: ConvoId, successor: ConvoId): Promise<void> {
    return this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (thread === undefined) return
      const { resetTo: _, ...rest } = thread
      await this.log.save({ ...rest, doubted: successor })
    })
  }

  // note stores on which way the device is, and where the successor is.
  private note(convo: ConvoId, successor: ConvoId): Promise<void> {
    return this.core.locks.run(lockOf(convo), async () => {
      const thread = await this.log.thread(convo)
      if (thread === undefined || thread.resetTo === successor) return
      const changes: Changes = new Map()
      put(changes, names.thread(convo), { ...thread, resetTo: successor })
      this.core.services.succeed(convo, successor, changes)
      await this.core.store.write(changes)
    })
  }

  // waitIfOwn waits for the answer to this device's own reset, if that has opened the successor: the answer
  // puts the device into it.
  private async waitIfOwn(convo: ConvoId, successor: ConvoId): Promise<void> {
    const [own] = this.outbox.pending(resetQueue(convo))
    if (own === undefined) return
    const settled = this.outbox.settled(own) // now: it leaves the outbox with its answer
    const { convo: { groupId } } = await this.core.api.query(mls.getConvo.main, { convoId: successor })
    if (groupId === (own.content as unknown as ResetContent).groupId) await settled
  }

  // readToItsEnd reads what the device can read of a log that grows no more.
  private async readToItsEnd(convo: ConvoId): Promise<void> {
    try {
      await this.core.locks.run(lockOf(convo), () => this.log.read(convo))
    } catch (err) {
      if (!(err instanceof OutOfStepError) && !isRefusal(err)) throw err
    }
  }
}
