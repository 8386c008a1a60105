// What stands in a message: docs/clients/CONTENT.md. Apps that follow it can read each other.

import { decode, encode } from "@atproto/lex-cbor"
import type { LexValue } from "./json.js"
import * as mls from "#lexicons"

const lexicon = mls.content

/** What a message says: its body, and perhaps the message that it answers. */
export type Content = Omit<mls.content.Main, "$type">

/** The body of a content. `$type` says which one it is; a later version of the lexicon can have others. */
export type Body = Content["body"]
/** Names a message of the same convo: its id, and who has sent it. */
export type MessageName = mls.content.Message
/** What a part of a text is, in the form of app.bsky.richtext.facet. */
export type Facet = mls.content.Facet

/** A content breaks the lexicon. */
export class ContentError extends Error {
  override readonly name = "ContentError"
  readonly code = "Content"
}

/** Makes bodies: `body.text({ text: "hello" })`. */
export const body = {
  text: (value: Omit<mls.content.Text, "$type">) => lexicon.text.build(value),
  attachment: (value: Omit<mls.content.Attachment, "$type">) => lexicon.attachment.build(value),
  reaction: (value: Omit<mls.content.Reaction, "$type">) => lexicon.reaction.build(value),
  edit: (value: Omit<mls.content.Edit, "$type">) => lexicon.edit.build(value),
  deletion: (value: Omit<mls.content.Deletion, "$type">) => lexicon.deletion.build(value),
  details: (value: Omit<mls.content.Details, "$type">) => lexicon.details.build(value),
  receipt: (value: Omit<mls.content.Receipt, "$type">) => lexicon.receipt.build(value),
}

/** The most bytes of a content that is read. */
const mostBytes = 1 << 20

const utf8 = new TextDecoder("utf-8", { fatal: true })

/**
 * Encodes what a message says. {@link Client.send} puts the message's id before it.
 *
 * @throws ContentError
 */
export function encodeContent(content: Content): Uint8Array {
  try {
    return encode(lexicon.main.build(lexicon.main.validate(content)) as LexValue)
  } catch (err) {
    throw new ContentError(`the content breaks the lexicon ${lexicon.$nsid}: ${String(err)}`, { cause: err })
  }
}

/**
 * Reads what another member has written, which can be anything. Plain text without NUL is a text. The body can be of
 * a kind that this version does not know. What is no content is `undefined`: keep it, and show that there is
 * something that this version does not support.
 */
export function decodeContent(bytes: Uint8Array): Content | undefined {
  if (bytes.length > mostBytes) return undefined
  try {
    if (!startsMap(bytes)) return bytes.includes(0) ? undefined : { body: lexicon.text.build(lexicon.text.validate({ text: utf8.decode(bytes) })) }
    return lexicon.main.validate(decode(bytes))
  } catch {
    return undefined
  }
}

// startsMap says that bytes begin as a map of DAG-CBOR does, and no text of UTF-8.
function startsMap(bytes: Uint8Array): boolean {
  return (bytes[0] ?? 0) >> 5 === 5
}

/** The kinds of bodies, by their names in the lexicon. Those of history are for the client alone. */
export type Kind = keyof typeof body | "history"

/** The body of a kind. */
export type BodyOf<K extends keyof typeof body> = ReturnType<(typeof body)[K]>

/** The body of a content, if it is of a kind. */
export function bodyAs<K extends keyof typeof body>(kind: K, content: Content | undefined): BodyOf<K> | undefined {
  return content !== undefined && kindOf(content.body) === kind ? (content.body as BodyOf<K>) : undefined
}

/** The kind of a body. It is `undefined` if this version does not know it. */
export function kindOf({ $type }: Body): Kind | undefined {
  const [nsid, kind = ""] = $type.split("#")
  if (nsid !== lexicon.$nsid) return undefined
  if (Object.hasOwn(body, kind)) return kind as keyof typeof body
  return kind.startsWith("history") ? "history" : undefined
}
