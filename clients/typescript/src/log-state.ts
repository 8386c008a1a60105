// What a verifier of a log remembers between two starts of the app.

import { base64url, fromBase64url, fromHex, hex } from "./bytes.js"
import type { LieFinding, OtherKeyFinding, OtherSenderFinding, UnsignedFinding, WentBackFinding } from "./log-findings.js"
import { append, type Edge, emptyEdge, type Hash, isEdge, rootOf } from "./log-tree.js"

/** An entry as the server shows or acknowledges it. */
export interface Seen {
  readonly seq: number
  /** One of `kinds`. 0: the answer to a write does not say it. */
  readonly kind: number
  /** The epoch in the entry's MLS header. */
  readonly epoch: number
  /** When the server took it, in milliseconds of Unix time. */
  readonly at: number
  /** The hash of the ciphertext. */
  readonly body: Hash
  /** The DID that the server names. */
  readonly sender: string
}

/** An entry that the server has acknowledged. */
export interface Sent extends Seen {
  /** It was acknowledged before the first head of the generation came. */
  readonly early?: true
}

/** A head with more entries than were shown. */
export interface WaitingHead {
  readonly text: string
  readonly size: number
  readonly root: Hash
  /** The member who has sent it. `""`: the server. */
  readonly from: string
}

/** How long the service gives no head, while it acknowledges entries. */
export interface Wait {
  /** The time that counts so far, in milliseconds. */
  readonly time: number
  /** When that was counted, and the largest seq that was acknowledged then. */
  readonly at: number
  readonly acked: number
}

/** Entries whose leaves and roots are kept: what is shown again is compared without a question. */
const remembered = 512

/** What a verifier remembers. */
export class State {
  keys: readonly string[] = []
  /** Whether `edge` is the tree up to the last entry that was shown. */
  started = false
  generation = 0
  /** The time of the first head of the generation, if there was perhaps another one. */
  since = 0
  /** Whether the app has heard that entries were lost with the generation before. */
  lost = false
  edge = emptyEdge
  leaves: Hash[] = [] // of the last entries
  roots: Hash[] = [] // of the trees that end with them
  /** The newest head that was checked. */
  head = ""
  headSize = 0
  waiting: WaitingHead[] = []
  tags: Record<string, Hash> = {}
  sent: Record<number, Sent> = {}
  /** The largest seq that was acknowledged. */
  acked = 0
  /** Entries since the last head. */
  unheaded = 0
  /** Since when heads are refused, in milliseconds of Unix time. */
  silent: number | undefined
  /** Set while own entries are in no head, and the service gives none. */
  wait: Wait | undefined
  /** What the app has heard of that. */
  unsigned: UnsignedFinding | undefined
  /** Set while entries are read again. */
  doubted = false
  backs: WentBackFinding[] = []
  otherKeys: OtherKeyFinding[] = []
  otherSenders: OtherSenderFinding[] = []
  lie: LieFinding | undefined

  constructor(
    readonly service: string,
    readonly convoId: string,
  ) {}

  /** Reads what {@link save} made. */
  static restore(text: string): State {
    const { leaves, roots, ...rest } = JSON.parse(text) as State & { leaves: string; roots: string }
    const state = Object.assign(new State(rest.service, rest.convoId), rest, { leaves: unpack(leaves), roots: unpack(roots) })
    if (!isEdge(state.edge) || state.leaves.length !== state.roots.length) throw new Error("the verifier's state is damaged")
    return state
  }

  save(): string {
    return JSON.stringify({ ...this, leaves: pack(this.leaves), roots: pack(this.roots) })
  }

  /** Goes on by an entry. */
  async take(leaf: Hash): Promise<void> {
    this.edge = await append(this.edge, leaf)
    this.leaves = [...this.leaves, leaf].slice(-remembered)
    this.roots = [...this.roots, await rootOf(this.edge)].slice(-remembered)
  }

  /** Begins behind a tree whose entries were not shown. */
  begin(edge: Edge, started: boolean): void {
    this.edge = edge
    this.started = started
    this.leaves = []
    this.roots = []
  }

  /** Goes back to the tree of earlier entries that are remembered. */
  goBack(edge: Edge): void {
    const keep = this.leaves.length - (this.edge.size - edge.size)
    this.leaves = this.leaves.slice(0, keep)
    this.roots = this.roots.slice(0, keep)
    this.edge = edge
  }

  /** The leaf of an entry that was shown, if it is remembered. */
  leafAt(seq: number): Hash | undefined {
    return this.leaves[this.leaves.length - (this.edge.size - seq) - 1]
  }

  /** The root of the tree that ended with an entry, if it is remembered. */
  async rootAt(size: number): Promise<Hash | undefined> {
    return size === this.edge.size ? rootOf(this.edge) : this.roots[this.roots.length - (this.edge.size - size) - 1]
  }
}

function pack(hashes: readonly Hash[]): string {
  return base64url(fromHex(hashes.join("")))
}

function unpack(text: string): Hash[] {
  return hex(fromBase64url(text)).match(/.{64}/g) ?? []
}
