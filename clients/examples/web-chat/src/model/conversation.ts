// One open conversation.

import {
  body, type Client, type ConvoId, encodeContent, type Item, type MessageName, type ShownMessage, type Store, Transcript,
} from "mlsd-client"
import type { ChatList } from "./chat-list.js"
import { type Line, linesOf, nameOf } from "./lines.js"
import { Observable } from "./observable.js"
import type { People } from "./people.js"
import { names, readText, textChange } from "./records.js"
import { facetsOf } from "./rich-text.js"
import { type Sending, Sendings } from "./sendings.js"

/** So many entries of the log are read at once, from the end upward. */
const pageSize = 50
/** So many messages are wanted at first. */
const firstMessages = 30
/** Read receipts are at least so far apart, in milliseconds. */
const betweenReceipts = 3_000
/** So often others hear that the person types, and so long they show it, in milliseconds. */
const [typingEvery, typingFor] = [3_000, 6_000]
const typingSignal = new TextEncoder().encode('{"typing":true}')

/** What a conversation works with. */
export interface ConversationParts {
  readonly client: Client
  readonly store: Store
  readonly people: People
  readonly chats: ChatList
  readonly retrying: ReadonlySet<string>
  /** Whether others see what this person has read. */
  readonly receipts: () => boolean
  readonly onFailure: (err: unknown) => void
}

export class Conversation extends Observable {
  private items: Item[] = []
  private transcript = new Transcript()
  private sendings: readonly Sending[] = []
  private readonly onTheirWay: Sendings
  private drawn: { readonly version: string; readonly lines: readonly Line[] } | undefined
  private reading: Promise<void> | undefined
  private old = false
  private more = true
  private isOpen = false
  private readonly typists = new Map<string, ReturnType<typeof setTimeout>>()
  private signalled = 0
  private toldAt = 0
  private telling: ReturnType<typeof setTimeout> | undefined

  constructor(
    readonly convo: ConvoId,
    private readonly parts: ConversationParts,
  ) {
    super()
    this.onTheirWay = new Sendings(parts.client, convo, parts.retrying)
  }

  /** Whether its end was read. */
  get isReady(): boolean {
    return this.isOpen
  }

  /** Whether there are entries before those that were read. */
  get hasOlder(): boolean {
    return this.more
  }

  /** Who types now. */
  get typing(): readonly string[] {
    return [...this.typists.keys()]
  }

  /** What is shown, the oldest first. */
  lines(): readonly Line[] {
    const { people, chats } = this.parts
    const others = chats.find(this.convo)?.others ?? []
    const version = `${this.version()} ${people.version()} ${others.join()}`
    if (this.drawn?.version !== version) {
      const { items, transcript, sendings } = this
      this.drawn = { version, lines: linesOf({ items, transcript, sendings, people, others }) }
    }
    return this.drawn.lines
  }

  find(name: MessageName): ShownMessage | undefined {
    return this.transcript.find(name)
  }

  /** Reads the end of the log. */
  async open(): Promise<void> {
    if (this.isOpen) return
    while (this.more && this.transcript.messages().length < firstMessages) await this.readPage()
    this.isOpen = true
    await this.refresh()
  }

  /** Reads a page upward. */
  async older(): Promise<void> {
    if (!this.isOpen || !this.more) return
    await this.readPage()
    this.changed()
  }

  /** Reads upward until a message is there. */
  async readTo(seq: number): Promise<void> {
    while (this.more && (this.items[0]?.seq ?? Infinity) > seq) await this.readPage(10 * pageSize)
    this.changed()
  }

  /** Reads what is new. A call that comes while it reads is answered by another reading. */
  refresh(): Promise<void> {
    if (!this.isOpen) return Promise.resolve()
    this.old = true
    this.reading ??= this.readWhileOld().finally(() => (this.reading = undefined))
    return this.reading
  }

  /** Forgets what it has read: the server has lost a part of it. */
  async reset(): Promise<void> {
    ;[this.items, this.transcript, this.more] = [[], new Transcript(), true]
    if (!this.isOpen) return
    this.isOpen = false
    await this.open()
  }

  // Writing. When these return, what was written is stored and cannot get lost.

  async send(text: string, replyTo?: MessageName): Promise<void> {
    const content = { body: body.text({ text, ...this.facets(text) }), ...(replyTo && { replyTo }) }
    await this.parts.client.send(this.convo, encodeContent(content), { changes: textChange(names.draft(this.convo), undefined) })
  }

  async edit({ id }: ShownMessage, text: string): Promise<void> {
    await this.parts.client.send(this.convo, encodeContent({ body: body.edit({ id, text, ...this.facets(text) }) }))
  }

  async delete({ id }: ShownMessage): Promise<void> {
    await this.parts.client.send(this.convo, encodeContent({ body: body.deletion({ id }) }))
  }

  /** Reacts with an emoji, or takes the reaction back. */
  async react(message: ShownMessage, emoji: string): Promise<void> {
    const removed = message.reactions.some((one) => one.emoji === emoji && one.by.includes(this.parts.people.self))
    const reaction = body.reaction({ message: nameOf(message), emoji, ...(removed && { removed }) })
    await this.parts.client.send(this.convo, encodeContent({ body: reaction }))
  }

  /** Drops a message that the service has refused, or that has not left yet. */
  async discard(write: string): Promise<void> {
    await this.parts.client.outbox.discard(write)
    await this.refresh()
  }

  draft(): Promise<string | undefined> {
    return readText(this.parts.store, names.draft(this.convo))
  }

  async keepDraft(text: string): Promise<void> {
    await this.parts.store.write(textChange(names.draft(this.convo), text === "" ? undefined : text))
  }

  // Typing, and what was read

  /** The person types. */
  types(): void {
    const now = Date.now()
    if (now - this.signalled < typingEvery) return
    this.signalled = now
    this.parts.client.signal(this.convo, typingSignal).catch(() => {}) // it would be old
  }

  /** Somebody else types, as a signal says. Signals get lost: so it ends by itself. */
  hears(did: string): void {
    clearTimeout(this.typists.get(did))
    this.typists.set(did, setTimeout(() => this.stops(did), typingFor))
    this.changed()
  }

  /** The person sees the end of the conversation. */
  async isSeen(): Promise<void> {
    const { chats, client, people } = this.parts
    const theirs = this.transcript.messages().findLast(({ author }) => author !== people.self)
    if (theirs === undefined) return
    await chats.read(this.convo, this.items.at(-1)?.seq ?? theirs.seq)
    await client.markRead(this.convo, theirs.seq)
    if (!this.parts.receipts() || this.telling !== undefined) return
    const wait = Math.max(0, this.toldAt + betweenReceipts - Date.now())
    this.telling = setTimeout(() => {
      this.telling = undefined
      this.tellRead().catch(this.parts.onFailure)
    }, wait)
  }

  // tellRead stores what was told in one step with the receipt, so that a crash neither loses nor doubles it.
  private async tellRead(): Promise<void> {
    const { client, store, people, chats } = this.parts
    const read = this.transcript.messages().findLast(({ author }) => author !== people.self)?.seq ?? 0
    if (read <= Number((await readText(store, names.told(this.convo))) ?? 0) || chats.find(this.convo)?.isOver) return
    this.toldAt = Date.now()
    const changes = textChange(names.told(this.convo), String(read))
    await client.send(this.convo, encodeContent({ body: body.receipt({ read }), silent: true }), { changes })
  }

  private stops(did: string): void {
    clearTimeout(this.typists.get(did))
    if (this.typists.delete(did)) this.changed()
  }

  private facets(text: string): { facets?: ReturnType<typeof facetsOf> } {
    const { people, chats } = this.parts
    const members = [people.self, ...(chats.find(this.convo)?.others ?? [])]
    const facets = facetsOf(text, (handle) => members.find((did) => {
      const whole = people.handleOf(did).toLowerCase()
      return whole === handle || whole.startsWith(`${handle}.`)
    }))
    return facets.length > 0 ? { facets } : {}
  }

  private async readPage(limit = pageSize): Promise<void> {
    const before = this.items[0]?.seq
    const page = await this.parts.client.items(this.convo, { limit, ...(before !== undefined && { before }) })
    this.more = page.length === limit
    this.items = [...page, ...this.items]
    this.transcript.add(page)
  }

  private async readWhileOld(): Promise<void> {
    while (this.old) {
      this.old = false
      this.sendings = await this.onTheirWay.read((id, at) => this.isInLog(id, at))
      await this.readNew()
      this.changed()
    }
  }

  private isInLog(id: string, createdAt: number): boolean {
    const [oldest] = this.items
    return (oldest !== undefined && createdAt < Date.parse(oldest.createdAt)) || this.find({ author: this.parts.people.self, id }) !== undefined
  }

  // readNew reads the end of the log. A message of a device that was not known yet has its text later: it is read again.
  private async readNew(): Promise<void> {
    const withheld = this.items.findIndex(({ state }) => state === "withheld")
    const kept = withheld < 0 ? this.items : this.items.slice(0, withheld)
    const after = kept.at(-1)?.seq ?? (this.items[0]?.seq ?? 1) - 1
    const news = await this.parts.client.items(this.convo, { after })
    if (news.length === 0 && withheld < 0) return
    this.items = [...kept, ...news]
    this.transcript.add(news)
    for (const { sender, kind } of news) if (kind === "application") this.stops(sender)
  }
}
