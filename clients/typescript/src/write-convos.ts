// Convos: making one, resetting one, leaving one, and coming back into one.

import { base64url, fromHex, hex } from "./bytes.js"
import { asConvoId, type ConvoId, type Did } from "./ids.js"
import { checkInput } from "./api.js"
import { answerOf, type Done, type Kind, mustBeIn, type Parts, sealed } from "./kind.js"
import { XrpcError } from "./errors.js"
import { groupOf, peopleIn } from "./binding.js"
import { didOf } from "./mls.js"
import type { Plan, Sealed, SealedWrite, Write } from "./outbox.js"
import { type Item, mustRead, names, type Thread } from "./records.js"
import { type Changes, get, getAll, put } from "./store.js"
import { claimPackages, noteClaim, spendClaim } from "./write-commits.js"
import * as mls from "#lexicons"

/** What a write of the kind `create` holds. */
export interface CreateContent {
  /** Hexadecimal. */
  readonly groupId: string
  readonly members: readonly Did[]
  /** The key of the claim of KeyPackages. */
  readonly claim: string
  readonly name?: string
  readonly description?: string
}

/** What a write of the kind `reset` holds. */
export interface ResetContent {
  readonly convoId: ConvoId
  /** Of the new group, hexadecimal. */
  readonly groupId: string
  readonly reason: string
  /** The key of the claim of KeyPackages. */
  readonly claim: string
}

/** What a write of the kind `leave` holds. */
export interface LeaveContent {
  /** Set to block who invited this person, too. */
  readonly block: boolean
}

/** What a write of the kind `rejoin` holds. */
export interface RejoinContent {
  readonly convoId: ConvoId
}

// asked is what the app asks for in a createConvo.
function asked(parts: Parts, { groupId, members, name, description }: CreateContent) {
  const metadata = { ...(name !== undefined && { name }), ...(description !== undefined && { description }) }
  return {
    groupId, cipherSuite: parts.mls.cipherSuite, initialMembers: [...members],
    ...(Object.keys(metadata).length > 0 && { metadata }),
  }
}

const create: Kind = {
  async check(parts, _queue, content) {
    checkInput(mls.createConvo.main, asked(parts, content as unknown as CreateContent))
  },

  async seal(parts: Parts, write: Write): Promise<Plan> {
    const content = write.content as unknown as CreateContent
    const { packages, receipts, leftOut } = await claimPackages(parts, content.members, content.claim)
    const members = content.members.filter((did) => !leftOut.includes(did))
    const plan = await found(parts, content.groupId, packages, receipts, (group) =>
      sealed(parts, mls.createConvo.main, { ...asked(parts, { ...content, members }), ...group }))
    await noteClaim(parts, content.claim, members, leftOut, plan.changes)
    return plan
  },

  async done(parts: Parts, write: SealedWrite, answer: string): Promise<Done> {
    const id = answerOf(mls.createConvo.main, answer).id as ConvoId
    const done = await enterFounded(parts, write, id)
    const { claim, members } = write.content as unknown as CreateContent
    await spendClaim(parts, claim, id, members, done.changes)
    return done
  },

  undo: forgetFounded,
}

// reset makes a new group with a device of every member who has a KeyPackage: the others enter it by
// external commit.
const reset: Kind = {
  waits: true,
  async check(parts, _queue, content) {
    const { convoId, reason } = content as unknown as ResetContent
    checkInput(mls.resetConvo.main, { convoId, reason, groupInfo: new Uint8Array() })
    await mustBeIn(parts, convoId)
  },
  async seal(parts, write) {
    const { convoId, groupId, reason, claim } = write.content as unknown as ResetContent
    const { convo } = await parts.api.queryOnce(mls.getConvo.main, { convoId })
    if (convo.successorConvoId) throw new XrpcError(409, "ConvoClosed", `it was reset; successorConvoId=${convo.successorConvoId}`)
    const people = peopleIn(await groupOf(parts, convoId)) // the roster is only the service's word
    const others = convo.members.map(({ did }) => didOf(did) as Did).filter((did) => did !== parts.did && people.includes(did))
    const { packages, receipts } = await claimPackages(parts, others, claim, convoId, true)
    const plan = await found(parts, groupId, packages, receipts, (group) => sealed(parts, mls.resetConvo.main, { convoId, reason, ...group }))
    await noteClaim(parts, claim, others, [], plan.changes) // the others enter by external commit
    return plan
  },
  async done(parts, write, answer) {
    const { convoId, claim } = write.content as unknown as ResetContent
    const successor = answerOf(mls.resetConvo.main, answer).convo.id as ConvoId
    const done = await enterFounded(parts, write, successor)
    const thread = await parts.log.thread(convoId)
    if (thread !== undefined) put(done.changes, names.thread(convoId), { ...thread, resetTo: successor })
    parts.services.succeed(convoId, successor, done.changes)
    await parts.services.claims.spend(claim, done.changes)
    return done
  },
  undo: forgetFounded,
}

interface NewGroup {
  readonly groupInfo: Uint8Array
  readonly welcomeMessage?: string
  readonly receipts?: string[]
}

// found makes a group of this device and others.
async function found(
  parts: Parts, groupId: string, packages: readonly Uint8Array[], receipts: readonly string[], request: (group: NewGroup) => Promise<Sealed>,
): Promise<Plan> {
  const alone = await parts.mls.create(fromHex(groupId))
  const founded = packages.length === 0
    ? { state: alone, groupInfo: await parts.mls.groupInfo(alone), welcome: undefined }
    : await parts.mls.stage(alone, { add: packages })
  const made = await request({
    groupInfo: founded.groupInfo,
    ...(founded.welcome && { welcomeMessage: base64url(founded.welcome) }),
    ...(receipts.length > 0 && { receipts: [...receipts] }),
  })
  const { epoch } = parts.mls.describe(founded.state)
  return { sealed: { ...made, epoch }, changes: new Map([[names.founded(groupId), founded.state]]) }
}

// enterFounded puts this device into the convo of a group that it has made.
async function enterFounded(parts: Parts, write: SealedWrite, id: ConvoId): Promise<Done> {
  const { groupId } = write.content as unknown as CreateContent | ResetContent
  const state = await mustRead(parts.store, names.founded(groupId))
  const changes: Changes = new Map([[names.founded(groupId), undefined], [names.group(id), state]])
  const silent = peopleIn(parts.mls.describe(state)).filter((did) => did !== parts.did)
  const thread: Thread = { convoId: id, groupId, first: 0, cursor: 0, last: "", entered: write.sealed.epoch ?? 0, silent }
  put(changes, names.thread(id), thread)
  return { result: { convoId: id }, changes }
}

// expectedIn returns who may enter a convo by external commit, beside those who are in its group.
async function expectedIn(parts: Parts, convo: ConvoId, before: Thread | undefined): Promise<readonly string[] | undefined> {
  if (before !== undefined) return before.expected
  const old = (await getAll<Thread>(parts.store, names.threads)).find(({ resetTo }) => resetTo === convo)
  return old && peopleIn(await groupOf(parts, old.convoId))
}

async function forgetFounded(_parts: Parts, write: Write): Promise<Changes> {
  const { groupId } = write.content as unknown as CreateContent | ResetContent
  return new Map([[names.founded(groupId), undefined]])
}

const leave: Kind = {
  async check(parts, convoId, content) {
    checkInput(mls.leaveConvo.main, { convoId, ...(content as unknown as LeaveContent) })
    await mustBeIn(parts, convoId)
  },
  async seal(parts, write) {
    const { block } = write.content as unknown as LeaveContent
    const request = await sealed(parts, mls.leaveConvo.main, { convoId: write.queue, ...(block && { block }) })
    return { sealed: request, changes: new Map() }
  },
  async done(parts, write, answer) {
    const { newEpoch } = answerOf(mls.leaveConvo.main, answer)
    const changes: Changes = new Map()
    const thread = await parts.log.thread(write.queue)
    if (thread !== undefined) put(changes, names.thread(write.queue), { ...thread, left: true })
    return { result: { epoch: newEpoch, seq: 0 }, changes }
  },
  undo: async () => new Map(),
}

// rejoin enters the group at once, unlike after a member's commit. The device has no key for older
// entries, so it starts to read after its own commit.
const rejoin: Kind = {
  waits: true,
  async check(_parts, _queue, content) {
    asConvoId((content as unknown as RejoinContent).convoId)
  },
  async seal(parts, write) {
    const { convoId } = write.content as unknown as RejoinContent
    const staged = await parts.externalCommits.stage(convoId)
    const { epoch } = parts.mls.describe(staged.state)
    const request = await sealed(parts, mls.processExternalCommit.main, {
      convoId, commit: staged.commit, groupInfo: staged.groupInfo,
    }, { bytes: staged.commit, epoch })
    return { sealed: request, changes: new Map([[names.founded(convoId), staged.state]]) }
  },

  async done(parts, write, answer) {
    const { convoId } = write.content as unknown as RejoinContent
    const { newEpoch, seq } = answerOf(mls.processExternalCommit.main, answer)
    const state = await mustRead(parts.store, names.founded(convoId))
    const own: Item = {
      seq, id: "", kind: "commit", sender: parts.did, createdAt: "", digest: write.sealed.digest ?? "", own: true, state: "read",
    }
    const changes: Changes = new Map([[names.founded(convoId), undefined], [names.group(convoId), state]])
    changes.set(names.pending(convoId), undefined)
    const before = await get<Thread>(parts.store, names.thread(convoId))
    parts.externalCommits.accepted(convoId)
    if (before?.rewound || before?.stuck) enterFrom(before, own, newEpoch, changes)
    else enterAt(convoId, hex(parts.mls.describe(state).groupId), own, newEpoch, changes, await expectedIn(parts, convoId, before))
    return { result: { epoch: newEpoch, seq }, changes }
  },

  undo: async (_parts, write) => {
    const { convoId } = write.content as unknown as RejoinContent
    return new Map([[names.founded(convoId), undefined]])
  },

  // The log is of no use to a device that is not in the group. The next GroupInfo is.
  catchUp: async () => {},
}

// enterFrom leaves a fork, or a commit that could not be processed. The device keeps what it has read,
// and reads on to its own commit.
function enterFrom(before: Thread, own: Item, entered: number, changes: Changes): void {
  const { stuck: _, failed: __, addedBy: ___, ...rest } = before
  put(changes, names.looseItem(before.convoId, own.digest), own)
  put(changes, names.thread(before.convoId), { ...rest, entered })
}

// enterAt begins to read at the device's own commit. What it has read before stays.
function enterAt(
  convoId: ConvoId, groupId: string, own: Item, entered: number, changes: Changes, expected: readonly string[] | undefined,
): void {
  const { seq } = own
  const thread: Thread = { convoId, groupId, first: seq, cursor: seq, last: "", entered, ...(expected && { expected }) }
  put(changes, names.thread(convoId), thread)
  put(changes, names.item(convoId, seq), own)
}

/** What a write of the kind `retire` holds. */
export interface RetireContent {
  /** The signature key of a leaf of this person, in hexadecimal. */
  readonly device: string
}

// retire proposes to remove a leaf of this person, so that others see by MLS that it leaves.
const retire: Kind = {
  check: mustBeIn,
  async seal(parts, write) {
    const { device } = write.content as unknown as RetireContent
    const thread = await parts.log.thread(write.queue)
    const state = await mustRead(parts.store, names.group(write.queue))
    const { epoch, active, members } = parts.mls.describe(state)
    const leaf = members.find(({ signatureKey }) => hex(signatureKey) === device)
    const cannot = !active || thread?.stuck || thread?.lost
    if (leaf === undefined || cannot) return { result: {}, changes: new Map() }
    const { message } = await parts.mls.proposeRemoval(state, leaf.index)
    const request = await sealed(parts, mls.sendMessage.main, {
      convoId: write.queue, senderDid: parts.did, epoch, ciphertext: message,
    }, { bytes: message, epoch })
    return { sealed: request, changes: new Map() }
  },
  done: async () => ({ result: {}, changes: new Map() }),
  undo: async () => new Map(),
  catchUp: async (parts, write) => void (await parts.log.read(write.queue)),
}

/** Making, resetting, leaving and coming back. */
export const kindsOfConvos = { create, reset, retire, leave, rejoin }
