// Proposals that no commit should contain, of a member who sends what it likes.

import {
  type CiphersuiteImpl, type ClientState, decodeGroupState, encodeMlsMessage, getCiphersuiteFromName, getCiphersuiteImpl,
  nobleCryptoProvider, type Proposal,
} from "ts-mls"
import { defaultClientConfig } from "ts-mls/clientConfig.js"
import { decodeMlsMessage } from "ts-mls/message.js"
import { protectProposal } from "ts-mls/messageProtection.js"
import { protectProposalPublic } from "ts-mls/messageProtectionPublic.js"
import { TsMls } from "../../src/mls-ts.js"
import { suite } from "./phone.js"

/** Numbers from 0 up to, but not including, 1. */
type Chance = () => number

/** What a bad proposal is made of. */
interface Making {
  readonly state: ClientState
  readonly suite: CiphersuiteImpl
  readonly chance: Chance
}

/** A kind of bad proposal. */
interface BadKind {
  readonly name: string
  readonly make: (making: Making) => Proposal | Promise<Proposal>
  /** Set if only members can judge it: the service takes it in clear too. */
  readonly forMembers?: true
}

const number = (chance: Chance, below: number) => Math.floor(chance() * below)
const randomOf = (chance: Chance, length: number) => Uint8Array.from({ length }, () => number(chance, 256))

/** A KeyPackage of somebody who is not in the group. */
async function strangersPackage(chance: Chance) {
  const stranger = await TsMls.create(`did:web:stranger-${number(chance, 1e9)}.test`, suite)
  const [message] = decodeMlsMessage((await stranger.keyPackage(false)).keyPackage, 0) ?? []
  if (message?.wireformat !== "mls_key_package") throw new Error("no KeyPackage")
  return message.keyPackage
}

const leafOf = ({ privatePath }: ClientState) => privatePath.leafIndex

/** The kinds. */
export const badKinds: readonly BadKind[] = [
  {
    name: "Remove of another",
    make: ({ state, chance }) => {
      const others = state.ratchetTree.flatMap((node, i) => (node?.nodeType === "leaf" && i / 2 !== leafOf(state) ? [i / 2] : []))
      return { proposalType: "remove", remove: { removed: others[number(chance, others.length)] ?? 0 } }
    },
  },
  { name: "Remove of a leaf that is not there", make: ({ chance }) => ({ proposalType: "remove", remove: { removed: 1000 + number(chance, 1000) } }) },
  { name: "Add of a stranger", make: async ({ chance }) => ({ proposalType: "add", add: { keyPackage: await strangersPackage(chance) } }) },
  {
    name: "damaged Add",
    make: async ({ chance }) => {
      const keyPackage = await strangersPackage(chance)
      const signature = keyPackage.signature.map((byte, i) => (i === 0 ? byte ^ 1 : byte))
      return { proposalType: "add", add: { keyPackage: { ...keyPackage, signature } } }
    },
  },
  {
    name: "Update to another's leaf",
    make: async ({ chance }) => {
      const { leafNode } = await strangersPackage(chance)
      return { proposalType: "update", update: { leafNode: { ...leafNode, leafNodeSource: "update" } } } as unknown as Proposal
    },
  },
  {
    name: "PSK that nobody has",
    forMembers: true,
    make: ({ suite, chance }) => ({
      proposalType: "psk", psk: { preSharedKeyId: { psktype: "external", pskId: randomOf(chance, 16), pskNonce: randomOf(chance, suite.kdf.size) } },
    }),
  },
  {
    name: "PSK with a wrong nonce",
    make: ({ chance }) => ({
      proposalType: "psk", psk: { preSharedKeyId: { psktype: "external", pskId: randomOf(chance, 16), pskNonce: randomOf(chance, number(chance, 32)) } },
    }),
  },
  {
    name: "resumption PSK of a later epoch",
    forMembers: true,
    make: ({ state, suite, chance }) => ({
      proposalType: "psk",
      psk: {
        preSharedKeyId: {
          psktype: "resumption", usage: "application", pskGroupId: state.groupContext.groupId,
          pskEpoch: state.groupContext.epoch + 1n + BigInt(number(chance, 1000)), pskNonce: randomOf(chance, suite.kdf.size),
        },
      },
    }),
  },
  {
    name: "ReInit",
    make: ({ chance }) => ({ proposalType: "reinit", reinit: { groupId: randomOf(chance, 16), version: "mls10", cipherSuite: suite, extensions: [] } }),
  },
  { name: "ExternalInit", make: ({ chance }) => ({ proposalType: "external_init", externalInit: { kemOutput: randomOf(chance, 32) } }) },
  {
    name: "an extension that nobody supports",
    make: ({ chance }) => ({
      proposalType: "group_context_extensions",
      groupContextExtensions: { extensions: [{ extensionType: 0xf00d, extensionData: randomOf(chance, 20) }] },
    }),
  },
  {
    name: "damaged external_senders",
    make: ({ chance }) => ({
      proposalType: "group_context_extensions",
      groupContextExtensions: { extensions: [{ extensionType: "external_senders", extensionData: randomOf(chance, number(chance, 60)) }] },
    }),
  },
  { name: "SelfRemove, which nobody supports", make: () => ({ proposalType: 0x000a, proposalData: new Uint8Array() }) },
  { name: "custom type, which nobody supports", make: ({ chance }) => ({ proposalType: 0xf001, proposalData: randomOf(chance, number(chance, 100)) }) },
  { name: "noise", make: ({ chance }) => ({ proposalType: 1 + number(chance, 7), proposalData: randomOf(chance, number(chance, 200)) }) },
]

/** A member who frames proposals without looking what they are. */
export class BadProposer {
  private constructor(
    private state: ClientState,
    private readonly suite: CiphersuiteImpl,
    private readonly chance: Chance,
  ) {}

  /** It begins with the state of a group that a device of ts-mls has. */
  static async of(state: Uint8Array, chance: Chance): Promise<BadProposer> {
    const decoded = decodeGroupState(state.slice(), 0)
    if (decoded === undefined) throw new Error("not a state of ts-mls")
    const impl = await getCiphersuiteImpl(getCiphersuiteFromName(suite), nobleCryptoProvider)
    return new BadProposer({ ...decoded[0], clientConfig: defaultClientConfig }, impl, chance)
  }

  /** Makes a bad proposal, as an MLSMessage. */
  async propose(hidden: boolean, kind = badKinds[number(this.chance, badKinds.length)]): Promise<{ kind: BadKind; message: Uint8Array; epoch: number }> {
    if (kind === undefined) throw new Error("there is no kind")
    const { state, suite } = this
    const proposal = await kind.make({ state, suite, chance: this.chance })
    const { signaturePrivateKey: key, keySchedule, groupContext } = state
    const [epoch, nothing] = [Number(groupContext.epoch), new Uint8Array()]
    if (!hidden) {
      const { publicMessage } = await protectProposalPublic(key, keySchedule.membershipKey, groupContext, nothing, proposal, leafOf(state), suite)
      return { kind, epoch, message: encodeMlsMessage({ version: "mls10", wireformat: "mls_public_message", publicMessage }) }
    }
    const { privateMessage, newSecretTree } = await protectProposal(
      key, keySchedule.senderDataSecret, proposal, nothing, groupContext, state.secretTree, leafOf(state), defaultClientConfig.paddingConfig, suite)
    this.state = { ...state, secretTree: newSecretTree }
    return { kind, epoch, message: encodeMlsMessage({ version: "mls10", wireformat: "mls_private_message", privateMessage }) }
  }
}
