// The messages of a convo as people see them: docs/clients/CONTENT.md.

import { body, bodyAs, type BodyOf, type Content, decodeContent, kindOf, type MessageName } from "./content.js"
import { isHistory } from "./history-format.js"
import type { Item } from "./records.js"

/** An entry of the log that this device has read, or that history has brought. Items and imported items are such. */
export type Entry = Pick<Item, "seq" | "id" | "sender" | "createdAt" | "messageId" | "content"> & {
  /** Whose word it is, if history has brought it. */
  readonly from?: string
}

/** Who has reacted with an emoji, the first one first. */
export interface Reaction {
  readonly emoji: string
  readonly by: readonly string[]
}

/** A message as people see it. */
export interface ShownMessage {
  readonly seq: number
  /** The message's id. */
  readonly id: string
  /** The DID of who has sent it. */
  readonly author: string
  readonly createdAt: string
  /** Whose word it is, if history has brought it. */
  readonly from?: string
  /** `unsupported`: this version cannot show it. Its bytes stay in the store. */
  readonly state: "shown" | "deleted" | "unsupported"
  /** The text, or the file with its caption. An edit has changed it already. */
  readonly body?: BodyOf<"text"> | BodyOf<"attachment">
  readonly replyTo?: MessageName
  /** Set if its author has edited it: when it was last, and the first text. */
  readonly edited?: { readonly at: string; readonly first: string }
  readonly reactions: readonly Reaction[]
}

/** Up to which seq a person has got and read the log, as its devices say. */
export interface Receipt {
  readonly delivered: number
  readonly read: number
}

/** What one entry says, as far as this version can read it. */
interface Said {
  readonly entry: Entry
  readonly content: Content | undefined
}

/**
 * The messages of one convo. Entries come in any order, and again: the result is the same. Whatever changes a
 * message is a fact about it, and of each kind of fact the last one in the log counts.
 *
 * What history has brought is somebody's word: it changes nothing that this device has read itself.
 */
export class Transcript {
  private readonly said = new Map<number, Said>()
  /** The entries that say a message, by its name. */
  private readonly messagesOf = new Map<string, Set<number>>()
  /** The entries that change a message, by its name. */
  private readonly factsOf = new Map<string, Set<number>>()
  private readonly detailsSeqs = new Set<number>()
  private readonly readers = new Map<string, Receipt>()
  private readonly drawn = new Map<number, ShownMessage>()
  private sorted: number[] | undefined

  /** Takes entries. Returns the names of what has changed: `<author> <id>`. */
  add(entries: Iterable<Entry>): ReadonlySet<string> {
    const changed = new Set<string>()
    for (const entry of entries) this.addOne(entry, changed)
    for (const name of changed) for (const seq of this.messagesOf.get(name) ?? []) this.drawn.delete(seq)
    return changed
  }

  /** The messages in the order of the log: at most `limit`, the last ones before a seq. */
  messages({ limit = Infinity, before = Infinity }: { readonly limit?: number; readonly before?: number } = {}): ShownMessage[] {
    const seqs = (this.sorted ??= this.shownSeqs())
    const end = firstNotBelow(seqs, before)
    return seqs.slice(Math.max(0, end - limit), end).map((seq) => this.draw(seq))
  }

  /** The message with a name, if this device has it. */
  find({ author, id }: MessageName): ShownMessage | undefined {
    const seq = this.holder(nameOf(author, id))
    return seq === undefined ? undefined : this.draw(seq)
  }

  /** What the group is called and looks like, and who has said so. */
  details(): (Omit<BodyOf<"details">, "$type"> & { readonly by: string }) | undefined {
    const last = this.last(this.detailsSeqs)
    return last && { ...bodyAs("details", last.content)!, by: last.entry.sender }
  }

  /** Up to where a person has got and read the log. */
  receipt(did: string): Receipt {
    return this.readers.get(did) ?? { delivered: 0, read: 0 }
  }

  private addOne(entry: Entry, changed: Set<string>): void {
    const before = this.said.get(entry.seq)
    if (entry.content === undefined || isHistory(entry.content) || (before !== undefined && (before.entry.from === undefined || entry.from !== undefined))) return
    if (before !== undefined) this.take(before, changed, false)
    const said = { entry, content: decodeContent(entry.content) }
    this.said.set(entry.seq, said)
    this.take(said, changed, true)
  }

  // take puts what an entry says where it belongs, or takes it away from there.
  private take({ entry, content }: Said, changed: Set<string>, put: boolean): void {
    const { seq, sender, from } = entry
    const into = (map: Map<string, Set<number>>, name: string) => {
      const seqs = map.get(name) ?? new Set()
      map.set(name, seqs)
      if (put) seqs.add(seq)
      else seqs.delete(seq)
      changed.add(name)
    }
    const changes = bodyAs("edit", content) ?? bodyAs("deletion", content)
    if (changes !== undefined) return into(this.factsOf, nameOf(sender, changes.id))
    const reaction = bodyAs("reaction", content)
    if (reaction !== undefined) return into(this.factsOf, nameOf(reaction.message.author, reaction.message.id))
    if (bodyAs("details", content) !== undefined) return void this.detailsSeqs[put ? "add" : "delete"](seq)
    const receipt = bodyAs("receipt", content)
    if (receipt !== undefined) return from === undefined ? this.takeReceipt(sender, receipt) : undefined
    if (content !== undefined && !isShown(content)) return
    const name = nameOf(sender, entry.messageId ?? entry.id)
    const isNext = put && this.holder(name) === undefined && seq > (this.sorted?.at(-1) ?? 0)
    into(this.messagesOf, name)
    if (isNext) this.sorted?.push(seq)
    else this.sorted = undefined
  }

  private takeReceipt(did: string, { delivered = 0, read = 0 }: BodyOf<"receipt">): void {
    const before = this.receipt(did)
    this.readers.set(did, { delivered: Math.max(before.delivered, delivered, read), read: Math.max(before.read, read) })
  }

  // shownSeqs lists one entry for each message: the first that has its name.
  private shownSeqs(): number[] {
    return [...this.messagesOf.keys()].flatMap((name) => this.holder(name) ?? []).sort((a, b) => a - b)
  }

  // holder is the entry that a name stands for: the first one that this device has read, or else the first one.
  private holder(name: string): number | undefined {
    const seqs = [...(this.messagesOf.get(name) ?? [])]
    const own = seqs.filter((seq) => this.said.get(seq)!.entry.from === undefined)
    return seqs.length === 0 ? undefined : Math.min(...(own.length > 0 ? own : seqs))
  }

  // last is the entry that counts: the last one that this device has read, or else the last one.
  private last(seqs: Iterable<number>): Said | undefined {
    const all = [...seqs].sort((a, b) => b - a).map((seq) => this.said.get(seq)!)
    return all.find(({ entry }) => entry.from === undefined) ?? all[0]
  }

  private draw(seq: number): ShownMessage {
    const drawn = this.drawn.get(seq) ?? this.drawAnew(this.said.get(seq)!)
    this.drawn.set(seq, drawn)
    return drawn
  }

  private drawAnew({ entry, content }: Said): ShownMessage {
    const { seq, sender: author, createdAt, from, messageId: id = entry.id } = entry
    const facts = [...(this.factsOf.get(nameOf(author, id)) ?? [])].sort((a, b) => a - b).map((at) => this.said.get(at)!)
      .filter((fact) => fact.entry.from === undefined || from !== undefined)
    const message = { seq, id, author, createdAt, ...(from !== undefined && { from }) }
    if (facts.some(({ content }) => bodyAs("deletion", content))) return { ...message, state: "deleted", reactions: [] }
    const said = { ...(content?.replyTo && { replyTo: content.replyTo }), reactions: reactionsOf(facts) }
    const [text, file] = [bodyAs("text", content), bodyAs("attachment", content)]
    if (text === undefined && file === undefined) return { ...message, state: "unsupported", ...said }
    const last = facts.findLast(({ content }) => bodyAs("edit", content))
    if (last === undefined) return { ...message, state: "shown", body: (text ?? file)!, ...said }
    const { id: _, $type: __, ...now } = bodyAs("edit", last.content)!
    const edited = { at: last.entry.createdAt, first: (text ?? file?.caption)?.text ?? "" }
    return { ...message, state: "shown", body: file ? { ...file, caption: now } : body.text(now), edited, ...said }
  }
}

function nameOf(author: string, id: string): string {
  return `${author} ${id}`
}


// isShown says that people see a content as a message, even if only that it is there.
function isShown({ body, silent }: Content): boolean {
  const kind = kindOf(body)
  return kind === undefined ? silent !== true : kind === "text" || kind === "attachment"
}

// reactionsOf reads facts in the order of the log.
function reactionsOf(facts: readonly Said[]): Reaction[] {
  const by = new Map<string, Set<string>>()
  for (const { entry, content } of facts) {
    const reaction = bodyAs("reaction", content)
    if (reaction === undefined) continue
    const people = by.get(reaction.emoji) ?? new Set()
    by.set(reaction.emoji, people)
    people[reaction.removed ? "delete" : "add"](entry.sender)
  }
  return [...by].filter(([, people]) => people.size > 0).map(([emoji, people]) => ({ emoji, by: [...people] }))
}

// firstNotBelow is where a seq stands, or would stand, in ascending ones.
function firstNotBelow(seqs: readonly number[], seq: number): number {
  let [low, high] = [0, seqs.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (seqs[middle]! < seq) low = middle + 1
    else high = middle
  }
  return low
}
