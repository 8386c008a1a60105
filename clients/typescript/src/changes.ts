// What a commit did: docs/clients/DEVICES.md.

import { sha256 } from "./bytes.js"
import type { Devices } from "./devices.js"
import type { Did } from "./ids.js"
import { changesOf } from "./members.js"
import { didOf, type Group, type Member } from "./mls.js"

/** A device of somebody in a group. */
export interface DeviceOf {
  readonly did: Did
  /** The SHA-256 of the signature key, in hexadecimal. */
  readonly deviceId: string
  /** The signature key. */
  readonly key: Uint8Array
}

/** What a commit did to a group, as MLS shows it. If nobody and nothing is listed, it renewed keys. */
export interface CommitChange {
  /** The device that made it. It can contain proposals of others. */
  readonly by: DeviceOf
  /** The people who had no device in the group before. */
  readonly added: readonly Did[]
  /** The people who have none any more. */
  readonly removed: readonly Did[]
  /** The devices that entered the group, left it, or have another signature key at the same leaf. */
  readonly devices: readonly (DeviceOf & { readonly change: "entered" | "left" | "keyChanged" })[]
}

/** Compares a group before and after a commit. */
export async function changeOf(before: Pick<Group, "members">, after: Pick<Group, "members">, sender: Leaf): Promise<CommitChange> {
  const [were, are] = [peopleOf(before), peopleOf(after)]
  const devices = changesOf(before, after).map(async ({ change, did, key }) =>
    ({ change: change as "entered" | "left" | "keyChanged", did, deviceId: await sha256(key), key }))
  return {
    by: { did: didOf(sender.identity) as Did, deviceId: await sha256(sender.signatureKey), key: sender.signatureKey },
    added: are.filter((did) => !were.includes(did)),
    removed: were.filter((did) => !are.includes(did)),
    devices: await Promise.all(devices),
  }
}

/**
 * The people whose last device a commit has taken out because their account does not list it: they are away without
 * having left.
 */
export function strandedBy(devices: Devices, before: Group, after: Group): Did[] {
  const are = peopleOf(after)
  const unlisted = before.members.filter((leaf) => devices.of(leaf).state === "unlisted")
  return peopleOf({ members: unlisted }).filter((did) => !are.includes(did))
}

type Leaf = Pick<Member, "identity" | "signatureKey">

/** The people in a group. */
export function peopleOf({ members }: Pick<Group, "members">): Did[] {
  return [...new Set(members.map(({ identity }) => didOf(identity) as Did))]
}
