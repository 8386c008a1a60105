// Devices of ts-mls for the simulator. Each line of the standard input is one request, and each
// line of the standard output its answer, both JSON. See clientsim/agents/README.md.
//
// ts-mls 1.6.4 departs from RFC 9420. This file corrects what can be corrected from outside:
//   - external_pub is the key without its length, where §12.4.3.2 has opaque<V>;
//   - KeyPackages are valid for ever, where §7.2 wants a lifetime that applications accept;
//   - P-256 signature keys are compressed, where §5.1.1 wants uncompressed ones.

import { createInterface } from "node:readline"
import {
  acceptAll, createApplicationMessage, createCommit, createGroup, createProposal, decodeMlsMessage,
  defaultCapabilities, encodeMlsMessage, generateKeyPackageWithKey, getCiphersuiteFromName, getCiphersuiteImpl, joinGroup,
  joinGroupExternal, makePskIndex, nobleCryptoProvider, processMessage,
} from "ts-mls"
import { p256 } from "@noble/curves/nist.js"
import { createGroupInfoWithRatchetTree } from "ts-mls/createCommit.js"
import { ratchetTreeFromExtension } from "ts-mls/groupInfo.js"
import { makeKeyPackageRef } from "ts-mls/keyPackage.js"
import { decryptSenderData } from "ts-mls/privateMessage.js"

const suites = {
  1: "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519",
  2: "MLS_128_DHKEMP256_AES128GCM_SHA256_P256",
  3: "MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519",
  0x4d: "MLS_256_XWING_CHACHA20POLY1305_SHA256_Ed25519", // see corrections.mjs
}

// A GREASE value (RFC 9420 §13.5), for an extension that no one understands.
const grease = { extensionType: 0x0a0a, extensionData: new TextEncoder().encode("grease") }

// A KeyPackage's lifetime, in seconds: from an hour ago, for 84 days.
const lifetimeBack = 3600
const lifetimeAhead = 84 * 24 * 3600

const devices = new Map()

const base64 = (bytes) => Buffer.from(bytes).toString("base64")
const bytes = (text) => new Uint8Array(Buffer.from(text ?? "", "base64"))
const same = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)) === 0
const frame = (wireformat, field, object) => encodeMlsMessage({ version: "mls10", wireformat, [field]: object })

// read decodes a whole MLSMessage of one of the wire formats.
function read(message, ...wireformats) {
  const decoded = decodeMlsMessage(message, 0)
  if (decoded === undefined || decoded[1] !== message.length) throw new Error("not an MLSMessage")
  if (!wireformats.includes(decoded[0].wireformat)) throw new Error(`a ${decoded[0].wireformat}`)
  return decoded[0]
}

function identityOf(leaf) {
  return new TextDecoder().decode(leaf.credential.identity)
}

// leavesOf lists the leaves of a tree. They are the nodes with even numbers (RFC 9420 §C).
function leavesOf(tree) {
  return tree.flatMap((node, i) => (node?.nodeType !== "leaf" ? [] : [{
    index: i / 2, identity: identityOf(node.leaf), signatureKey: base64(node.leaf.signaturePublicKey),
  }]))
}

function stateOf(state) {
  return {
    group: base64(state.groupContext.groupId),
    epoch: Number(state.groupContext.epoch),
    authenticator: base64(state.keySchedule.epochAuthenticator),
    own: state.privatePath.leafIndex,
    leaves: leavesOf(state.ratchetTree),
  }
}

class Device {
  packages = [] // with their private halves, until a Welcome used them
  groups = new Map() // by group_id in base64: {state, pending, encrypted}
  extensions = [] // of its KeyPackages and leaves
  joining = new Map() // states after an external commit that the server has not accepted yet

  static async make(identity, suite, former) {
    if (!(suite in suites)) throw new Error(`no suite ${suite}`)
    const device = new Device()
    device.cs = await getCiphersuiteImpl(getCiphersuiteFromName(suites[suite]), nobleCryptoProvider)
    device.credential = { credentialType: "basic", identity: new TextEncoder().encode(identity) }
    device.keys = former?.keys ?? (await device.cs.signature.keygen())
    if (suite === 2) device.keys.publicKey = p256.Point.fromBytes(device.keys.publicKey).toBytes(false)
    return device
  }

  fresh() {
    const now = Math.floor(Date.now() / 1000)
    const lifetime = { notBefore: BigInt(now - lifetimeBack), notAfter: BigInt(now + lifetimeAhead) }
    const capabilities = defaultCapabilities()
    capabilities.extensions.push(...this.extensions.map((extension) => extension.extensionType))
    return generateKeyPackageWithKey(
      this.credential, capabilities, lifetime, this.extensions, this.keys, this.cs, this.extensions)
  }

  async keyPackage() {
    const made = await this.fresh()
    const ref = await makeKeyPackageRef(made.publicPackage, this.cs.hash)
    this.packages.push({ ...made, ref })
    return frame("mls_key_package", "keyPackage", made.publicPackage)
  }

  async create(groupID) {
    const made = await this.fresh()
    return this.keep(await createGroup(groupID, made.publicPackage, made.privatePackage, [], this.cs))
  }

  keep(state) {
    this.groups.set(base64(state.groupContext.groupId), { state, encrypted: new Set() })
    return stateOf(state)
  }

  async join(message) {
    const { welcome } = read(message, "mls_welcome")
    for (const { newMember } of welcome.secrets) {
      const mine = this.packages.find((p) => same(p.ref, newMember))
      if (mine === undefined) continue
      const state = await joinGroup(welcome, mine.publicPackage, mine.privatePackage, makePskIndex(undefined, {}), this.cs)
      this.packages = this.packages.filter((p) => p !== mine)
      return this.keep(state)
    }
    throw new Error("the Welcome is for none of this device's KeyPackages")
  }

  group(id) {
    const group = this.groups.get(id)
    if (group === undefined) throw new Error("no such group")
    return group
  }

  // groupInfo makes the GroupInfo of a state's epoch. Its external_pub has its length in front.
  async groupInfo(state) {
    const pair = await this.cs.hpke.deriveKeyPair(state.keySchedule.externalSecret)
    const key = await this.cs.hpke.exportPublicKey(pair.publicKey)
    const extension = { extensionType: "external_pub", extensionData: Uint8Array.of(...lengthOf(key), ...key) }
    const info = await createGroupInfoWithRatchetTree(
      state.groupContext, state.confirmationTag, state, state.ratchetTree, [extension], this.cs)
    return frame("mls_group_info", "groupInfo", info)
  }

  async staged(state, commit, welcome) {
    return {
      group: base64(state.groupContext.groupId),
      epoch: Number(state.groupContext.epoch),
      commit: base64(commit),
      ...(welcome && { welcome: base64(frame("mls_welcome", "welcome", welcome)) }),
      groupInfo: base64(await this.groupInfo(state)),
    }
  }

  // stage prepares a commit. The group stays in its epoch until confirm.
  async stage(request) {
    const group = this.group(request.group)
    const extraProposals = [
      ...(request.remove ?? []).map((removed) => ({ proposalType: "remove", remove: { removed } })),
      ...(request.add ?? []).map((message) => ({
        proposalType: "add", add: { keyPackage: read(bytes(message), "mls_key_package").keyPackage },
      })),
    ]
    const unappliedProposals = committable(group, new Set(request.remove))
    const made = await createCommit({ state: { ...group.state, unappliedProposals }, cipherSuite: this.cs }, {
      wireAsPublicMessage: !request.hidden, extraProposals, ratchetTreeExtension: true,
    })
    group.pending = made.newState
    return this.staged(made.newState, encodeMlsMessage(made.commit), made.welcome)
  }

  // joinExternal makes an external commit. It removes the leaf with this device's signature key, if
  // the group has one.
  async joinExternal(message) {
    const { groupInfo } = read(message, "mls_group_info")
    const made = await this.fresh()
    const leaves = leavesOf(ratchetTreeFromExtension(groupInfo))
    const again = leaves.some((leaf) => same(bytes(leaf.signatureKey), this.keys.publicKey))
    const { publicMessage, newState } = await joinGroupExternal(
      bareAtFirst(groupInfo), made.publicPackage, made.privatePackage, again, this.cs)
    this.joining.set(base64(newState.groupContext.groupId), newState)
    return this.staged(newState, frame("mls_public_message", "publicMessage", publicMessage))
  }

  async process(id, input) {
    const group = this.group(id)
    const message = read(input, "mls_public_message", "mls_private_message")
    const { contentType } = message.publicMessage?.content ?? message.privateMessage
    const [commit, proposal] = [contentType === "commit", contentType === "proposal"]
    const sender = await this.sender(group.state, message)
    const result = await processMessage(message, group.state, makePskIndex(group.state, {}), acceptAll, this.cs).catch((err) => {
      if (!proposal) throw err
      return { newState: group.state } // a proposal that the library refuses is one that no commit contains
    })
    if (message.privateMessage && proposal) {
      for (const ref of Object.keys(result.newState.unappliedProposals)) {
        if (!(ref in group.state.unappliedProposals)) group.encrypted.add(ref)
      }
    }
    group.state = result.newState
    if (commit) group.pending = undefined
    const plaintext = commit || proposal ? "" : base64(result.message)
    return { received: { commit, proposal, sender, plaintext }, state: stateOf(group.state) }
  }

  // propose proposes to the group in clear. The next commit of this device refers to the proposal.
  async propose(request) {
    if (request.proposal !== "reInit") throw new Error(`ts-mls makes no proposal ${request.proposal}`)
    const group = this.group(request.group)
    const { version, cipherSuite, extensions } = group.state.groupContext
    const reinit = { groupId: bytes(request.input), version, cipherSuite, extensions }
    const { newState, message } = await createProposal(group.state, true, { proposalType: "reinit", reinit }, this.cs)
    group.state = newState
    return encodeMlsMessage(message)
  }

  // sender finds who sent a message, which the library does not say.
  async sender(state, message) {
    if (message.wireformat === "mls_public_message") {
      const { sender } = message.publicMessage.content
      return sender.senderType === "member" ? identityOf(state.ratchetTree[2 * sender.leafIndex].leaf) : ""
    }
    const data = await decryptSenderData(message.privateMessage, state.keySchedule.senderDataSecret, this.cs)
    const node = data && state.ratchetTree[2 * data.leafIndex]
    return node ? identityOf(node.leaf) : ""
  }
}

// committable returns the pending proposals that a commit contains. It leaves out those that came
// encrypted, because the server could not judge them, and those with a PSK, which the device does
// not have. The change removes its leaves itself.
function committable({ state, encrypted }, removed) {
  return Object.fromEntries(Object.entries(state.unappliedProposals).filter(([ref, { proposal }]) =>
    !encrypted.has(ref) && proposal.proposalType !== "psk" && !removed.has(proposal.remove?.removed)))
}

// lengthOf is the length of a vector of less than 16 kB, as it stands before it (RFC 9420 §2.1.2).
function lengthOf(vector) {
  return vector.length < 64 ? [vector.length] : [0x40 | (vector.length >> 8), vector.length & 0xff]
}

// bareAtFirst returns a GroupInfo whose external_pub is the bare key when it is read first, which
// is when joinGroupExternal uses it, and the whole extension afterwards, when the signature over it
// is verified.
function bareAtFirst(groupInfo) {
  const extensions = groupInfo.extensions.map((extension) => {
    if (extension.extensionType !== "external_pub") return extension
    const whole = extension.extensionData
    const bare = whole.subarray(whole[0] < 0x40 ? 1 : 2)
    if (!same(whole, [...lengthOf(bare), ...bare])) throw new Error("external_pub: the length is wrong")
    let reads = 0
    return {
      extensionType: "external_pub",
      get extensionData() {
        return reads++ === 0 ? bare : whole
      },
    }
  })
  return { ...groupInfo, extensions }
}

const operations = {
  keyPackage: async (d) => ({ output: base64(await d.keyPackage()) }),
  create: async (d, r) => ({ state: await d.create(bytes(r.group)) }),
  join: async (d, r) => ({ state: await d.join(bytes(r.input)) }),
  stage: async (d, r) => ({ staged: await d.stage(r) }),
  confirm: async (d, r) => {
    const { pending } = d.group(r.group)
    if (pending === undefined) throw new Error("no commit is staged")
    return { state: d.keep(pending) }
  },
  discard: async (d, r) => {
    d.group(r.group).pending = undefined
    return {}
  },
  joinExternal: async (d, r) => ({ staged: await d.joinExternal(bytes(r.input)) }),
  confirmJoin: async (d, r) => {
    const state = d.joining.get(r.group)
    if (state === undefined) throw new Error("no external commit is staged")
    d.joining.delete(r.group)
    return { state: d.keep(state) }
  },
  discardJoin: async (d, r) => {
    d.joining.delete(r.group)
    return {}
  },
  groupInfo: async (d, r) => ({ output: base64(await d.groupInfo(d.group(r.group).state)) }),
  encrypt: async (d, r) => {
    const group = d.group(r.group)
    const { unappliedProposals } = group.state // while any is pending, the library sends nothing
    const { newState, privateMessage } =
      await createApplicationMessage({ ...group.state, unappliedProposals: {} }, bytes(r.input), d.cs)
    group.state = { ...newState, unappliedProposals }
    return { output: base64(frame("mls_private_message", "privateMessage", privateMessage)) }
  },
  grease: async (d) => {
    d.extensions = [grease]
    return {}
  },
  propose: async (d, r) => ({ output: base64(await d.propose(r)) }),
  process: (d, r) => d.process(r.group, bytes(r.input)),
  forget: async (d, r) => {
    d.groups.delete(r.group)
    return {}
  },
}

async function serve(request) {
  if (request.op === "device") {
    const former = devices.get(request.former)
    if (request.former && !former) throw new Error("no such former device")
    const device = await Device.make(request.identity, request.suite, former)
    devices.set(request.device, device)
    return { signatureKey: base64(device.keys.publicKey) }
  }
  const device = devices.get(request.device)
  if (device === undefined) throw new Error("no such device")
  if (!(request.op in operations)) throw new Error("no such operation")
  return operations[request.op](device, request)
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  const answer = await serve(request).catch((err) => ({ error: `${request.op}: ${err.message}` }))
  process.stdout.write(JSON.stringify(answer) + "\n")
}
