// A device of ts-mls 1.6.4, whose objects are those of RFC 9420. The library departs from it:
//   - external_pub is the key without its length, where §12.4.3.2 has opaque<V>: see mls-ts-info.ts;
//   - KeyPackages are valid for ever, where §7.2 wants a lifetime that applications accept;
//   - P-256 signature keys are compressed, where §5.1.1 wants uncompressed ones;
//   - valid trees are refused, and KeyPackages by a wrong clock of the device: see mls-ts-tree.ts;
//   - a stored state does not say that leaf 0 has sent a proposal: see encodeState.

import { p256 } from "@noble/curves/nist.js"
import {
  acceptAll, type CiphersuiteImpl, type CiphersuiteName, type ClientConfig, type ClientState, createApplicationMessage,
  createCommit, createGroup, createProposal, type CryptoProvider, decodeGroupState, decodeMlsMessage, defaultCapabilities, encodeGroupState,
  encodeMlsMessage, generateKeyPackageWithKey, getCiphersuiteFromName, getCiphersuiteImpl, joinGroup, joinGroupExternal,
  type KeyPackage, makePskIndex, type MLSMessage, nobleCryptoProvider, type PrivateKeyPackage, processMessage, type Proposal,
  zeroOutUint8Array,
} from "ts-mls"
import { defaultClientConfig } from "ts-mls/clientConfig.js"
import { ratchetTreeFromExtension } from "ts-mls/groupInfo.js"
import { makeKeyPackageRef } from "ts-mls/keyPackage.js"
import { decryptSenderData } from "ts-mls/privateMessage.js"
import { hex, same } from "./bytes.js"
import { lexParse, lexStringify } from "./json.js"
import { type Change, didOf, type Group, type Header, type Info, type Joined, type Member, type Mls, type NewKeyPackage, type Processed, type Staged } from "./mls.js"
import { makeGroupInfo, readableByTsMls } from "./mls-ts-info.js"

/** A KeyPackage's lifetime, in seconds: from an hour ago, for 84 days. */
const lifetimeBack = 3600
const lifetimeAhead = 84 * 24 * 3600

/** The extension type of a KeyPackage of last resort. */
const lastResortType = 0x000a

const p256Suite: CiphersuiteName = "MLS_128_DHKEMP256_AES128GCM_SHA256_P256"

const encoder = new TextEncoder()
const decoder = new TextDecoder()

/** How a device of ts-mls can differ. */
export interface TsMlsOptions {
  /** By default `nobleCryptoProvider`, which needs @noble/ciphers. */
  readonly crypto?: CryptoProvider
  /** Replaces parts of the library's configuration, for example `authService`. */
  readonly config?: Partial<ClientConfig>
}

interface Keys {
  readonly signKey: Uint8Array
  readonly publicKey: Uint8Array
}

/** What {@link TsMls.export} holds. */
interface Exported {
  readonly identity: string
  readonly cipherSuite: CiphersuiteName
  readonly keys: Keys
}

/** A device of ts-mls. */
export class TsMls implements Mls {
  private constructor(
    readonly identity: string,
    readonly cipherSuite: CiphersuiteName,
    private readonly keys: Keys,
    private readonly suite: CiphersuiteImpl,
    private readonly config: ClientConfig,
    private readonly time: { now: () => number },
  ) {}

  setTime(now: () => number): void {
    this.time.now = now
  }

  get signatureKey(): Uint8Array {
    return this.keys.publicKey
  }

  /** Makes a new device of a person. */
  static async create(identity: string, cipherSuite: CiphersuiteName, options: TsMlsOptions = {}): Promise<TsMls> {
    const suite = await suiteOf(cipherSuite, options)
    const { signKey, publicKey } = await suite.signature.keygen()
    const rfc = cipherSuite === p256Suite ? p256.Point.fromBytes(publicKey).toBytes(false) : publicKey
    return TsMls.make({ identity, cipherSuite, keys: { signKey, publicKey: rfc } }, suite, options)
  }

  /** Returns the device of what {@link export} wrote. */
  static async import(device: Uint8Array, options: TsMlsOptions = {}): Promise<TsMls> {
    const exported = lexParse(decoder.decode(device)) as unknown as Exported
    return TsMls.make(exported, await suiteOf(exported.cipherSuite, options), options)
  }

  private static make({ identity, cipherSuite, keys }: Exported, suite: CiphersuiteImpl, options: TsMlsOptions): TsMls {
    const time = { now: () => Date.now() }
    const config: ClientConfig = { ...defaultClientConfig, ...options.config }
    const lifetimeConfig = { ...config.lifetimeConfig, now: () => BigInt(Math.floor(time.now() / 1000)) } // see mls-ts-tree.ts
    return new TsMls(identity, cipherSuite, keys, suite, { ...config, lifetimeConfig }, time)
  }

  /** The device with its private signature key. Anybody who has it can write in the device's name. */
  export(): Uint8Array {
    const { identity, cipherSuite, keys } = this
    return encoder.encode(lexStringify({ identity, cipherSuite, keys: { ...keys } }))
  }

  async keyPackage(lastResort: boolean): Promise<NewKeyPackage> {
    const { publicPackage, privatePackage } = await this.fresh(lastResort)
    const keyPackage = frame({ wireformat: "mls_key_package", keyPackage: publicPackage })
    const secret = encoder.encode(lexStringify({ ...privatePackage, keyPackage }))
    return { keyPackage, ref: hex(await makeKeyPackageRef(publicPackage, this.suite.hash)), secret }
  }

  async create(groupId: Uint8Array): Promise<Uint8Array> {
    const { publicPackage, privatePackage } = await this.fresh(false)
    return encodeState(await createGroup(groupId, publicPackage, privatePackage, [], this.suite, this.config))
  }

  async join(message: Uint8Array, secretOf: (ref: string) => Promise<Uint8Array | undefined>): Promise<Joined> {
    const { welcome } = read(message, "mls_welcome")
    for (const { newMember } of welcome.secrets) {
      const ref = hex(newMember)
      const secret = await secretOf(ref)
      if (secret === undefined) continue
      const { keyPackage, ...privatePackage } = lexParse(decoder.decode(secret)) as unknown as PrivateKeyPackage & { keyPackage: Uint8Array }
      const own = read(keyPackage, "mls_key_package").keyPackage
      const state = await joinGroup(
        welcome, own, privatePackage, makePskIndex(undefined, {}), this.suite, undefined, undefined, this.config)
      return { state: encodeState(state), ref }
    }
    throw new Error("the Welcome is for none of this device's KeyPackages")
  }

  async joinExternal(message: Uint8Array): Promise<Staged> {
    const { groupInfo } = read(message, "mls_group_info")
    const { publicPackage, privatePackage } = await this.fresh(false)
    const tree = ratchetTreeFromExtension(groupInfo)
    if (tree === undefined) throw new Error("the GroupInfo has no ratchet tree")
    const again = membersOf(tree).some((member) => same(member.signatureKey, this.signatureKey))
    const { publicMessage, newState } = await joinGroupExternal(
      readableByTsMls(groupInfo), publicPackage, privatePackage, again, this.suite, undefined, this.config)
    return this.staged(newState, frame({ wireformat: "mls_public_message", publicMessage }))
  }

  async stage(state: Uint8Array, change: Change): Promise<Staged> {
    const extraProposals: Proposal[] = [
      ...(change.remove ?? []).map((removed): Proposal => ({ proposalType: "remove", remove: { removed } })),
      ...(change.add ?? []).map((message): Proposal => ({
        proposalType: "add", add: { keyPackage: read(message, "mls_key_package").keyPackage },
      })),
    ]
    const before = this.read(state)
    const unappliedProposals = permitted(before)
    const covered = new Set(Object.values(unappliedProposals).map(({ proposal }) => removedBy(proposal)))
    const made = await createCommit({ state: { ...before, unappliedProposals }, cipherSuite: this.suite }, {
      wireAsPublicMessage: true, extraProposals: extraProposals.filter((one) => !covered.has(removedBy(one) ?? NaN)), ratchetTreeExtension: true,
    })
    const staged = await this.staged(made.newState, encodeMlsMessage(made.commit))
    if (made.welcome === undefined) return staged
    return { ...staged, welcome: frame({ wireformat: "mls_welcome", welcome: made.welcome }) }
  }

  async proposeRemoval(state: Uint8Array, leaf: number): Promise<{ state: Uint8Array; message: Uint8Array }> {
    const proposal: Proposal = { proposalType: "remove", remove: { removed: leaf } }
    const { newState, message } = await createProposal(this.read(state), true, proposal, this.suite)
    return { state: encodeState(newState), message: encodeMlsMessage(message) }
  }

  async encrypt(state: Uint8Array, plaintext: Uint8Array): Promise<{ state: Uint8Array; message: Uint8Array }> {
    const before = this.read(state)
    // The library sends nothing while any proposal is pending, whatever it is worth.
    const { newState, privateMessage, consumed } = await createApplicationMessage({ ...before, unappliedProposals: {} }, plaintext, this.suite)
    const message = frame({ wireformat: "mls_private_message", privateMessage })
    return { state: encodeAndErase({ ...newState, unappliedProposals: before.unappliedProposals }, consumed), message }
  }

  async process(state: Uint8Array, input: Uint8Array): Promise<Processed> {
    const message = read(input, "mls_public_message", "mls_private_message")
    const before = this.read(state)
    const leaf = await this.senderLeaf(before, message)
    const members = membersOf(before.ratchetTree)
    const at = (index: number | undefined) => members.find((member) => member.index === index)
    const result = await processMessage(message, before, makePskIndex(before, {}), acceptAll, this.suite)
    const plaintext = result.kind === "applicationMessage" ? result.message : undefined
    const next = encodeAndErase(result.newState, result.consumed)
    const { kind } = headerOf(message)
    const removes = kind === "proposal" ? at(addedRemoval(before, result.newState)) : undefined
    const external = enteredBy(message)
    const sender = external ? membersOf(result.newState.ratchetTree).find(({ signatureKey }) => same(signatureKey, external)) : at(leaf)
    return { state: next, kind, ...(sender && { sender }), ...(external && { external: true as const }), ...(removes && { removes }), ...(plaintext && { plaintext }) }
  }

  async groupInfo(state: Uint8Array): Promise<Uint8Array> {
    return frame({ wireformat: "mls_group_info", groupInfo: await makeGroupInfo(this.read(state), this.suite) })
  }

  infoOf(message: Uint8Array): Info {
    const { groupInfo } = read(message, "mls_group_info")
    const members = membersOf(ratchetTreeFromExtension(groupInfo) ?? [])
    const { groupId, epoch } = groupInfo.groupContext
    return { groupId, epoch: Number(epoch), members, signer: members.find(({ index }) => index === groupInfo.signer)?.identity ?? "" }
  }

  describe(state: Uint8Array): Group {
    const { groupContext, ratchetTree, groupActiveState, keySchedule } = this.read(state)
    return {
      groupId: groupContext.groupId, epoch: Number(groupContext.epoch), members: membersOf(ratchetTree),
      active: groupActiveState.kind === "active", authenticator: keySchedule.epochAuthenticator,
    }
  }

  header(message: Uint8Array): Header {
    return headerOf(read(message, "mls_public_message", "mls_private_message"))
  }

  leafOf(keyPackage: Uint8Array): Omit<Member, "index"> {
    return memberOf(read(keyPackage, "mls_key_package").keyPackage.leafNode)
  }

  private async fresh(lastResort: boolean): Promise<{ publicPackage: KeyPackage; privatePackage: PrivateKeyPackage }> {
    const now = Math.floor(this.time.now() / 1000)
    const lifetime = { notBefore: BigInt(now - lifetimeBack), notAfter: BigInt(now + lifetimeAhead) }
    const extensions = lastResort ? [{ extensionType: lastResortType, extensionData: new Uint8Array() }] : []
    const credential = { credentialType: "basic" as const, identity: encoder.encode(this.identity) }
    const capabilities = defaultCapabilities()
    capabilities.extensions.push(lastResortType)
    return generateKeyPackageWithKey(credential, capabilities, lifetime, extensions, this.keys, this.suite)
  }

  private async staged(state: ClientState, commit: Uint8Array): Promise<Staged> {
    const groupInfo = frame({ wireformat: "mls_group_info", groupInfo: await makeGroupInfo(state, this.suite) })
    return { commit, groupInfo, state: encodeState(state) }
  }

  // read decodes a copy: encodeAndErase overwrites keys in it, and the caller may use the state again, if
  // what is made of it here is not stored.
  private read(state: Uint8Array): ClientState {
    const decoded = decodeGroupState(state.slice(), 0)
    if (decoded === undefined) throw new Error("not a state of ts-mls")
    return { ...decoded[0], clientConfig: this.config }
  }

  // senderLeaf finds who sent a message, which the library does not say.
  private async senderLeaf(state: ClientState, message: Framed): Promise<number | undefined> {
    if (message.wireformat === "mls_public_message") {
      const { sender } = message.publicMessage.content
      return sender.senderType === "member" ? sender.leafIndex : undefined
    }
    return (await decryptSenderData(message.privateMessage, state.keySchedule.senderDataSecret, this.suite))?.leafIndex
  }
}

type Wireformat = MLSMessage["wireformat"]
type Of<W extends Wireformat> = Extract<MLSMessage, { wireformat: W }>
type Framed = Of<"mls_public_message" | "mls_private_message">
type Unversioned<M> = M extends MLSMessage ? Omit<M, "version"> : never

function frame(content: Unversioned<MLSMessage>): Uint8Array {
  return encodeMlsMessage({ version: "mls10", ...content } as MLSMessage)
}

// read decodes a whole MLSMessage of one of the wire formats.
function read<W extends Wireformat>(message: Uint8Array, ...wireformats: W[]): Of<W> {
  const decoded = decodeMlsMessage(message, 0)
  if (decoded === undefined || decoded[1] !== message.length) throw new Error("not an MLSMessage")
  const wireformat: Wireformat = decoded[0].wireformat
  if (!wireformats.some((one) => one === wireformat)) throw new Error(`a ${wireformat}, not a ${wireformats.join(" or a ")}`)
  return decoded[0] as Of<W>
}

// enteredBy returns the signature key of who enters by an external commit.
function enteredBy(message: Framed): Uint8Array | undefined {
  if (message.wireformat !== "mls_public_message") return undefined
  const { content } = message.publicMessage
  if (content.contentType !== "commit" || content.sender.senderType !== "new_member_commit") return undefined
  return content.commit.path?.leafNode.signaturePublicKey
}

function headerOf(message: Framed): Header {
  const framed = message.wireformat === "mls_public_message" ? message.publicMessage.content : message.privateMessage
  return { kind: framed.contentType, epoch: Number(framed.epoch) }
}

// membersOf lists the leaves of a tree. They are the nodes with even numbers (RFC 9420 §C).
function membersOf(tree: ClientState["ratchetTree"]): Member[] {
  return tree.flatMap((node, i) => {
    return node?.nodeType === "leaf" ? [{ index: i / 2, ...memberOf(node.leaf) }] : []
  })
}

function memberOf({ credential, signaturePublicKey: signatureKey }: Pick<KeyPackage["leafNode"], "credential" | "signaturePublicKey">): Omit<Member, "index"> {
  return { identity: credential.credentialType === "basic" ? decoder.decode(credential.identity) : "", signatureKey }
}

type Pending = ClientState["unappliedProposals"]

// permitted returns the pending proposals that a commit contains: see {@link Mls.stage}. A leaf is removed
// once, and never the committer's own.
function permitted({ ratchetTree, unappliedProposals, privatePath }: ClientState): Pending {
  const members = membersOf(ratchetTree)
  const personAt = (leaf: number | undefined) => didOf(members.find(({ index }) => index === leaf)?.identity ?? "")
  const taken = new Set<number>([privatePath.leafIndex])
  return Object.fromEntries(Object.entries(unappliedProposals).filter(([, { proposal, senderLeafIndex }]) => {
    const removed = removedBy(proposal)
    const person = personAt(removed)
    if (removed === undefined || taken.has(removed) || person === "" || person !== personAt(senderLeafIndex)) return false
    taken.add(removed)
    return true
  }))
}

function removedBy(proposal: Proposal): number | undefined {
  return proposal.proposalType === "remove" ? proposal.remove.removed : undefined
}

// addedRemoval returns the leaf that the newest pending proposal removes.
function addedRemoval(before: ClientState, after: ClientState): number | undefined {
  const [added] = Object.entries(after.unappliedProposals).filter(([ref]) => !(ref in before.unappliedProposals))
  return added && removedBy(added[1].proposal)
}

// encodeState encodes a state. The library takes 0 for nothing when it encodes who has sent a proposal, and the
// maker of a group is at leaf 0. It encodes 2^32 as 0.
function encodeState(state: ClientState): Uint8Array {
  const proposals = Object.entries(state.unappliedProposals).map(([ref, { proposal, senderLeafIndex }]) =>
    [ref, { proposal, senderLeafIndex: senderLeafIndex === 0 ? 2 ** 32 : senderLeafIndex }])
  return encodeGroupState({ ...state, unappliedProposals: Object.fromEntries(proposals) as Pending })
}

// encodeAndErase encodes a state, and then overwrites the keys that were used up on the way to it.
function encodeAndErase(state: ClientState, consumed: Uint8Array[]): Uint8Array {
  const encoded = encodeState(state)
  consumed.forEach(zeroOutUint8Array)
  return encoded
}

function suiteOf(name: CiphersuiteName, options: TsMlsOptions): Promise<CiphersuiteImpl> {
  return getCiphersuiteImpl(getCiphersuiteFromName(name), options.crypto ?? nobleCryptoProvider)
}
