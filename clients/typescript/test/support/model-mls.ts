// An MLS library without cryptography, for tests of many runs. Its objects are JSON, so that the model
// of the service can read them. A key is an epoch and a generation, and is used once.

import type { Group, Mls, Staged } from "../../src/mls.js"

/** A message or a commit of the model. */
export interface ModelMessage {
  readonly kind: "application" | "commit"
  readonly epoch: number
  readonly by: string
  /** Of an application message: with the epoch, its key. */
  readonly generation?: number
  readonly plaintext?: number[]
  /** Of a commit. */
  readonly members?: readonly string[]
}

interface State {
  readonly groupId: number[]
  readonly epoch: number
  readonly generation: number
  readonly members: readonly string[]
}

/** Messages that are longer cannot be encrypted. */
export const longestPlaintext = 500

/** A KeyPackage that cannot be used. */
export const brokenKeyPackage = new TextEncoder().encode("broken")

export function bytesOf(value: object): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(value))
}

export function valueOf<T>(bytes: Uint8Array): T {
  return JSON.parse(new TextDecoder().decode(bytes)) as T
}

export function keyPackageOf(did: string): Uint8Array {
  return bytesOf({ did })
}

/** A device whose name in a group is its DID. */
export function modelMls(did: string): Mls {
  const next = (state: State, members: readonly string[]): Staged => {
    const commit: ModelMessage = { kind: "commit", epoch: state.epoch, by: did, members }
    const after: State = { ...state, epoch: state.epoch + 1, generation: 0, members }
    return { commit: bytesOf(commit), groupInfo: bytesOf(after), state: bytesOf(after), welcome: bytesOf({}) }
  }
  const describe = (state: Uint8Array): Group => {
    const { groupId, epoch, members } = valueOf<State>(state)
    return {
      groupId: Uint8Array.from(groupId), epoch, active: true, authenticator: new Uint8Array(),
      members: members.map((identity, index) => ({ index, identity, signatureKey: bytesOf({ identity }) })),
    }
  }
  const no = () => Promise.reject(new Error("not in this model"))
  return {
    identity: did, cipherSuite: "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", signatureKey: bytesOf({ identity: did }),
    keyPackage: no, join: no, joinExternal: no, describe,
    create: async (groupId) => bytesOf({ groupId: [...groupId], epoch: 0, generation: 0, members: [did] } satisfies State),
    stage: async (bytes, { add = [], remove = [] }) => {
      const state = valueOf<State>(bytes)
      const added = add.map((one) => valueOf<{ did: string }>(one).did)
      return next(state, [...state.members.filter((_, i) => !remove.includes(i)), ...added])
    },
    encrypt: async (bytes, plaintext) => {
      if (plaintext.length > longestPlaintext) throw new Error("the plaintext is too long")
      const { epoch, generation, ...rest } = valueOf<State>(bytes)
      const message: ModelMessage = { kind: "application", epoch, by: did, generation, plaintext: [...plaintext] }
      return { state: bytesOf({ ...rest, epoch, generation: generation + 1 } satisfies State), message: bytesOf(message) }
    },
    process: async (bytes, input) => {
      const state = valueOf<State>(bytes)
      const { kind, epoch, by, members } = valueOf<ModelMessage>(input)
      if (by === did || epoch !== state.epoch || members === undefined) throw new Error("cannot be processed")
      return { state: bytesOf({ ...state, epoch: epoch + 1, generation: 0, members } satisfies State), kind, sender: { index: state.members.indexOf(by), identity: by, signatureKey: bytesOf({ identity: by }) } }
    },
    groupInfo: async (state) => state,
    proposeRemoval: no,
    infoOf: (info) => ({ ...describe(info), signer: "" }),
    header: (message) => valueOf<ModelMessage>(message),
    leafOf: (keyPackage) => {
      const { did: identity } = valueOf<{ did: string }>(keyPackage)
      return { identity, signatureKey: bytesOf({ identity }) }
    },
  }
}
