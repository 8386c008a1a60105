// Devices that misbehave, for tests of disputes.

import { type CryptoProvider, createCommit, decodeGroupState, encodeGroupState, encodeMlsMessage, getCiphersuiteFromName, nobleCryptoProvider } from "ts-mls"
import { defaultClientConfig } from "ts-mls/clientConfig.js"
import type { Did } from "../../src/ids.js"
import type { Mls } from "../../src/mls.js"
import { TsMls } from "../../src/mls-ts.js"
import { suite } from "./phone.js"

/** A device whose commits are hidden, and garbage to every second one of the others. */
export async function spoilingMls(did: Did): Promise<Mls> {
  const mls = await TsMls.create(did, suite)
  const stage: Mls["stage"] = async (state) => {
    const before = decodeGroupState(state, 0)
    if (before === undefined) throw new Error("not a state of ts-mls")
    const cipherSuite = await spoiling.getCiphersuiteImpl(getCiphersuiteFromName(suite))
    const made = await createCommit({ state: { ...before[0], clientConfig: defaultClientConfig }, cipherSuite }, { ratchetTreeExtension: true })
    const after = encodeGroupState(made.newState)
    return { commit: encodeMlsMessage(made.commit), groupInfo: await mls.groupInfo(after), state: after }
  }
  return changed(mls, { stage })
}

// spoiling encrypts every second path secret so that nobody can decrypt it.
const spoiling: CryptoProvider = {
  async getCiphersuiteImpl(name) {
    const impl = await nobleCryptoProvider.getCiphersuiteImpl(name)
    let calls = 0
    const seal: typeof impl.hpke.seal = async (...args) => {
      const spoil = calls++ % 2 === 0
      const sealed = await impl.hpke.seal(...args)
      return spoil ? { ...sealed, ct: sealed.ct.map((byte) => byte ^ 1) } : sealed
    }
    return { ...impl, hpke: { ...impl.hpke, seal } }
  },
}

/** A device that refuses commits while `refuses` is set. */
export interface RefusingMls extends Mls {
  refuses: boolean
}

export function refusingMls(mls: Mls): RefusingMls {
  const refusing: RefusingMls = changed(mls, {
    refuses: true,
    process: async (state: Uint8Array, message: Uint8Array) => {
      if (refusing.refuses && mls.header(message).kind === "commit") throw new Error("refused")
      return mls.process(state, message)
    },
  })
  return refusing
}

/** A device with other methods in place of its own. */
export function changed<T extends object>(mls: Mls, methods: T): Mls & T {
  return Object.assign(Object.create(mls) as Mls, methods)
}
