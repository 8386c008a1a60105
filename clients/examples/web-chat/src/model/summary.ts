// What the list of chats shows of one convo. It is kept, so that the list needs no log.

import { bodyAs, type BodyOf, type ConvoId, decodeContent, type Item, kindOf } from "mlsd-client"

/** The last message of a convo. */
export interface LastMessage {
  readonly id: string
  readonly author: string
  readonly text: string
  readonly at: string
}

/** A picture of a group, in the words of a file. */
export type Avatar = Omit<BodyOf<"attachment">, "$type" | "preview" | "caption">

export interface Summary {
  readonly convo: ConvoId
  /** Up to which seq of the log this is. */
  readonly upTo: number
  /** Up to which seq the person has read. */
  readonly read: number
  /** Messages of others after that. */
  readonly unread: number
  readonly since: string
  readonly name?: string
  readonly description?: string
  readonly avatar?: Avatar
  readonly last?: LastMessage
  /** Who is in the group, without this person. */
  readonly others: readonly string[]
}

export function emptySummary(convo: ConvoId): Summary {
  return { convo, upTo: 0, read: 0, unread: 0, since: new Date().toISOString(), others: [] }
}

/** What a summary is after an entry of the log. */
export function fold(before: Summary, item: Item, self: string): Summary {
  const summary = { ...before, upTo: Math.max(before.upTo, item.seq) }
  if (item.kind !== "application" || item.content === undefined) return summary
  const content = decodeContent(item.content)
  const { last } = before
  const details = bodyAs("details", content)
  if (details !== undefined) return withDetails(summary, details)
  const edit = bodyAs("edit", content)
  if (edit !== undefined) return last && isOf(last, item, edit.id) ? { ...summary, last: { ...last, text: edit.text } } : summary
  const deletion = bodyAs("deletion", content)
  if (deletion !== undefined) return last && isOf(last, item, deletion.id) ? { ...summary, last: { ...last, text: "Message deleted" } } : summary
  const text = previewOf(content)
  if (text === undefined) return summary
  const isNew = item.sender !== self && item.seq > before.read
  return {
    ...summary, unread: before.unread + (isNew ? 1 : 0),
    last: { id: item.messageId ?? item.id, author: item.sender, text, at: item.createdAt },
  }
}

/** What the person has read is not new any more. */
export function readUpTo(summary: Summary, seq: number): Summary {
  return seq > summary.read ? { ...summary, read: seq, unread: 0 } : summary
}

function withDetails({ name: _, description: __, avatar: ___, ...others }: Summary, details: BodyOf<"details">): Summary {
  const { name, description, avatar } = details
  const { preview: ____, caption: _____, $type: ______, ...picture } = avatar ?? ({} as Partial<BodyOf<"attachment">>)
  return {
    ...others, ...(name !== undefined && { name }), ...(description !== undefined && { description }),
    ...(avatar !== undefined && { avatar: picture as Avatar }),
  }
}

function isOf(last: LastMessage, { sender }: Item, id: string): boolean {
  return last.author === sender && last.id === id
}

// previewOf is undefined for what is no message.
function previewOf(content: ReturnType<typeof decodeContent>): string | undefined {
  if (content === undefined) return "Not supported by this version"
  const file = bodyAs("attachment", content)
  if (file !== undefined) return file.caption?.text ?? (file.mimeType.startsWith("image/") ? "Picture" : (file.name ?? "File"))
  const kind = kindOf(content.body)
  if (kind === undefined) return content.silent === true ? undefined : "Not supported by this version"
  return bodyAs("text", content)?.text
}
