// The list of chats.

import { type Client, type ConvoId, type Item, Locks, type Store, type Thread } from "mlsd-client"
import { Observable } from "./observable.js"
import { jsonChange, names, readAllJson } from "./records.js"
import { emptySummary, fold, readUpTo, type Summary } from "./summary.js"

/** A chat in the list. */
export interface ListedChat extends Summary {
  /** Set if this person can only read it. */
  readonly isOver: boolean
}

/** So many entries of a log are read at once. */
const atOnce = 500

export class ChatList extends Observable {
  private readonly summaries = new Map<string, Summary>()
  private readonly threads = new Map<string, Thread>()
  private readonly locks = new Locks()
  private sorted: readonly ListedChat[] | undefined

  constructor(
    private readonly client: Client,
    private readonly store: Store,
    private readonly self: string,
  ) {
    super()
  }

  /** Reads what was kept: the list is there at once. Then it reads what the logs have since. */
  async open(): Promise<void> {
    for (const summary of await readAllJson<Summary>(this.store, names.summaries)) this.summaries.set(summary.convo, summary)
    await this.readThreads()
    const behind = [...this.threads.values()].filter(({ convoId, cursor }) => cursor > (this.summaries.get(convoId)?.upTo ?? -1))
    for (const { convoId } of behind) await this.update(convoId)
  }

  /** The chats, the last one first. */
  all(): readonly ListedChat[] {
    return (this.sorted ??= [...this.threads.values()].filter(({ successor }) => successor === undefined)
      .map(({ convoId, left }) => ({ ...(this.summaries.get(convoId) ?? emptySummary(convoId)), isOver: left === true }))
      .sort((a, b) => Number(timeOf(b) > timeOf(a)) - Number(timeOf(b) < timeOf(a))))
  }

  find(convo: string): ListedChat | undefined {
    return this.all().find((chat) => chat.convo === convo)
  }

  /** Reads what is new in a convo. Entries that were read before can have got their content. */
  async update(convo: ConvoId, items: readonly Item[] = []): Promise<void> {
    await this.locks.run(convo, async () => {
      const before = this.summaries.get(convo)
      let summary = before ?? emptySummary(convo)
      let hasChanged = before === undefined || summary.others.length === 0
      for (const item of items.filter(({ seq }) => seq <= summary.upTo)) summary = fold(summary, item, this.self)
      for (let page: Item[]; (page = await this.client.items(convo, { after: summary.upTo, limit: atOnce })).length > 0; ) {
        for (const item of page) summary = fold(summary, item, this.self)
        hasChanged ||= page.some(({ kind }) => kind === "commit")
      }
      if (hasChanged) summary = { ...summary, others: await this.othersIn(convo, summary.others) }
      await this.save(summary)
    })
    await this.readThreads()
  }

  /** Says that the person has read a convo up to a seq. */
  async read(convo: ConvoId, seq: number): Promise<void> {
    await this.locks.run(convo, async () => {
      const before = this.summaries.get(convo)
      if (before !== undefined && (seq > before.read || before.unread > 0)) await this.save(readUpTo({ ...before, unread: 0 }, seq))
    })
  }

  private async readThreads(): Promise<void> {
    for (const thread of await this.client.convos()) this.threads.set(thread.convoId, thread)
    this.sorted = undefined
    this.changed()
  }

  private async othersIn(convo: ConvoId, before: readonly string[]): Promise<readonly string[]> {
    const { members, active } = await this.client.group(convo)
    if (!active) return before
    return [...new Set(members.map(({ identity }) => identity))].filter((did) => did !== this.self)
  }

  private async save(summary: Summary): Promise<void> {
    await this.store.write(jsonChange(names.summary(summary.convo), summary))
    this.summaries.set(summary.convo, summary)
    this.sorted = undefined
    this.changed()
  }
}

function timeOf({ last, since }: Summary): string {
  return last?.at ?? since
}
