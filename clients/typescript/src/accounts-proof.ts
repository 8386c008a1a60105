// Proofs of records: the signed commit of a repository, and the path through its tree to where a record is or would
// be (https://atproto.com/specs/repository). It needs @noble/curves. @atproto/repo does the same, and needs Node: it
// cannot be bundled for a browser. The tests compare both.

import { p256 } from "@noble/curves/nist.js"
import { secp256k1 } from "@noble/curves/secp256k1.js"
import { decode, encode } from "@atproto/lex-cbor"
import { type Cid, decodeCid, isCid, isCidForBytes } from "@atproto/lex-data"
import type { LexValue } from "./json.js"

/** Checks a signature of one key. */
export type Verify = (message: Uint8Array, signature: Uint8Array) => boolean

/** How a multikey begins: the multicodec prefix of a compressed public key. */
const curves = [
  { curve: secp256k1, prefix: [0xe7, 0x01] },
  { curve: p256, prefix: [0x80, 0x24] },
]

/**
 * Reads a public key of a DID document.
 *
 * @throws Error if it is no key of a curve that signs repositories
 */
export function verifierOf(multikey: string): Verify {
  const bytes = multibase(multikey)
  const found = curves.find(({ prefix }) => prefix.every((byte, i) => bytes[i] === byte))
  if (found === undefined) throw new Error("a key of an unknown curve")
  const key = bytes.subarray(found.prefix.length)
  return (message, signature) => found.curve.verify(signature, message, key, { lowS: true })
}

const base58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

/** The length of a multikey of a known curve, in base58 with its leading z. */
const multikeyForm = /^z[1-9A-HJ-NP-Za-km-z]{48}$/

// multibase reads base58btc. A multikey begins with no zero byte.
function multibase(text: string): Uint8Array {
  if (!multikeyForm.test(text)) throw new Error("not a multikey")
  let value = 0n
  for (const letter of text.slice(1)) value = value * 58n + BigInt(base58.indexOf(letter))
  const bytes = []
  for (; value > 0n; value >>= 8n) bytes.unshift(Number(value & 0xffn))
  return Uint8Array.from(bytes)
}

/**
 * Finds a record in an answer of com.atproto.sync.getRecord. `undefined` is proven too: the repository has no such
 * record.
 *
 * @param car the answer
 * @param path the collection and the record key: `collection/key`
 * @throws Error if the answer proves neither
 */
export async function provenRecord(car: Uint8Array, did: string, verify: Verify, path: string): Promise<LexValue | undefined> {
  const [header, ...sections] = [...sectionsOf(car)]
  const blocks = new Map(sections.map((section) => [String(cborCid(section.subarray(0, cidLength))), section.subarray(cidLength)]))
  const read = async (cid: Cid): Promise<LexValue> => {
    const bytes = blocks.get(String(cid))
    if (bytes === undefined) throw new Error("a block is missing")
    if (!(await isCidForBytes(cid, bytes))) throw new Error("a block is not the one that its CID names")
    return decode(bytes)
  }
  const { version, roots } = fieldsOf(decode(header ?? new Uint8Array()))
  if (version !== 1 || !Array.isArray(roots) || roots.length !== 1) throw new Error("not a CAR of one root")
  const { sig, ...commit } = fieldsOf(await read(linkOf(roots[0])))
  if (commit.did !== did || commit.version !== 3) throw new Error("a commit of another repository")
  if (!(sig instanceof Uint8Array) || !verify(encode(commit as LexValue), sig)) throw new Error("a commit with a wrong signature")
  const record = await find(read, linkOf(commit.data), path)
  return record && read(record)
}

/** Bytes of a CID of DAG-CBOR with SHA-256. A repository has no others but in links to blobs. */
const cidLength = 36

const cborCid = (bytes: Uint8Array) => decodeCid(bytes, { flavor: "cbor" })

// sectionsOf splits a CAR (https://ipld.io/specs/transport/car/carv1/): each section has its length in front.
function* sectionsOf(car: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < car.length; ) {
    let length = 0
    for (let [shift, more] = [0, true]; more; shift += 7) {
      const byte = car[at++]
      if (byte === undefined || shift > 21) throw new Error("not a CAR")
      length |= (byte & 0x7f) << shift
      more = byte >= 0x80
    }
    if (length === 0 || at + length > car.length) throw new Error("the CAR is cut short")
    yield car.subarray(at, (at += length))
  }
}

const decoder = new TextDecoder()

// find goes from the root of the tree to a path: the keys of a node are in order, and between two keys, before the
// first and after the last there can be a node with the keys of that range.
async function find(read: (cid: Cid) => Promise<LexValue>, root: Cid, path: string): Promise<Cid | undefined> {
  for (let at: Cid | undefined = root; at !== undefined; ) {
    const { l: first, e: entries } = fieldsOf(await read(at))
    if (!Array.isArray(entries)) throw new Error("not a node of the tree")
    let [key, below] = ["", first]
    for (const entry of entries) {
      const { p: shared, k: rest, v: value, t: next } = fieldsOf(entry)
      if (typeof shared !== "number" || !(rest instanceof Uint8Array)) throw new Error("not an entry of the tree")
      key = key.slice(0, shared) + decoder.decode(rest) // paths are ASCII
      if (key === path) return linkOf(value)
      if (key > path) break
      below = next
    }
    at = below === null ? undefined : linkOf(below)
  }
  return undefined
}

function fieldsOf(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null || isCid(value)) throw new Error("not a map")
  return value as Record<string, unknown>
}

function linkOf(value: unknown): Cid {
  if (!isCid(value, { flavor: "cbor" })) throw new Error("not a link")
  return value
}
