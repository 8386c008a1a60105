// A conversation as lines: messages, days, and what commits did.

import type { BodyOf, Item, MessageName, ShownMessage, Transcript } from "mlsd-client"
import { sentenceOf } from "./changes.js"
import type { People } from "./people.js"
import type { Sending, State } from "./sendings.js"

/** A message, in the log or on its way there. */
export interface MessageLine {
  readonly kind: "message"
  readonly key: string
  readonly message: ShownMessage
  readonly state: State
  /** False if the line before is of the same author, a moment before. */
  readonly first: boolean
  /** Of the outbox, while the log does not show it. */
  readonly write?: string
}

/** What has happened. */
export interface NoteLine {
  readonly kind: "note" | "day"
  readonly key: string
  readonly text: string
}

export type Line = MessageLine | NoteLine

/** Messages of one author within so many milliseconds stand together. */
const together = 5 * 60_000

/** What the lines are made of. */
export interface Parts {
  readonly items: readonly Item[]
  readonly transcript: Transcript
  readonly sendings: readonly Sending[]
  readonly people: People
  /** The others in the group. */
  readonly others: readonly string[]
}

/** Makes the lines, the oldest first. */
export function linesOf({ items, transcript, sendings, people, others }: Parts): Line[] {
  const messages = transcript.messages()
  const readTo = Math.min(...others.map((did) => transcript.receipt(did).read))
  const pending = new Map(sendings.map((one) => [one.id, one]))
  const all: (MessageLine | (NoteLine & { readonly at: string }))[] = []
  let next = 0
  for (const item of items) {
    const note = noteOf(item, people)
    while (next < messages.length && messages[next]!.seq < item.seq) next++
    const message = messages[next]
    if (message?.seq === item.seq) {
      const own = message.author === people.self
      const sending = own ? pending.get(message.id) : undefined
      pending.delete(message.id)
      const isPending = sending !== undefined && sending.state !== "sent"
      const state = !own ? "received" : isPending ? sending.state : (others.length > 0 && message.seq <= readTo ? "read" : "sent")
      all.push({ kind: "message", key: `m${message.author}${message.id}`, message, state, first: true })
    } else if (note !== undefined) {
      all.push({ kind: "note", key: `n${item.seq}`, text: note, at: item.createdAt })
    }
  }
  for (const sending of pending.values()) all.push(lineOf(sending, people.self))
  return withDays(all)
}

function lineOf({ id, at, state, body, replyTo, write }: Sending, author: string): MessageLine {
  const message: ShownMessage = {
    seq: Infinity, id, author, createdAt: at, state: "shown", body, reactions: [], ...(replyTo && { replyTo }),
  }
  return { kind: "message", key: `m${author}${id}`, message, state, first: true, write }
}

function noteOf({ kind, state, change, sender }: Item, people: People): string | undefined {
  if (state === "withheld") return `A message of ${people.nameOf(sender)} waits: the device that sent it is not confirmed yet`
  if (state === "unreadable") return `A message of ${people.nameOf(sender)} cannot be read`
  if (kind === "commit") return change === undefined ? undefined : sentenceOf(change, people)
  return kind === "reset" ? "The conversation begins anew: the old group was replaced" : undefined
}

// withDays puts a line before each day, and sees who has written twice in a row.
function withDays(all: readonly (MessageLine | (NoteLine & { readonly at: string }))[]): Line[] {
  const lines: Line[] = []
  let day = ""
  let before: MessageLine | undefined
  for (const line of all) {
    const at = line.kind === "message" ? line.message.createdAt : line.at
    const today = new Date(at).toDateString()
    if (today !== day) lines.push({ kind: "day", key: `d${today}${line.key}`, text: dayOf(at) })
    if (line.kind !== "message") {
      lines.push(line)
      before = undefined
    } else {
      const first = today !== day || before === undefined || before.message.author !== line.message.author ||
        Date.parse(at) - Date.parse(before.message.createdAt) > together
      before = first ? line : { ...line, first }
      lines.push(before)
    }
    day = today
  }
  return lines
}

function dayOf(at: string): string {
  const [date, now] = [new Date(at), new Date()]
  if (date.toDateString() === now.toDateString()) return "Today"
  if (date.toDateString() === new Date(now.getTime() - 86_400_000).toDateString()) return "Yesterday"
  const year = date.getFullYear() === now.getFullYear() ? {} : { year: "numeric" as const }
  return date.toLocaleDateString([], { weekday: "long", day: "numeric", month: "long", ...year })
}

/** Reports whether two lines look the same. */
export function isSame(a: Line | undefined, b: Line | undefined): boolean {
  if (a === undefined || b === undefined || a.key !== b.key) return a === b
  if (a.kind !== "message" || b.kind !== "message") return a.kind === b.kind && (a as NoteLine).text === (b as NoteLine).text
  return a.message === b.message && a.state === b.state && a.first === b.first && a.write === b.write
}

/** The text of a message: its own, or its caption. */
export function textOf({ body }: Pick<ShownMessage, "body">): string {
  if (body === undefined) return ""
  return isFile(body) ? (body.caption?.text ?? "") : body.text
}

export function isFile(body: ShownMessage["body"]): body is BodyOf<"attachment"> {
  return body !== undefined && body.$type.endsWith("#attachment")
}

/** Names a message. */
export function nameOf({ author, id }: ShownMessage): MessageName {
  return { author: author as MessageName["author"], id }
}
