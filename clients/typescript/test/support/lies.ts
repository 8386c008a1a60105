// The lies that a delivery service can tell, by the numbers of the findings that showed them. Each
// changes what a {@link Liar} says, and can be told together with others.

import assert from "node:assert/strict"
import { randomBytes } from "node:crypto"
import { base64url, fromBase64url, fromHex, sha256 } from "../../src/bytes.js"
import { NoAnswerError, XrpcError } from "../../src/errors.js"
import type { ConvoId, Did } from "../../src/ids.js"
import { append, emptyEdge, type Hash, kinds, leafHash, recordOf, tagOf } from "../../src/log-tree.js"
import { TsMls } from "../../src/mls-ts.js"
import { HeadSigner } from "./heads.js"
import { changed, deviceOf, type Entry, json, type Liar, madeGroup, Stage } from "./liar.js"
import { suite } from "./phone.js"
import * as mls from "#lexicons"

/** Whom a lie is told, a device of this client or of another one. */
export interface Victim {
  readonly did: Did
  readonly client: { deviceId(): Promise<string> }
}

/** The liar's KeyPackage stands in a person's name: to add the person is to add the liar. */
export async function T1(liar: Liar, whose: Did): Promise<void> {
  const device = await deviceOf(whose)
  const { keyPackage, secret } = await device.keyPackage(true)
  await liar.as(whose).procedure(mls.publishKeyPackages.main, {
    keyPackages: [{ keyPackage: base64url(keyPackage), cipherSuite: suite }],
  })
  liar.tell(({ body: { welcomeMessage } }, _, pass) => {
    if (welcomeMessage === undefined) return undefined
    return pass().then(async (answer) => {
      await device.join(fromBase64url(welcomeMessage), async () => secret).then(
        ({ state }) => liar.spy(device, state), () => {}) // without the liar's device
      return answer
    })
  })
}

/**
 * The KeyPackage of a device of another account is handed out for a person, and the service takes
 * the commit.
 */
export async function T1foreign(liar: Liar, whose: Did, device: TsMls): Promise<void> {
  const { keyPackage, secret } = await device.keyPackage(true)
  liar.tell(({ method, params, body }, did, pass) => {
    if (method === "getKeyPackages" && params.getAll("dids").includes(whose)) {
      return changed<mls.getKeyPackages.$OutputBody>(pass, ({ keyPackages, ...rest }) => ({
        ...rest, keyPackages: keyPackages.map((one) => (one.did === whose ? { ...one, keyPackage: base64url(keyPackage) } : one)),
      }))
    }
    if (method !== "createConvo" && method !== "resetConvo") return undefined
    return device.join(fromBase64url(body.welcomeMessage ?? ""), async () => secret).then(({ state }) => {
      liar.spy(device, state)
      const stage = new Stage(liar, { ...device.describe(state), people: [did] })
      stage.lead(did)
      liar.tell(stage.lie)
      return json(method === "createConvo" ? stage.view() : { convo: stage.view() })
    }, () => pass()) // it is without the liar's device
  })
}

/** The liar enters a convo by its own external commit, as another device of a member. */
export async function T2(liar: Liar, convoId: ConvoId, whose: Did): Promise<void> {
  const device = await deviceOf(`${whose}#x`)
  const api = liar.as(whose)
  const { groupInfo } = await api.query(mls.getGroupInfo.main, { convoId })
  const staged = await device.joinExternal(groupInfo)
  await api.procedure(mls.processExternalCommit.main, { convoId, commit: staged.commit, groupInfo: staged.groupInfo })
  liar.spy(device, staged.state)
}

/** A made-up Welcome, for a group of the liar's, in the place of the group of a convo. */
export async function T3(liar: Liar, convo: ConvoId, victim: Victim, member: Did): Promise<void> {
  const made = await madeGroup(liar, await deviceOf(member), await liar.keyPackagesOf(victim.did, member))
  assert.ok(made.welcome)
  liar.tell(new Stage(liar, { ...made, convo, people: [victim.did], welcome: made.welcome }).lie)
  await sayWelcome(liar, convo, victim)
}

async function sayWelcome(liar: Liar, convoId: ConvoId, victim: Victim): Promise<void> {
  liar.say(victim.did, "welcomeEvent", { convoId, deviceId: await victim.client.deviceId(), epoch: 1 })
}

/**
 * The Welcome of a last-resort KeyPackage comes again. Call it before the person joins, and what it
 * returns once the group has gone on: a spy who is not in it any more has the group of the Welcome.
 */
export function T4(liar: Liar, convo: ConvoId, victim: Victim): () => Promise<void> {
  let welcome: Uint8Array | undefined
  liar.tell(({ method, convo: of }, did, pass) => {
    if (method !== "getWelcome" || of !== convo || did !== victim.did) return undefined
    return changed<mls.getWelcome.$OutputBody>(pass, (answer) => {
      welcome ??= fromBase64url(answer.welcome)
      return answer
    })
  })
  return async () => {
    assert.ok(welcome)
    const { epoch } = (await liar.as(victim.did).query(mls.getConvo.main, { convoId: convo })).convo
    assert.ok(epoch > 1)
    liar.tell(new Stage(liar, { convo, groupId: new Uint8Array(), epoch: 1, people: [victim.did], welcome }).lie)
    await sayWelcome(liar, convo, victim)
  }
}

/**
 * For the external commit of a rejoin there is the GroupInfo of another group, which the liar has
 * made.
 */
export async function T5(liar: Liar, convo: ConvoId, victim: Victim, member: Did): Promise<void> {
  const made = await madeGroup(liar, await deviceOf(member), await liar.keyPackagesOf(victim.did, member))
  liar.tell(new Stage(liar, { ...made, convo, people: [victim.did] }).lie)
}

/** A made-up successor of a convo. Nobody has reset it. */
export async function T6(liar: Liar, convoId: ConvoId, victim: Victim, device: TsMls, others: readonly Did[] = []): Promise<void> {
  const successorConvoId = await T6closed(liar, convoId, victim, device, others)
  liar.say(victim.did, "resetEvent", { convoId, seq: 0, epoch: 1, by: others[0] ?? victim.did, reason: "forked", successorConvoId })
}

/**
 * The same as {@link T6}, said only by the refusal of messages, as a device hears it that was away.
 */
export async function T6closed(
  liar: Liar, convo: ConvoId, victim: Victim, device: TsMls, others: readonly Did[] = [],
): Promise<ConvoId> {
  const { convo: next } = await successor(liar, victim, device, others)
  liar.tell(({ method, convo: of }, did) => {
    if (method !== "sendMessage" || of !== convo || did !== victim.did) return undefined
    return Promise.reject(new XrpcError(409, "ConvoClosed", `the convo was reset; successorConvoId=${next}`))
  })
  return next
}

async function successor(liar: Liar, victim: Victim, device: TsMls, others: readonly Did[]): Promise<Stage> {
  const caller = device.identity as Did
  const add = await Promise.all([victim.did, ...others].map((did) => liar.keyPackagesOf(did, caller)))
  const made = await madeGroup(liar, device, add.flat())
  assert.ok(made.welcome)
  const stage = new Stage(liar, { ...made, people: [victim.did, ...others], welcome: made.welcome })
  liar.tell(stage.lie)
  return stage
}

/** Messages to a convo do not arrive. */
export function withheld(liar: Liar, convo: ConvoId, victim: Victim): void {
  liar.tell(({ method, convo: of }, did) => {
    if (method !== "sendMessage" || of !== convo || did !== victim.did) return undefined
    return Promise.reject(new NoAnswerError("withheld"))
  })
}

/** A member has left, it says, and somebody must take its devices out of the group. */
export async function T7(liar: Liar, convoId: ConvoId, victim: Victim, member: Did): Promise<void> {
  const { epoch, lastSeq = 0 } = (await liar.as(member).query(mls.getConvo.main, { convoId })).convo
  liar.say(victim.did, "membershipEvent", { convoId, did: member, change: "left", epoch, seq: lastSeq, commitNeeded: true })
}

/** Messages are shown as those of somebody else. */
export function T8(liar: Liar, convo: ConvoId, victim: Victim, by: Did): void {
  liar.tell(({ method, convo: of }, did, pass) => {
    if (of !== convo || did !== victim.did) return undefined
    if (method === "getLogHead") return Promise.reject(new XrpcError(503, "ServiceUnavailable", "there is no head now"))
    if (method !== "getMessages") return undefined
    return changed<mls.getMessages.$OutputBody>(pass, ({ messages, ...rest }) => ({
      ...rest, messages: messages.map((one) => saidBy(one, by)),
    }))
  })
}

// saidBy shows a message as somebody else's.
function saidBy(entry: Entry, sender: Did): Entry {
  return entry.messageType === "application" ? { ...entry, sender } : entry
}

/**
 * The convo goes on twice: what a person does from now on, the others are not shown, and the other
 * way round.
 */
export async function T9(liar: Liar, convoId: ConvoId, victim: Victim): Promise<void> {
  liar.silence(victim.did) // it reads nothing that comes after this
  const { epoch, groupId, lastSeq = 0 } = (await liar.as(victim.did).query(mls.getConvo.main, { convoId })).convo
  const stage = new Stage(liar, { convo: convoId, groupId: fromHex(groupId), epoch, people: [victim.did], from: lastSeq })
  stage.lead(victim.did)
  liar.tell(stage.lie)
}

/**
 * What the service has acknowledged to a person is shown as somebody else's, and the first head
 * agrees with that.
 */
export async function T10(liar: Liar, convo: ConvoId, victim: Victim, by: Did): Promise<void> {
  const shown = new Map<number, Entry>()
  const log = new SignedLog(await headOf(liar, convo, victim))
  liar.tell(({ method, convo: of }, did, pass) => {
    if (of !== convo || did !== victim.did) return undefined
    if (method === "getLogHead") return log.head(convo, [...shown.values()])
    if (method !== "getMessages") return undefined
    return changed<mls.getMessages.$OutputBody>(pass, ({ messages, ...rest }) => {
      const ours = messages.map((one) => saidBy(one, by))
      for (const one of ours) shown.set(one.seq, one)
      return { ...rest, messages: ours }
    })
  })
}

// headOf is the real answer to getLogHead.
function headOf(liar: Liar, convoId: ConvoId, { did }: Victim): Promise<string> {
  return liar.as(did).transport.call({ method: mls.getLogHead.main.nsid, params: new URLSearchParams({ convoId }) })
}

/** A log that the liar signs, with a key of its own: nobody has asked the real service before. */
class SignedLog {
  private readonly salts = new Map<string, Uint8Array>()
  private readonly signer: HeadSigner

  constructor(real: string) {
    const service = /"head":"(did:[^/]+)\//.exec(real)?.[1] ?? ""
    assert.ok(service)
    this.signer = new HeadSigner(service)
  }

  async head(convo: ConvoId, entries: readonly Entry[]): Promise<string> {
    let edge = emptyEdge
    for (const one of entries) edge = await append(edge, await this.leaf(one))
    const senders = [...this.salts].map(async ([did, salt]) => ({ did, salt, tag: fromHex(await tagOf(salt, did)) }))
    return json({
      head: await this.signer.head(convo, edge, 1, Date.now()), keys: [await this.signer.key()],
      senders: await Promise.all(senders),
    })
  }

  private async leaf({ seq, messageType, epoch, createdAt, ciphertext, sender }: Entry): Promise<Hash> {
    const salt = this.salts.get(sender) ?? new Uint8Array(randomBytes(16))
    this.salts.set(sender, salt)
    const kind = kinds[messageType as keyof typeof kinds]
    return leafHash(recordOf({ seq, kind, epoch, at: Date.parse(createdAt), body: await sha256(ciphertext), tag: await tagOf(salt, sender) }))
  }
}

/**
 * The newest entries of a convo are withheld from a person, who gets the same head again and again.
 */
export async function T11(liar: Liar, convo: ConvoId, victim: Victim): Promise<void> {
  const api = liar.as(victim.did)
  const { lastSeq = 0 } = (await api.query(mls.getConvo.main, { convoId: convo })).convo
  const last = await headOf(liar, convo, victim)
  liar.silence(victim.did)
  liar.tell(({ method, convo: of }, did, pass) => {
    if (of !== convo || did !== victim.did) return undefined
    if (method === "getLogHead") return Promise.resolve(last)
    if (method !== "getMessages") return undefined
    return changed<mls.getMessages.$OutputBody>(pass, ({ messages, cursor: _, ...rest }) => ({
      ...rest, messages: messages.filter(({ seq }) => seq <= lastSeq), lastSeq,
    }))
  })
}

/** Somebody who was added has joined, it says. */
export function T12(liar: Liar, convoId: ConvoId, victim: Victim, did: Did): void {
  liar.say(victim.did, "arrivalEvent", { convoId, did, epoch: 1, state: "consumed" })
}

/**
 * For a rejoin there is an old GroupInfo, with a member who was removed since. Call it while the
 * member is in the group, and what it returns before the rejoin.
 */
export async function staleGroupInfo(liar: Liar, convoId: ConvoId, victim: Victim): Promise<() => void> {
  const { groupInfo, epoch } = await liar.as(victim.did).query(mls.getGroupInfo.main, { convoId })
  return () => liar.tell(new Stage(liar, { convo: convoId, groupId: new Uint8Array(), epoch, people: [victim.did], groupInfo }).lie)
}

/**
 * A Welcome for another convo of the same people, in which somebody else is too, comes as that for
 * this one.
 */
export async function welcomeOfAnother(liar: Liar, convo: ConvoId, victim: Victim, another: ConvoId): Promise<void> {
  const { welcome } = await liar.as(victim.did).query(mls.getWelcome.main, { convoId: another, deviceId: await victim.client.deviceId() })
  liar.tell(new Stage(liar, {
    convo, groupId: new Uint8Array(), epoch: 1, people: [victim.did], welcome: fromBase64url(welcome),
  }).lie)
  await sayWelcome(liar, convo, victim)
}

/** A stranger, whom nobody has added, enters by external commit, and the service takes it. */
export async function strangerEnters(liar: Liar, convoId: ConvoId, victim: Victim, stranger: TsMls): Promise<void> {
  const { groupInfo, epoch } = await liar.as(victim.did).query(mls.getGroupInfo.main, { convoId })
  const { groupId, lastSeq = 0 } = (await liar.as(victim.did).query(mls.getConvo.main, { convoId })).convo
  const staged = await stranger.joinExternal(groupInfo)
  const stage = new Stage(liar, { convo: convoId, groupId: fromHex(groupId), epoch, people: [victim.did], from: lastSeq })
  const sender = stranger.identity as Did
  const { seq, createdAt } = stage.append(sender, "commit", staged.commit)
  stage.lead(victim.did)
  liar.spy(stranger, staged.state)
  liar.tell(stage.lie)
  liar.say(victim.did, "commitEvent", { convoId, epoch: epoch + 1, seq, sender, commitData: staged.commit, createdAt })
}
