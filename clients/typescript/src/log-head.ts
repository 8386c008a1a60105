// Signed heads of logs: docs/TRANSPARENCY.md. They are signed notes in the form of a checkpoint
// (https://c2sp.org/tlog-checkpoint).

import { ed25519 } from "@noble/curves/ed25519.js"
import { fromBase64, toBase64 } from "@atproto/lex-data"
import { fromHex, hex, sha256Bytes } from "./bytes.js"
import type { Hash } from "./log-tree.js"

/** What the log of a convo was at one moment. */
export interface Head {
  /** The server's DID. */
  readonly service: string
  readonly convoId: string
  /** How many entries there were. */
  readonly size: number
  readonly root: Hash
  /** Of the server's database. A restore begins another one. */
  readonly generation: number
  /** Milliseconds of Unix time. */
  readonly at: number
}

/** The longest text of a signed head that is read, in bytes. */
const longestNote = 4096
const mostSignatures = 100
const ed25519Algorithm = 1

const encoder = new TextEncoder()

/** Why a text is no head that the service has signed. */
export class HeadError extends Error {
  override readonly name = "HeadError"

  constructor(
    message: string,
    /** The keys that say that they have signed it, and are not known. */
    readonly unknown: readonly KeyName[] = [],
  ) {
    super(message)
  }
}

/** How a signature names its key. */
export interface KeyName {
  readonly name: string
  readonly hash: number
}

interface Key extends KeyName {
  readonly publicKey: Uint8Array
}

const formError = () => new HeadError("it has not the form of a head")
const noteError = () => new HeadError("malformed note")

/**
 * Checks the signature of a head with any of the keys, and reads it. The keys that have not signed it
 * do not matter.
 *
 * @param keys as getLogHead gives them. Texts that are no keys are skipped
 * @throws HeadError
 */
export async function openHead(text: string, keys: readonly string[]): Promise<Head> {
  if (encoder.encode(text).length > longestNote) throw formError()
  const known = await keysOf(keys)
  const note = noteOf(text)
  const done = new Set<Key>()
  const unknown: KeyName[] = []
  for (const { name, hash, signature } of note.signatures) {
    const fitting = known.filter((key) => key.name === name && key.hash === hash)
    const [key] = fitting
    if (fitting.length > 1) throw new HeadError(`ambiguous key ${keyText({ name, hash })}`)
    if (key === undefined) unknown.push({ name, hash })
    else if (!done.has(key) && !isSigned(key, note.text, signature)) throw new HeadError(`invalid signature for key ${keyText(key)}`)
    else done.add(key)
  }
  if (done.size === 0) throw new HeadError("note has no verifiable signatures", unknown)
  return headOf(note.text)
}

/** Reads a head whose signature was checked before. */
export function readHead(text: string): Head {
  return headOf(noteOf(text).text)
}

/** The hash of a key, as texts have it. */
export function keyHashText(hash: number): string {
  return hash.toString(16).padStart(8, "0")
}

function keyText({ name, hash }: KeyName): string {
  return `${name}+${keyHashText(hash)}`
}

function isSigned(key: Key, text: string, signature: Uint8Array): boolean {
  try {
    return ed25519.verify(signature, encoder.encode(text), key.publicKey, { zip215: false })
  } catch {
    return false // it has not the length of a signature
  }
}

interface Signature extends KeyName {
  readonly signature: Uint8Array
}

// noteOf takes a signed note apart: text, an empty line, and signatures.
function noteOf(text: string): { text: string; signatures: Signature[] } {
  const end = text.lastIndexOf("\n\n")
  if (/[\x00-\x09\x0b-\x1f]/.test(text) || end < 0 || !text.endsWith("\n") || text.length === end + 2) throw noteError()
  const lines = text.slice(end + 2, -1).split("\n")
  if (lines.length > mostSignatures) throw noteError()
  return { text: text.slice(0, end + 1), signatures: lines.map(signatureOf) }
}

function signatureOf(line: string): Signature {
  const [, name, base64] = /^— ([^\s+]+) (\S+)$/u.exec(line) ?? []
  const bytes = base64 === undefined ? undefined : bytesOf(base64)
  if (name === undefined || bytes === undefined || bytes.length < 5) throw noteError()
  return { name, hash: numberOf(bytes), signature: bytes.subarray(4) }
}

// bytesOf reads base64 with its padding.
function bytesOf(base64: string): Uint8Array | undefined {
  try {
    return base64.length % 4 === 0 ? fromBase64(base64) : undefined
  } catch {
    return undefined
  }
}

function numberOf(bytes: Uint8Array): number {
  return new DataView(bytes.buffer, bytes.byteOffset).getUint32(0)
}

// keysOf reads keys: name, hash and key, joined by plus signs.
async function keysOf(texts: readonly string[]): Promise<Key[]> {
  const keys: Key[] = []
  for (const text of texts) {
    const [, name, hash16, base64] = /^([^\s+]+)\+([0-9a-f]{8})\+(\S+)$/iu.exec(text) ?? []
    const bytes = base64 === undefined ? undefined : bytesOf(base64)
    if (name === undefined || hash16 === undefined || bytes?.length !== 33 || bytes[0] !== ed25519Algorithm) continue
    const named = encoder.encode(`${name}\n`)
    const hash = numberOf(await sha256Bytes(Uint8Array.of(...named, ...bytes)))
    if (hash === Number.parseInt(hash16, 16)) keys.push({ name, hash, publicKey: bytes.subarray(1) })
  }
  return keys
}

function headOf(text: string): Head {
  const [, service, convoId, size, base64, generation, time] =
    /^([^\n]*)\/([^/\n]*)\n(\d+)\n(\S+)\ngeneration (-?\d+)\ntime (\d{4}-\S+)\n$/u.exec(text) ?? []
  const root = base64 === undefined ? undefined : bytesOf(base64)
  if (service === undefined || convoId === undefined || time === undefined || root?.length !== 32) throw formError()
  const head: Head = {
    service, convoId, size: Number(size), root: hex(root), generation: Number(generation), at: Date.parse(time),
  }
  const exact = Number.isSafeInteger(head.size) && Number.isSafeInteger(head.generation) && Number.isFinite(head.at)
  if (!exact || textOf(head) !== text) throw formError() // one spelling only
  return head
}

function textOf(head: Head): string {
  const origin = `${head.service}/${head.convoId}`
  const root = toBase64(fromHex(head.root))
  const padded = root.padEnd(Math.ceil(root.length / 4) * 4, "=")
  return `${origin}\n${head.size}\n${padded}\ngeneration ${head.generation}\ntime ${new Date(head.at).toISOString()}\n`
}
