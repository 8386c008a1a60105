// Many entries of one convo's log, and how long a page of them takes. It runs in a browser too.

import { names } from "../../src/records.js"
import { type Changes, endOf, getRange, put, type Store } from "../../src/store.js"

const convo = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
const count = 100_000
const limit = 50

/** Writes 100,000 entries. */
export async function writeEntries(store: Store): Promise<void> {
  for (let seq = 1; seq <= count; ) {
    const changes: Changes = new Map()
    for (const end = seq + 1000; seq < end; seq++) {
      put(changes, names.item(convo, seq), {
        seq, id: `${convo}-${seq}`, kind: "application", sender: "did:plc:bob", createdAt: "2026-01-02T03:04:05.678Z",
        digest: "ab".repeat(32), own: false, state: "read", messageId: "cd".repeat(16), content: new Uint8Array(100),
      })
    }
    await store.write(changes)
  }
}

/** Reads pages, the last one, some before it, and the first, and says how long each takes. */
export async function measure(name: string, store: Store): Promise<string> {
  const range = { from: names.items(convo), to: endOf(names.items(convo)), limit }
  const pages = [
    { ...range, last: true }, { ...range, to: names.item(convo, 50_000), last: true }, { ...range, to: names.item(convo, 1000), last: true },
    { ...range, from: names.item(convo, 99_000) }, range,
  ]
  const took: string[] = []
  for (const page of pages) {
    const begun = performance.now()
    const items = await getRange(store, page)
    took.push((performance.now() - begun).toFixed(1))
    if (items.length !== limit) throw new Error(`${items.length} entries`)
  }
  const begun = performance.now()
  if ((await store.count(range)) !== count) throw new Error("entries are missing")
  return `${name}: pages of ${limit} of ${count} entries in ms: ${took.join(", ")}; the count: ${(performance.now() - begun).toFixed(1)}`
}
