// Commits of members. A commit is not merged when it is accepted: the log shows it at its place, after
// the messages of the epoch that it ends.

import { base64url, fromBase64url, hex, same } from "./bytes.js"
import { tellContrary } from "./binding.js"
import { type Device, isKnown, UnknownDeviceError } from "./devices.js"
import { OwnDeviceError, SealError, XrpcError } from "./errors.js"
import type { ConvoId, Did } from "./ids.js"
import { checkInput } from "./api.js"
import { answerOf, type Done, type Kind, mustBeIn, type Parts, sealed } from "./kind.js"
import { leave } from "./missing.js"
import { type Change, didOf, type Group, type Staged } from "./mls.js"
import type { News } from "./news.js"
import type { Plan, Sealed, Write } from "./outbox.js"
import { mustRead, names, type Pending } from "./records.js"
import { type Changes, get, put } from "./store.js"
import { readPending } from "./write-messages.js"
import * as mls from "#lexicons"

/** What a write of the kind `add` holds. */
export interface AddContent {
  readonly dids: readonly Did[]
  /** The key of the claim of KeyPackages. */
  readonly claim: string
  /** Set to replace the leaves of people that never joined: docs/WELCOME.md. */
  readonly again?: boolean
  /** Set for people who could not be invited before: {@link LaterInvitations}. */
  readonly later?: boolean
}

/** What a write of the kind `remove` holds. */
export interface RemoveContent {
  readonly did: Did
  /** Set to remove this device alone: its signature key, in hexadecimal. */
  readonly device?: string
  /** Set to remove the person only if it is not on the roster any more: it has left, and its leaves are still there. */
  readonly gone?: boolean
  /** Set to remove the device only while its own person's proposal to remove it counts. */
  readonly leaving?: boolean
}

/** Where the service has put a commit. */
export interface Committed {
  readonly epoch: number
  readonly seq: number
}

// request makes the request of a staged commit.
type Request = (staged: Staged, epoch: number) => Promise<Sealed>

async function stage(parts: Parts, write: Write, change: Change, request: Request): Promise<Plan> {
  const state = await mustRead(parts.store, names.group(write.queue))
  const staged = await parts.mls.stage(state, change)
  const made = await request(staged, parts.mls.describe(staged.state).epoch)
  const changes: Changes = new Map()
  const pending: Pending = { digest: made.digest ?? "", state: staged.state }
  put(changes, names.pending(write.queue), pending)
  return { sealed: made, changes }
}

// A commit lost its epoch, or is refused: the group stays as it is.
async function undo(_parts: Parts, write: Write): Promise<Changes> {
  if (write.sealed === undefined) return new Map()
  return new Map([[names.pending(write.queue), undefined]])
}

async function catchUp(parts: Parts, write: Write): Promise<void> {
  await parts.log.read(write.queue)
}

const add: Kind = {
  async check(parts, convoId, content) {
    const { dids } = content as unknown as AddContent
    checkInput(mls.addMembers.main, { convoId, didList: [...dids] })
    if (dids.includes(parts.did)) {
      throw new OwnDeviceError("a device of this person enters its convos by itself: open a client on it, and call listen()")
    }
    await mustBeIn(parts, convoId)
  },
  async prepare(parts, write) {
    const { claim } = write.content as unknown as AddContent
    const pending = await get<Pending>(parts.store, names.pending(write.queue)) // it can be the addition of the same people
    const { wanted } = await wantedOf(parts, write, pending?.state)
    if (wanted.length === 0) return
    const { keyPackages, missing } = await parts.services.prepare(wanted, parts.mls.cipherSuite, claim, write.queue)
    const there = wanted.filter((did) => !missing.includes(did))
    await admitted(parts, there, keyPackages.map((one) => fromBase64url(one)), write.queue as ConvoId, false)
  },
  async seal(parts, write) {
    const { claim, later = false } = write.content as unknown as AddContent
    await readPending(parts, write.queue)
    const { wanted: asked, group } = await wantedOf(parts, write)
    if (asked.length === 0) return { result: { epoch: group.epoch, seq: 0 }, changes: new Map() }
    const { packages, receipts, leftOut } = await claimPackages(parts, asked, claim, write.queue, later)
    const wanted = asked.filter((did) => !leftOut.includes(did))
    if (wanted.length === 0) return { result: { epoch: group.epoch, seq: 0 }, changes: new Map() }
    const remove = wanted.flatMap((did) => leavesOf(group, did))
    // Some libraries cannot remove and add one signature key in one commit.
    const fresh = packages.filter((one) => !remove.some(({ signatureKey }) => same(signatureKey, parts.mls.leafOf(one).signatureKey)))
    const plan = await stage(parts, write, { add: fresh, remove: remove.map(({ index }) => index) }, (staged, epoch) =>
      sealed(parts, mls.addMembers.main, {
        convoId: write.queue, didList: [...wanted], commit: base64url(staged.commit), groupInfo: staged.groupInfo,
        welcomeMessage: base64url(staged.welcome ?? new Uint8Array()), ...(receipts.length > 0 && { receipts: [...receipts] }),
      }, { bytes: staged.commit, epoch }))
    await noteClaim(parts, claim, wanted, leftOut, plan.changes)
    return plan
  },
  async done(parts, write, answer) {
    const { newEpoch, seq } = answerOf(mls.addMembers.main, answer)
    const done = committed(newEpoch, seq)
    const { claim, dids } = write.content as unknown as AddContent
    await spendClaim(parts, claim, write.queue as ConvoId, dids, done.changes)
    return done
  },
  undo,
  catchUp,
}

/** Adds to changes that a request has the KeyPackages of people, and whom it leaves out. */
export async function noteClaim(parts: Parts, claim: string, invited: readonly Did[], leftOut: readonly Did[], changes: Changes): Promise<void> {
  await parts.services.claims.use(claim, invited, changes)
  if (leftOut.length > 0) put(changes, names.leftOut(claim), leftOut)
}

/** Adds to changes that a request of {@link noteClaim} was accepted: who was left out is invited later. */
export async function spendClaim(parts: Parts, claim: string, convo: ConvoId, dids: readonly Did[], changes: Changes): Promise<void> {
  await parts.services.claims.spend(claim, changes)
  const leftOut = (await get<Did[]>(parts.store, names.leftOut(claim))) ?? []
  await leave(parts, convo, dids, leftOut, changes)
  changes.set(names.leftOut(claim), undefined)
}

// wantedOf returns the people whom an addition adds to the group as it is now.
async function wantedOf(parts: Parts, write: Write, state?: Uint8Array): Promise<{ wanted: readonly Did[]; group: Group }> {
  const { dids, again } = write.content as unknown as AddContent
  const group = parts.mls.describe(state ?? (await mustRead(parts.store, names.group(write.queue))))
  return { wanted: again ? dids : dids.filter((did) => leavesOf(group, did).length === 0), group }
}

const remove: Kind = {
  async check(parts, convoId, content) {
    const { did, device } = content as unknown as RemoveContent
    checkInput(mls.leaveConvo.main, { convoId, targetDid: did })
    if (did === parts.did && device === undefined) {
      throw new OwnDeviceError("a person does not remove itself: call leave(convo), or removeDevice(deviceId) for one device")
    }
    await mustBeIn(parts, convoId)
  },
  async seal(parts, write) {
    const { did, device, gone = false, leaving = false } = write.content as unknown as RemoveContent
    if (gone) {
      await parts.log.read(write.queue)
      if (await isOnRoster(parts, write.queue, did)) return { result: { epoch: 0, seq: 0 }, changes: new Map() }
    }
    await readPending(parts, write.queue)
    const proposed = (await parts.log.thread(write.queue))?.leaving ?? []
    if (leaving && !proposed.includes(device ?? "")) return { result: { epoch: 0, seq: 0 }, changes: new Map() }
    const isMeant = ({ signatureKey }: Group["members"][number]) => device === undefined || hex(signatureKey) === device
    const look = async () => {
      const group = parts.mls.describe(await mustRead(parts.store, names.group(write.queue)))
      return { group, leaves: leavesOf(group, did).filter(isMeant) }
    }
    let { group, leaves } = await look()
    if (leaves.length === 0) { // somebody can have added it since this device has read the log
      await parts.log.read(write.queue)
      ;({ group, leaves } = await look())
    }
    if (leaves.length === 0) {
      const changes: Changes = new Map()
      if (device === undefined && !gone) await leave(parts, write.queue as ConvoId, [did], [], changes) // who is not invited yet
      return { result: { epoch: group.epoch, seq: 0 }, changes }
    }
    return stage(parts, write, { remove: leaves.map(({ index }) => index) }, (staged, epoch) => {
      const [convoId, { commit, groupInfo }] = [write.queue, staged]
      const object = { bytes: commit, epoch }
      if (device !== undefined) return sealed(parts, mls.submitCommit.main, { convoId, commit, groupInfo }, object)
      return sealed(parts, mls.leaveConvo.main, { convoId, targetDid: did, commit: base64url(commit), groupInfo }, object)
    })
  },
  async done(_parts, write, answer) {
    const { device } = write.content as unknown as RemoveContent
    const { newEpoch, seq } = answerOf(device === undefined ? mls.leaveConvo.main : mls.submitCommit.main, answer)
    return committed(newEpoch, seq)
  },
  undo,
  catchUp,
}

const update: Kind = {
  check: mustBeIn,
  async seal(parts, write) {
    await readPending(parts, write.queue)
    return stage(parts, write, {}, (staged, epoch) =>
      sealed(parts, mls.submitCommit.main, {
        convoId: write.queue, commit: staged.commit, groupInfo: staged.groupInfo,
      }, { bytes: staged.commit, epoch }))
  },
  async done(_parts, _write, answer) {
    const { newEpoch, seq } = answerOf(mls.submitCommit.main, answer)
    return committed(newEpoch, seq)
  },
  undo,
  catchUp,
}

/** Commits that change or renew a group. */
export const kindsOfCommits = { add, remove, update }

/** The kinds of writes that move the epoch. */
export const committing: ReadonlySet<string> = new Set(["add", "remove", "update", "rejoin"])

function committed(epoch: number, seq: number | undefined): Done {
  return { result: { epoch, seq: seq ?? 0 }, changes: new Map() }
}

async function isOnRoster(parts: Parts, convoId: string, did: Did): Promise<boolean> {
  const { convo: { members } } = await parts.api.query(mls.getConvo.main, { convoId })
  return members.some((member) => member.did === did)
}

function leavesOf(group: Group, did: string) {
  return group.members.filter(({ identity }) => didOf(identity) === did)
}

/** KeyPackages for a commit. */
export interface Packages {
  readonly packages: Uint8Array[]
  readonly receipts: readonly string[]
  /** Who has none that can be used. */
  readonly leftOut: readonly Did[]
}

/**
 * Claims a KeyPackage of each device of each person: see {@link Services.claim}. The outbox repeats it: so
 * the convo's lock is free meanwhile, and the write can be discarded.
 *
 * @param some set to go without all people who have none that can be used
 * @throws XrpcError `KeyPackageNotFound` if nobody has one
 */
export async function claimPackages(parts: Parts, dids: readonly Did[], claim: string, convoId?: string, some = false): Promise<Packages> {
  const { keyPackages, receipts, missing } = await parts.services.claim(dids, parts.mls.cipherSuite, claim, convoId, some)
  const there = dids.filter((did) => !missing.includes(did))
  if (there.length === 0 && missing.length > 0 && !some) throw new XrpcError(404, "KeyPackageNotFound", `no KeyPackages of ${missing.join(", ")}`)
  const known = await admitted(parts, there, keyPackages.map((one) => fromBase64url(one)), convoId as ConvoId | undefined, some)
  const people = new Set(known.map((bytes) => didOf(parts.mls.leafOf(bytes).identity)))
  return { packages: known, receipts, leftOut: dids.filter((did) => !people.has(did)) }
}

// admitted returns the KeyPackages of devices that those people list whom this person has asked for. The
// service has chosen them, and could have made them itself. The app hears of those that are left out.
async function admitted(
  parts: Parts, dids: readonly Did[], packages: readonly Uint8Array[], convo: ConvoId | undefined, some: boolean,
): Promise<Uint8Array[]> {
  const all = packages.map((bytes) => ({ bytes, leaf: parts.mls.leafOf(bytes) }))
  const asked = all.filter(({ leaf }) => dids.some((did) => did === didOf(leaf.identity)))
  for (const { leaf } of all.filter((one) => !asked.includes(one))) {
    await tellContrary(parts, convo, "keyPackage", `the service has handed out a KeyPackage of ${leaf.identity}, who was not asked for`)
  }
  const before = asked.map(({ leaf }) => parts.devices.of(leaf).state)
  const devices = await parts.devices.judge(asked.map(({ leaf }) => leaf))
  await tellUnlisted(parts, convo, devices.filter(({ state }, i) => state === "unlisted" && before[i] !== state))
  const known = asked.filter(({ leaf }) => isKnown(parts.devices.of(leaf).state))
  const people = new Set(known.map(({ leaf }) => didOf(leaf.identity)))
  const without = dids.filter((did) => !people.has(did))
  if (without.length === 0 || some) return known.map(({ bytes }) => bytes)
  const waiting = devices.filter(({ did, state }) => state === "waiting" && without.includes(did))
  if (waiting.length > 0) throw new UnknownDeviceError(waiting)
  if (people.size > 0) return known.map(({ bytes }) => bytes) // the others are left out
  throw new SealError(`${without.join(", ")} lists none of the devices whose KeyPackages the service has handed out`)
}

async function tellUnlisted({ news, store }: Parts, convo: ConvoId | undefined, devices: readonly Device[]): Promise<void> {
  const changes: Changes = new Map()
  news.add(changes, ...devices.map(({ did, key }): News => ({ convo, device: { change: "unlisted", did, key } })))
  await store.write(changes)
  await news.deliver()
}
