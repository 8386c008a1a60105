// GroupInfos of ts-mls with the external_pub of RFC 9420 §12.4.3.2: the key with its length in front.

import type { CiphersuiteImpl, ClientState, Extension, GroupInfo } from "ts-mls"
import { createGroupInfoWithRatchetTree } from "ts-mls/createCommit.js"
import { same } from "./bytes.js"

/** Makes the GroupInfo of a state's epoch. */
export async function makeGroupInfo(state: ClientState, suite: CiphersuiteImpl): Promise<GroupInfo> {
  const pair = await suite.hpke.deriveKeyPair(state.keySchedule.externalSecret)
  const key = await suite.hpke.exportPublicKey(pair.publicKey)
  const extension: Extension = { extensionType: "external_pub", extensionData: vector(key) }
  return createGroupInfoWithRatchetTree(
    state.groupContext, state.confirmationTag, state, state.ratchetTree, [extension], suite)
}

/**
 * Returns a GroupInfo that ts-mls can join with. Its external_pub is the bare key when it is read
 * first, which is when `joinGroupExternal` uses it, and the whole extension afterwards, when the
 * signature over it is verified.
 */
export function readableByTsMls(groupInfo: GroupInfo): GroupInfo {
  const extensions = groupInfo.extensions.map((extension) => {
    if (extension.extensionType !== "external_pub") return extension
    const whole = extension.extensionData
    const bare = whole.subarray((whole[0] ?? 0) < 0x40 ? 1 : 2)
    if (!same(whole, vector(bare))) throw new Error("external_pub: the length is wrong")
    let reads = 0
    return {
      extensionType: extension.extensionType,
      get extensionData() {
        return reads++ === 0 ? bare : whole
      },
    }
  })
  return { ...groupInfo, extensions }
}

// vector writes a vector of less than 16 kB: its length and its bytes (RFC 9420 §2.1.2).
function vector(bytes: Uint8Array): Uint8Array {
  const length = bytes.length < 0x40 ? [bytes.length] : [0x40 | (bytes.length >> 8), bytes.length & 0xff]
  return Uint8Array.of(...length, ...bytes)
}
