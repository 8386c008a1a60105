// A convo that was reset goes on under another id: docs/clients/DISPUTES.md.

import type { Core } from "./core.js"
import type { ConvoId } from "./ids.js"
import { once } from "./locks.js"
import type { Log } from "./log.js"
import type { Outbox } from "./outbox.js"
import { type Item, lockOf, names, rejoinQueue, type Thread } from "./records.js"
import { get } from "./store.js"
import * as mls from "#lexicons"

/** What resets call. */
export interface ResetsHandler {
  /** Enters the convo that goes on in the place of another one. */
  enter(convo: ConvoId): Promise<void>
  onMoved(convo: ConvoId, successor: ConvoId): void
}

/** Follows resets. */
export class Resets {
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

  /** Goes on in the successor of a convo. A crash repeats it: the log's last entry stays. */
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
    if (before === undefined || before.left) return
    await this.core.services.succeed(convo, successor)
    if ((await this.log.thread(successor)) === undefined) await this.handler.enter(successor)
    for (const { write } of await this.outbox.refused()) {
      if (write.queue === rejoinQueue(convo)) await this.outbox.discard(write.id) // no way back is needed
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
}
