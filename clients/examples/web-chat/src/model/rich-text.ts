// Links and mentions in a text: facets in the form of app.bsky.richtext.

import type { Facet } from "mlsd-client"

/** A piece of a text. */
export interface Piece {
  readonly text: string
  /** An address with http or https. */
  readonly link?: string
  /** The DID of a person. */
  readonly mention?: string
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()
const link = /https?:\/\/[^\s<>"]*[^\s<>"'.,;:!?)\]}]/g
const mention = /(?<=^|[\s(])@([a-z0-9-]+(?:\.[a-z0-9-]+)*)/gi

/**
 * Finds links and mentions in what a person has typed.
 *
 * @param didOf the DID of a member whose handle begins so
 */
export function facetsOf(text: string, didOf: (handle: string) => string | undefined): Facet[] {
  const links = [...text.matchAll(link)].map((match) => facet(text, match, { $type: "app.bsky.richtext.facet#link", uri: match[0] }))
  const mentions = [...text.matchAll(mention)].flatMap((match) => {
    const did = didOf((match[1] ?? "").toLowerCase())
    return did === undefined ? [] : [facet(text, match, { $type: "app.bsky.richtext.facet#mention", did })]
  })
  return [...links, ...mentions].sort((a, b) => a.index.byteStart - b.index.byteStart)
}

function facet(text: string, match: RegExpExecArray, feature: Record<string, string>): Facet {
  const byteStart = encoder.encode(text.slice(0, match.index)).length
  return { index: { byteStart, byteEnd: byteStart + encoder.encode(match[0]).length }, features: [feature] }
}

/** Cuts a text into pieces. What somebody else has written can be wrong in every way: such a facet is text. */
export function piecesOf(text: string, facets: readonly Facet[] = []): Piece[] {
  if (facets.length === 0) return [{ text }]
  const bytes = encoder.encode(text)
  const pieces: Piece[] = []
  let at = 0
  for (const { index: { byteStart, byteEnd }, features } of [...facets].sort((a, b) => a.index.byteStart - b.index.byteStart)) {
    const says = features.map((one) => meaningOf(one as Record<string, unknown>)).find((one) => one !== undefined)
    if (says === undefined || byteStart < at || byteEnd <= byteStart || byteEnd > bytes.length) continue
    if (byteStart > at) pieces.push({ text: decoder.decode(bytes.subarray(at, byteStart)) })
    pieces.push({ text: decoder.decode(bytes.subarray(byteStart, byteEnd)), ...says })
    at = byteEnd
  }
  if (at < bytes.length) pieces.push({ text: decoder.decode(bytes.subarray(at)) })
  return pieces
}

function meaningOf({ $type, uri, did }: Record<string, unknown>): Pick<Piece, "link" | "mention"> | undefined {
  if ($type === "app.bsky.richtext.facet#link" && typeof uri === "string" && isSafe(uri)) return { link: uri }
  if ($type === "app.bsky.richtext.facet#mention" && typeof did === "string") return { mention: did }
  return undefined
}

function isSafe(uri: string): boolean {
  return URL.canParse(uri) && ["http:", "https:"].includes(new URL(uri).protocol)
}
