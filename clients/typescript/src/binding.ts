// A convo is bound to one MLS group, and that goes forward: docs/clients/DEVICES.md.

import { fromHex, hex, same, sha256 } from "./bytes.js"
import type { Core } from "./core.js"
import { isKnown, UnknownDeviceError } from "./devices.js"
import { SealError } from "./errors.js"
import type { ConvoId } from "./ids.js"
import type { ContraryFinding } from "./log-findings.js"
import { didOf, type Group, type Info } from "./mls.js"
import { mustRead, names, type Thread } from "./records.js"
import { type Changes, get, getAll } from "./store.js"

/** What the service offers is not the convo's group, or is an older state of it. The device stays where it is. */
export class ContraryError extends SealError {
  override readonly name = "ContraryError"
  override readonly code = "Contrary"

  constructor(
    readonly what: "welcome" | "groupInfo" | "successor",
    why: string,
    /** The convo that was reset, if that is what was offered. */
    readonly before?: ConvoId,
  ) {
    super(why)
  }
}

/** A group that is offered. */
export type Offered = Pick<Info, "groupId" | "epoch" | "members">

/**
 * Checks a group that the service offers for a convo, before this device enters it. The app hears what was
 * refused.
 *
 * @returns who may enter the group by external commit, if it is the successor of another one
 * @throws ContraryError
 * @throws UnknownDeviceError if it is a successor, and the accounts of its devices cannot be asked now
 */
export async function mustFit(core: Core, what: "welcome" | "groupInfo", convo: ConvoId, offered: Offered): Promise<readonly string[] | undefined> {
  try {
    const thread = await get<Thread>(core.store, names.thread(convo))
    if (thread !== undefined) {
      const held = await groupOf(core, convo)
      mustContinue(what, thread, held, offered)
      await mustList(core, what, `convo ${convo}`, without(offered.members, held?.members ?? []))
      return thread.expected
    }
    const before = (await getAll<Thread>(core.store, names.threads)).find(({ resetTo }) => resetTo === convo)
    return before && (await mustSucceed(core, before, offered))
  } catch (err) {
    if (err instanceof ContraryError) await tellContrary(core, err.before ?? convo, err.what, err.message)
    throw err
  }
}

/** Tells the app what was not believed. */
export async function tellContrary({ news, store }: Core, convo: ConvoId | undefined, what: ContraryFinding["what"], sentence: string): Promise<void> {
  const changes: Changes = new Map()
  news.add(changes, { convo, finding: { kind: "contrary", what, sentence, evidence: [] } })
  await store.write(changes)
  await news.deliver()
}

/** The DIDs of those who are in a group. */
export function peopleIn(group: Group | undefined): string[] {
  return [...new Set(group?.members.map(({ identity }) => didOf(identity)))]
}

/** The group that a device has in a convo, or had last. */
export async function groupOf({ store, mls }: Core, convo: ConvoId): Promise<Group | undefined> {
  const state = await store.read(names.group(convo))
  return state && mls.describe(state)
}

/**
 * Checks that members of a group have made its successor: MLS signs its id, which names the old group, with
 * their keys, and nobody else is in it. What the person has decided is not checked.
 *
 * @returns the people of the old group
 * @throws ContraryError
 * @throws UnknownDeviceError
 */
export async function mustSucceed(core: Core, before: Thread, offered: Offered): Promise<readonly string[]> {
  const old = core.mls.describe(await mustRead(core.store, names.group(before.convoId)))
  const people = peopleIn(old)
  if (before.moveTo !== undefined && before.moveTo === before.resetTo) return people
  const no = (why: string) => new ContraryError("successor", `convo ${before.convoId} was reset, says the service; ${why}`, before.convoId)
  const ids = [old.groupId, ...(before.resetVia ?? []).map(fromHex), offered.groupId]
  const links = await Promise.all(ids.slice(1).map((id, i) => isSuccessorId(id, ids[i] as Uint8Array)))
  if (links.includes(false)) throw no("the new group does not say that it goes on in its place")
  const stranger = offered.members.find(({ identity }) => !people.includes(didOf(identity)))
  if (stranger !== undefined) throw no(`${stranger.identity} is in the new group, and was not in the old one`)
  await mustList(core, "successor", `the successor of convo ${before.convoId}`, offered.members, before.convoId)
  return people
}

/**
 * Checks that another device of this person is in a group: one that its account lists.
 *
 * @throws ContraryError
 * @throws UnknownDeviceError if the account cannot be asked now
 */
export async function mustHaveOwn(core: Core, convo: ConvoId, { members }: Offered): Promise<void> {
  const own = members.filter(({ identity, signatureKey }) => didOf(identity) === core.did && !same(signatureKey, core.mls.signatureKey))
  const devices = await core.devices.judge(own)
  if (devices.some(({ state }) => isKnown(state))) return
  const waiting = devices.filter(({ state }) => state === "waiting")
  if (waiting.length > 0) throw new UnknownDeviceError(waiting)
  throw new ContraryError("groupInfo", `no listed device of this person is in the group of convo ${convo}`)
}

// mustList checks that the accounts of devices list them.
async function mustList(core: Core, what: ContraryError["what"], where: string, members: Group["members"], before?: ConvoId): Promise<void> {
  const unknown = (await core.devices.judge(members)).filter(({ state }) => !isKnown(state))
  const unlisted = unknown.find(({ state }) => state === "unlisted")
  if (unlisted !== undefined) throw new ContraryError(what, `in ${where} is a device of ${unlisted.did} that it does not list`, before)
  if (unknown.length > 0) throw new UnknownDeviceError(unknown)
}

function without(members: Group["members"], known: Group["members"]): Group["members"] {
  return members.filter((one) => !known.some((other) => one.identity === other.identity && same(one.signatureKey, other.signatureKey)))
}

/**
 * Checks a group that a device would enter in the place of the one that it has: it must have the same id,
 * and must not be older. After the server has lost commits it may be, if everybody in it was in the group
 * of before.
 *
 * @param held the group that the device has had last
 * @throws ContraryError
 */
export function mustContinue(what: "welcome" | "groupInfo", thread: Thread, held: Group | undefined, offered: Offered): void {
  const { convoId, groupId, rewound, lost, left, stuck } = thread
  if (what === "welcome" && held?.active && !(rewound || lost || left || stuck)) {
    throw new ContraryError(what, `convo ${convoId} goes on, and the service has a Welcome for it`)
  }
  if (hex(offered.groupId) !== groupId) {
    throw new ContraryError(what, `convo ${convoId} is group ${groupId}, and the service offers group ${hex(offered.groupId)}`)
  }
  if (held === undefined || offered.epoch >= held.epoch) return
  const known = new Set(held.members.map(({ identity }) => didOf(identity)))
  const stranger = offered.members.map(({ identity }) => didOf(identity)).find((did) => !known.has(did))
  if (!rewound && !lost) {
    throw new ContraryError(what, `convo ${convoId} was at epoch ${held.epoch}, and the service offers epoch ${offered.epoch}`)
  }
  if (stranger !== undefined) {
    throw new ContraryError(what, `convo ${convoId} went back to epoch ${offered.epoch}, in which ${stranger} is, who was not at epoch ${held.epoch}`)
  }
}

/** The length of a successor's random part, and of what binds it, in bytes. */
const half = 16

/**
 * Makes the group id of the successor of a group: a random part, and a hash of that and the old id. MLS
 * signs it with everything else of the new group, so its members say with their own keys that it goes on
 * in the old one's place. That works also where nobody can write in the old group any more.
 */
export async function successorIdOf(groupId: Uint8Array, random: Uint8Array): Promise<Uint8Array> {
  const label = new TextEncoder().encode("mlsd successor 1")
  const bound = await sha256(Uint8Array.from([...label, ...random, ...groupId]))
  return Uint8Array.from([...random, ...fromHex(bound).slice(0, half)])
}

/** Reports whether a group's id says that it goes on in the place of another one. */
async function isSuccessorId(groupId: Uint8Array, of: Uint8Array): Promise<boolean> {
  return groupId.length === 2 * half && hex(await successorIdOf(of, groupId.slice(0, half))) === hex(groupId)
}
