// Commits of members. A commit is not merged when it is accepted: the log shows it at its place, after
// the messages of the epoch that it ends.

import { base64url, fromBase64url, same } from "./bytes.js"
import type { Did } from "./ids.js"
import { checkInput } from "./api.js"
import { answerOf, type Done, type Kind, mustBeIn, type Parts, sealed } from "./kind.js"
import { type Change, didOf, type Group, type Staged } from "./mls.js"
import type { Plan, Sealed, Write } from "./outbox.js"
import { mustRead, names, type Pending } from "./records.js"
import { type Changes, put } from "./store.js"
import { readPending } from "./write-messages.js"
import * as mls from "#lexicons"

/** What a write of the kind `add` holds. */
export interface AddContent {
  readonly dids: readonly Did[]
  /** The key of the claim of KeyPackages. */
  readonly claim: string
  /** Set to replace the leaves of people that never joined: docs/WELCOME.md. */
  readonly again?: boolean
}

/** What a write of the kind `remove` holds. */
export interface RemoveContent {
  readonly did: Did
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
    await mustBeIn(parts, convoId)
  },
  async prepare(parts, write) {
    const { claim } = write.content as unknown as AddContent
    const { wanted } = await wantedOf(parts, write)
    if (wanted.length > 0) await parts.services.prepare(wanted, parts.mls.cipherSuite, claim, write.queue)
  },
  async seal(parts, write) {
    const { claim } = write.content as unknown as AddContent
    await readPending(parts, write.queue)
    const { wanted, group } = await wantedOf(parts, write)
    if (wanted.length === 0) return { result: { epoch: group.epoch, seq: 0 }, changes: new Map() }
    const remove = wanted.flatMap((did) => leavesOf(group, did))
    const { packages, receipts } = await claimPackages(parts, wanted, claim, write.queue)
    // Some libraries cannot remove and add one signature key in one commit.
    const fresh = packages.filter((one) => !remove.some(({ signatureKey }) => same(signatureKey, parts.mls.signatureKeyOf(one))))
    return stage(parts, write, { add: fresh, remove: remove.map(({ index }) => index) }, (staged, epoch) =>
      sealed(parts, mls.addMembers.main, {
        convoId: write.queue, didList: [...wanted], commit: base64url(staged.commit), groupInfo: staged.groupInfo,
        welcomeMessage: base64url(staged.welcome ?? new Uint8Array()), ...(receipts.length > 0 && { receipts: [...receipts] }),
      }, { bytes: staged.commit, epoch }))
  },
  async done(_parts, _write, answer) {
    const { newEpoch, seq } = answerOf(mls.addMembers.main, answer)
    return committed(newEpoch, seq)
  },
  undo,
  catchUp,
}

// wantedOf returns the people whom an addition adds to the group as it is now.
async function wantedOf(parts: Parts, write: Write): Promise<{ wanted: readonly Did[]; group: Group }> {
  const { dids, again } = write.content as unknown as AddContent
  const group = parts.mls.describe(await mustRead(parts.store, names.group(write.queue)))
  return { wanted: again ? dids : dids.filter((did) => leavesOf(group, did).length === 0), group }
}

const remove: Kind = {
  async check(parts, convoId, content) {
    const { did } = content as unknown as RemoveContent
    checkInput(mls.leaveConvo.main, { convoId, targetDid: did })
    await mustBeIn(parts, convoId)
  },
  async seal(parts, write) {
    const { did } = write.content as unknown as RemoveContent
    await readPending(parts, write.queue)
    const group = parts.mls.describe(await mustRead(parts.store, names.group(write.queue)))
    const leaves = leavesOf(group, did).map(({ index }) => index)
    if (leaves.length === 0) return { result: { epoch: group.epoch, seq: 0 }, changes: new Map() }
    return stage(parts, write, { remove: leaves }, (staged, epoch) =>
      sealed(parts, mls.leaveConvo.main, {
        convoId: write.queue, targetDid: did, commit: base64url(staged.commit), groupInfo: staged.groupInfo,
      }, { bytes: staged.commit, epoch }))
  },
  async done(_parts, _write, answer) {
    const { newEpoch, seq } = answerOf(mls.leaveConvo.main, answer)
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

function leavesOf(group: Group, did: string) {
  return group.members.filter(({ identity }) => didOf(identity) === did)
}

/**
 * Claims a KeyPackage of each device of each person: see {@link Services.claim}. The outbox repeats it: so
 * the convo's lock is free meanwhile, and the write can be discarded.
 */
export async function claimPackages(
  parts: Parts, dids: readonly Did[], claim: string, convoId?: string, some = false,
): Promise<{ packages: Uint8Array[]; receipts: readonly string[] }> {
  const { keyPackages, receipts } = await parts.services.claim(dids, parts.mls.cipherSuite, claim, convoId, some)
  return { packages: keyPackages.map((one) => fromBase64url(one)), receipts }
}
