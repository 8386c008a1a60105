// The Merkle tree over a convo's log (RFC 6962, §2.1), and the form of its leaves: docs/TRANSPARENCY.md.

import { fromHex, sha256 } from "./bytes.js"

/** A SHA-256, in lower-case hexadecimal. */
export type Hash = string

/** Kinds of entries: the content types of RFC 9420, §6. */
export const kinds = { application: 1, proposal: 2, commit: 3, reset: 9 } as const

/** What a leaf says of an entry. */
export interface Leaf {
  readonly seq: number
  /** One of {@link kinds}. */
  readonly kind: number
  /** The epoch in the entry's MLS header: of a commit, the epoch that it ends. */
  readonly epoch: number
  /** When the server took it, in milliseconds of Unix time. */
  readonly at: number
  /** The hash of the ciphertext. */
  readonly body: Hash
  /** What stands for the sender: {@link tagOf}. */
  readonly tag: Hash
}

const encoder = new TextEncoder()

/** The text of a leaf. Every field has a line. */
export function recordOf({ seq, kind, epoch, at, body, tag }: Leaf): string {
  return `mlsd log entry\n${seq}\n${kind}\n${epoch}\n${at}\n${body}\n${tag}\n`
}

/** The hash of a leaf with this text. */
export function leafHash(record: string): Promise<Hash> {
  return sha256(joined(Uint8Array.of(0), encoder.encode(record)))
}

/** What stands for a sender in the leaves of a convo. */
export function tagOf(salt: Uint8Array, did: string): Promise<Hash> {
  return sha256(joined(encoder.encode("mlsd log sender\n"), salt, encoder.encode(did)))
}

function nodeHash(left: Hash, right: Hash): Promise<Hash> {
  return sha256(joined(Uint8Array.of(1), fromHex(left), fromHex(right)))
}

function joined(...parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}

/**
 * The right edge of a tree: the roots of its complete subtrees, the largest first. It is all that is
 * needed to append leaves and to compute the root.
 */
export interface Edge {
  readonly size: number
  readonly hashes: readonly Hash[]
}

/** The edge of the tree without leaves. */
export const emptyEdge: Edge = { size: 0, hashes: [] }

/** Reports whether an edge has the form of one. */
export function isEdge({ size, hashes }: Edge): boolean {
  return Number.isSafeInteger(size) && size >= 0 && hashes.length === subtreesOf(size)
}

// subtreesOf counts the complete subtrees of a tree.
function subtreesOf(size: number): number {
  let count = 0
  for (let n = size; n > 0; n = Math.floor(n / 2)) count += n % 2
  return count
}

/** The edge after another leaf. */
export async function append(edge: Edge, leaf: Hash): Promise<Edge> {
  const hashes = [...edge.hashes]
  let last = leaf
  for (let n = edge.size; n % 2 === 1; n = Math.floor(n / 2)) last = await nodeHash(hashes.pop() ?? "", last)
  return { size: edge.size + 1, hashes: [...hashes, last] }
}

/** The root of a tree. */
export async function rootOf({ hashes }: Edge): Promise<Hash> {
  let root = hashes.at(-1)
  if (root === undefined) return sha256(new Uint8Array())
  for (const left of hashes.slice(0, -1).reverse()) root = await nodeHash(left, root)
  return root
}

/**
 * The edge of a tree, from the proof that its last leaf is in it. The caller compares the edge's root
 * with that of a head.
 *
 * @throws Error if the proof has not the right number of hashes
 */
export async function edgeOf(size: number, last: Hash, proof: readonly Hash[]): Promise<Edge> {
  let merged = 0 // subtrees that end with the last leaf
  for (let n = size; n > 0 && n % 2 === 0; n /= 2) merged++
  if (size < 1 || proof.length !== merged + subtreesOf(size) - 1) throw new Error("the proof has the wrong number of hashes")
  let hash = last
  for (const left of proof.slice(0, merged)) hash = await nodeHash(left, hash)
  return { size, hashes: [...proof.slice(merged).reverse(), hash] }
}

/** Reports whether a proof shows that a leaf is entry `seq` of a tree. */
export async function isIncluded(proof: readonly Hash[], size: number, root: Hash, seq: number, leaf: Hash): Promise<boolean> {
  return seq >= 1 && seq <= size && (await rootThrough(proof, size, seq - 1, leaf)) === root
}

/** Reports whether a proof shows that a tree begins with a smaller one. */
export async function isContinued(
  proof: readonly Hash[], size: number, root: Hash, from: number, fromRoot: Hash,
): Promise<boolean> {
  if (from < 1 || from > size) return false
  const roots = await rootsThrough(proof, size, from, fromRoot, true)
  return roots !== undefined && roots.old === fromRoot && roots.now === root
}

// rootThrough computes the root of a tree from one of its leaves and the proof of that.
async function rootThrough(proof: readonly Hash[], size: number, index: number, leaf: Hash): Promise<Hash | undefined> {
  if (size === 1) return proof.length === 0 ? leaf : undefined
  const sibling = proof.at(-1)
  if (sibling === undefined) return undefined
  const rest = proof.slice(0, -1)
  const left = leftOf(size)
  if (index < left) {
    const root = await rootThrough(rest, left, index, leaf)
    return root && nodeHash(root, sibling)
  }
  const root = await rootThrough(rest, size - left, index - left, leaf)
  return root && nodeHash(sibling, root)
}

// rootsThrough computes the roots of the tree of the first `from` leaves and of the whole one. `known`
// says that the smaller one is whole, so the proof leaves its root out.
async function rootsThrough(
  proof: readonly Hash[], size: number, from: number, fromRoot: Hash, known: boolean,
): Promise<{ old: Hash; now: Hash } | undefined> {
  const sibling = proof.at(-1)
  if (from === size) {
    const root = known ? fromRoot : sibling
    return proof.length === (known ? 0 : 1) && root !== undefined ? { old: root, now: root } : undefined
  }
  if (sibling === undefined) return undefined
  const rest = proof.slice(0, -1)
  const left = leftOf(size)
  if (from <= left) {
    const roots = await rootsThrough(rest, left, from, fromRoot, known)
    return roots && { old: roots.old, now: await nodeHash(roots.now, sibling) }
  }
  const roots = await rootsThrough(rest, size - left, from - left, fromRoot, false)
  return roots && { old: await nodeHash(sibling, roots.old), now: await nodeHash(sibling, roots.now) }
}

// leftOf is the size of the left part of a tree: the largest power of two below its size.
function leftOf(size: number): number {
  let left = 1
  while (left * 2 < size) left *= 2
  return left
}
