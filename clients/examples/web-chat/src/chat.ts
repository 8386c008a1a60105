// A chat as a person sees it: what is in the log, and behind it what is on its way there.

import type { ConvoId, Item, SendContent, Write } from "mlsd-client"
import { type Content, decode, encode } from "./content.js"
import type { Phone } from "./phone.js"
import { names, readText, textChange } from "./records.js"

/**
 * | state | |
 * |---|---|
 * | `queued` | it is stored here, and waits for what stands before it |
 * | `sending` | its ciphertext is stored, and an attempt is under way |
 * | `retrying` | an attempt has failed. The same bytes are sent again |
 * | `sent` | the service has it |
 * | `seen` | the other person has seen it |
 * | `refused` | the service does not take it |
 * | `received` | the other person has written it |
 */
export type State = "queued" | "sending" | "retrying" | "sent" | "seen" | "refused" | "received"

/** One message. */
export interface Message {
  readonly id: string
  readonly text: string
  readonly at: Date
  readonly state: State
}

export class Chat {
  /** The log, as far as it was read. */
  private log: Item[] = []

  constructor(
    private readonly phone: Phone,
    readonly convo: ConvoId,
  ) {}

  /** Forgets what it has read of the log: the server has lost a part of it. */
  reset(): void {
    this.log = []
  }

  /**
   * Reads the chat. The log says where a message stands. While the outbox has it, the outbox says its
   * state: the service can have it, and the answer be lost. The outbox is read first and the log last,
   * because that is the way on which a message goes: it is in one of them at any time.
   *
   * @param retrying the ids of the writes whose last attempt has failed
   */
  async messages(retrying: ReadonlySet<string>): Promise<Message[]> {
    const { outbox } = this.phone.client
    const pending = outbox.pending(this.convo).flatMap((write) => fromWrite(write, stateOf(write, retrying)))
    const refused = (await outbox.refused()).filter(({ write }) => write.queue === this.convo)
    const accepted = (await outbox.kept.of(this.convo)).flatMap(({ write }) => fromWrite(write, "sent"))
    await this.readLog()
    const seen = this.seenByOther()
    const messages = new Map(this.log.flatMap((item) => fromItem(item, seen)).map((message) => [message.id, message]))
    for (const message of accepted) if (!messages.has(message.id)) messages.set(message.id, message)
    for (const message of refused.flatMap(({ write }) => fromWrite(write, "refused"))) messages.set(message.id, message)
    for (const message of pending) messages.set(message.id, message)
    return [...messages.values()]
  }

  /** Sends a text. When it returns, the text is stored and cannot get lost. */
  async send(text: string): Promise<void> {
    await this.phone.client.send(this.convo, encode({ type: "text", text }))
  }

  /**
   * Tells the other person what this person sees now. The receipt is a message too. Which one was the
   * last is stored in one step with it, so that a crash neither loses nor doubles it.
   */
  async sendSeen(): Promise<void> {
    const { client, store } = this.phone
    const texts = this.log.filter((item) => !item.own && contentOf(item)?.type === "text")
    const upTo = texts.at(-1)?.seq ?? 0
    const told = Number((await readText(store, names.seen(this.convo))) ?? 0)
    if (upTo <= told) return
    const changes = textChange(names.seen(this.convo), String(upTo))
    await client.send(this.convo, encode({ type: "seen", upTo }), { changes })
  }

  // readLog reads what is new. A message of a device that was not known yet has its text later: it is read again.
  private async readLog(): Promise<void> {
    const withheld = this.log.findIndex(({ state }) => state === "withheld")
    const read = withheld < 0 ? this.log : this.log.slice(0, withheld)
    this.log = [...read, ...(await this.phone.client.items(this.convo, read.at(-1)?.seq))]
  }

  /** Up to which seq the other person has seen the log. */
  private seenByOther(): number {
    const receipts = this.log.filter(({ own }) => !own).map(contentOf)
    return Math.max(0, ...receipts.map((content) => (content?.type === "seen" ? content.upTo : 0)))
  }
}

function stateOf(write: Write, retrying: ReadonlySet<string>): State {
  if (retrying.has(write.id)) return "retrying"
  return write.sealed === undefined ? "queued" : "sending"
}

function fromWrite(write: Write, state: State): Message[] {
  if (write.kind !== "send") return []
  const { id, content } = write.content as unknown as SendContent
  return textOf(decode(content), { id, at: new Date(write.createdAt), state })
}

function fromItem(item: Item, seen: number): Message[] {
  const { messageId: id = item.id, own, seq } = item
  const state = !own ? "received" : seq <= seen ? "seen" : "sent"
  return textOf(contentOf(item), { id, at: new Date(item.createdAt), state })
}

function contentOf({ content }: Item): Content | undefined {
  return content && decode(content)
}

// textOf is empty if the content is none that is shown.
function textOf(content: Content | undefined, message: Omit<Message, "text">): Message[] {
  return content?.type === "text" ? [{ ...message, text: content.text }] : []
}
