import type { Facet } from "mlsd-client"
import { piecesOf } from "../model/rich-text.js"

/** A text with its links and mentions. */
export function RichText({ text, facets, self }: { text: string; facets?: readonly Facet[] | undefined; self: string }) {
  return piecesOf(text, facets).map(({ text: piece, link, mention }, i) => {
    if (link !== undefined) return <a key={i} href={link} target="_blank" rel="noopener noreferrer">{piece}</a>
    if (mention !== undefined) return <b key={i} className={mention === self ? "mention self" : "mention"}>{piece}</b>
    return piece
  })
}
