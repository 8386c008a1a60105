// The app's own records in the client's store. Their names begin with `app/`.

import type { Changes, Store } from "mlsd-client"

export const names = {
  /** What the list of chats shows of a convo. */
  summaries: "app/summary/",
  summary: (convo: string) => `app/summary/${convo}`,
  /** Up to which seq the others were told that this person has read a convo. */
  told: (convo: string) => `app/told/${convo}`,
  /** What the person has typed and not sent. */
  draft: (convo: string) => `app/draft/${convo}`,
  /** The handle of a person. */
  handle: (did: string) => `app/handle/${did}`,
  /** The safety number that was compared with a person. */
  compared: (did: string) => `app/compared/${did}`,
  /** Whether others see what this person has read. */
  receipts: "app/receipts",
  /** Files that are on their way, and their ciphertexts. */
  files: "app/file/",
  file: (id: string) => `app/file/${id}`,
  fileBytes: (id: string) => `app/bytes/${id}`,
} as const

const [encoder, decoder] = [new TextEncoder(), new TextDecoder()]

export async function readText(store: Store, name: string): Promise<string | undefined> {
  const record = await store.read(name)
  return record && decoder.decode(record)
}

export async function readJson<T>(store: Store, name: string): Promise<T | undefined> {
  const text = await readText(store, name)
  return text === undefined ? undefined : (JSON.parse(text) as T)
}

/** All records whose names begin with a prefix, in one step. */
export async function readAllJson<T>(store: Store, prefix: string): Promise<T[]> {
  const records = await store.range({ from: prefix, to: prefix + "\uffff" })
  return records.map(([, content]) => JSON.parse(decoder.decode(content)) as T)
}

/** A change that writes a text. Without a text it deletes the record. */
export function textChange(name: string, text: string | undefined): Changes {
  return new Map([[name, text === undefined ? undefined : encoder.encode(text)]])
}

export function jsonChange(name: string, value: object): Changes {
  return textChange(name, JSON.stringify(value))
}
