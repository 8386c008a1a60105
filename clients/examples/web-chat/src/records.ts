// The app's own records in the client's store. Their names begin with `app/`.

import type { Store } from "mlsd-client"

export const names = {
  /** Up to which seq the other person was told that this person has seen the log. */
  seen: (convo: string) => `app/seen/${convo}`,
  /** The last state of the Welcome. */
  welcome: (convo: string) => `app/welcome/${convo}`,
} as const

export async function readText(store: Store, name: string): Promise<string | undefined> {
  const record = await store.read(name)
  return record && new TextDecoder().decode(record)
}

/** A change that writes a text. */
export function textChange(name: string, text: string): Map<string, Uint8Array> {
  return new Map([[name, new TextEncoder().encode(text)]])
}
