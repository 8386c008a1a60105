// Search in what this device has of a conversation.

import { type Client, type ConvoId, type Item, type ShownMessage, Transcript } from "mlsd-client"
import { isFile, textOf } from "./lines.js"

/** So many entries are read at once, and so many messages are found at most. */
const atOnce = 500
const mostFound = 50

/** Finds messages with all words of a query, the last one first. Deleted messages are not found. */
export async function searchIn(client: Client, convo: ConvoId, query: string): Promise<ShownMessage[]> {
  const words = wordsOf(query)
  if (words.length === 0) return []
  const transcript = new Transcript()
  for (let page: Item[], after = 0; (page = await client.items(convo, { after, limit: atOnce })).length > 0; after = page.at(-1)!.seq) {
    transcript.add(page)
  }
  return transcript.messages().filter((message) => matches(message, words)).slice(-mostFound).reverse()
}

function matches(message: ShownMessage, words: readonly string[]): boolean {
  const { body } = message
  const said = fold([textOf(message), isFile(body) ? `${body.name ?? ""} ${body.alt ?? ""}` : ""].join(" "))
  return words.every((word) => said.includes(word))
}

function wordsOf(query: string): string[] {
  return fold(query).split(/\s+/).filter((word) => word !== "")
}

// fold takes away case and accents.
function fold(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase()
}
