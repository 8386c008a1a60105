// What a commit did, in words.

import type { CommitChange } from "mlsd-client"
import { listOf, type People } from "./people.js"

/** Says what a commit did, as a line of the conversation. */
export function sentenceOf({ by, added, removed, devices }: CommitChange, people: People): string {
  const named = (did: string) => (did === people.self ? "you" : people.nameOf(did))
  const who = capital(named(by.did))
  const parts: string[] = []
  const invited = added.filter((did) => did !== by.did)
  if (invited.length > 0) parts.push(`added ${listOf(invited.map(named))}`)
  if (added.includes(by.did)) parts.push("entered")
  const gone = removed.filter((did) => did !== by.did)
  if (gone.length > 0) parts.push(`removed ${listOf(gone.map(named))}`)
  const lines = parts.length > 0 ? [`${who} ${listOf(parts)}`] : []
  const others = devices.filter(({ did }) => !added.includes(did as never) && !removed.includes(did as never))
  for (const { change, did } of others) {
    const whose = did === people.self ? "your" : `${people.nameOf(did)}’s`
    if (change === "entered") lines.push(capital(`${whose} new device is here`))
    if (change === "left") lines.push(capital(`a device of ${did === people.self ? "yours" : people.nameOf(did)} is gone`))
    if (change === "keyChanged") lines.push(capital(`${whose} device has a new key`))
  }
  return lines.length > 0 ? lines.join(" · ") : `${who} renewed the keys`
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}
