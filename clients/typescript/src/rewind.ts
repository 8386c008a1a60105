// Going back in a log that has lost entries: docs/RECOVERY.md.

import { sha256 } from "./bytes.js"
import type { Core } from "./core.js"
import { errorName } from "./errors.js"
import { type Item, names, type Thread } from "./records.js"
import { type Changes, getAll, put } from "./store.js"
import * as mls from "#lexicons"

/**
 * Sets a thread back to the last entry that both the device and the server have. Later entries become
 * loose: when their bytes come back at another place, they are found by their digest. They cannot be
 * decrypted a second time.
 *
 * @throws Error if the server has the last entry all the same: to read again would not end
 */
export async function rewind(core: Core, thread: Thread): Promise<Changes> {
  const { convoId } = thread
  const all = await getAll<Item>(core.store, names.items(convoId))
  const items = all.filter(({ seq }) => seq >= thread.first) // of this membership
  const common = await countCommon(core, convoId, items)
  if (items[common - 1]?.seq === thread.cursor) throw new Error(`convo ${convoId}: the service says that the log ends before seq ${thread.cursor}, which it has`)
  const changes: Changes = new Map()
  for (const item of items.slice(common)) {
    changes.set(names.item(convoId, item.seq), undefined)
    put(changes, names.looseItem(convoId, item.digest), item)
  }
  for (const name of await core.store.list(names.seenOf(convoId))) changes.set(name, undefined) // they are read again
  const last = items[common - 1]
  const first = items[0]
  const place = last === undefined ? { first: 0, cursor: 0, last: "" } : { cursor: last.seq, last: last.id }
  const added = last === undefined && first?.state === "past" && first.kind === "commit" ? { addedBy: first.digest } : {}
  const rewound: Thread = { ...thread, ...place, ...added, rewound: true, lost: true }
  put(changes, names.thread(convoId), rewound)
  return changes
}

// countCommon counts the first items that the server still has. If it has one, it has all before it.
async function countCommon(core: Core, convo: string, items: readonly Item[]): Promise<number> {
  let low = 0 // the server has the items below it
  let high = items.length // the server has none from here on
  while (low < high) {
    const middle = Math.floor((low + high) / 2)
    const item = items[middle]
    if (item !== undefined && (await serverHas(core, convo, item))) low = middle + 1
    else high = middle
  }
  return low
}

// serverHas asks whether the server has an entry where it was read. One that came back has another id.
async function serverHas(core: Core, convoId: string, item: Item): Promise<boolean> {
  const since = item.id === "" ? { sinceSeq: item.seq - 1 } : { sinceMessage: item.id }
  try {
    const page = await core.api.query(mls.getMessages.main, { convoId, messageType: "all", limit: 1, ...since })
    if (item.id !== "") return true
    const entry = page.messages[0] // the device's own external commit, which has no id here
    return entry?.seq === item.seq && (await sha256(entry.ciphertext)) === item.digest
  } catch (err) {
    if (errorName(err) === "InvalidCursor") return false
    throw err
  }
}
