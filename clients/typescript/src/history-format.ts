// The form of a bundle of history: docs/clients/HISTORY.md.

import { concat, fromHex, hex, same } from "./bytes.js"
import type { FilePointer } from "./attachments.js"

/** What a bundle may hold at most. A reader compares them before it allocates, downloads or stores. */
export const bounds = {
  /** Bytes of a history message's content. */
  message: 256 << 10,
  parts: 256,
  /** Bytes of a part's ciphertext. The longest message of a convo has 10 MiB. */
  part: 11 << 20,
  /** Bytes of all parts. */
  bundle: 256 << 20,
  entries: 1_000_000,
} as const

/** A writer ends a part before its ciphertext has more bytes, unless one entry alone has. */
export const usualPart = 1 << 20

/** Bytes that AES-GCM adds to a part. */
export const tagBytes = 16

/** What a member has sent breaks the format or its bounds. */
export class HistoryError extends Error {
  override readonly name = "HistoryError"
  readonly code = "History"
}

/** One message of a bundle. */
export interface HistoryEntry {
  readonly seq: number
  /** The server's id of the log's entry. */
  readonly id: string
  readonly sender: string
  /** When the server stored it, in milliseconds of Unix time. */
  readonly createdAt: number
  /** The SHA-256 of the log's entry, in hexadecimal. */
  readonly digest: string
  /** Set if who gives it was given it. */
  readonly relayed: boolean
  readonly embedUri: string
  /** The application data, as MLS decrypted it. */
  readonly plaintext: Uint8Array
}

/** A part of a bundle, as the message that brings the bundle describes it. */
export interface PartPointer extends Omit<FilePointer, "uri"> {
  readonly entries: number
  /** The seq of the first entry and of the last one. */
  readonly from: number
  readonly to: number
}

/** What devices say to each other about history, as application messages of the convo. */
export type HistoryMessage =
  /** A device asks for what is before a seq. */
  | { readonly type: "request"; readonly id: string; readonly device: string; readonly before: number }
  /** A person agrees. It names the bundle that will come. */
  | { readonly type: "agree"; readonly request: string; readonly id: string }
  | {
      readonly type: "bundle"; readonly request: string; readonly id: string; readonly entries: number
      readonly parts: readonly PartPointer[]
    }
  /** Names an attachment of a message of the bundle in embedUri, so that newer members can read it. */
  | { readonly type: "file"; readonly id: string }
  /** Takes back a request, or ends a bundle. */
  | { readonly type: "cancel"; readonly id: string }

const encoder = new TextEncoder()
const decoder = new TextDecoder("utf-8", { fatal: true })

const version = 1
const magic = concat([Uint8Array.of(0), encoder.encode("mlsd-history")])
const partMagic = encoder.encode("MLSH")
const headBytes = partMagic.length + 1

/** Reports whether the content of a message is about history, in whatever version. An app does not show it. */
export function isHistory(content: Uint8Array): boolean {
  return same(content.subarray(0, magic.length), magic)
}

/** The content of an application message. */
export function encodeMessage(message: HistoryMessage): Uint8Array {
  const content = concat([magic, Uint8Array.of(version), encoder.encode(JSON.stringify(message))])
  if (content.length > bounds.message) throw new HistoryError("the message is too long")
  return content
}

/** Reads the content of an application message. One of another version or type, or a broken one, is none. */
export function decodeMessage(content: Uint8Array): HistoryMessage | undefined {
  if (!isHistory(content) || content[magic.length] !== version || content.length > bounds.message) return undefined
  try {
    return checked(JSON.parse(decoder.decode(content.subarray(magic.length + 1))) as Record<string, unknown>)
  } catch {
    return undefined
  }
}

const isId = (value: unknown): value is string => typeof value === "string" && /^[0-9a-f]{32}$/.test(value)
const isDigest = (value: unknown): value is string => typeof value === "string" && /^[0-9a-f]{64}$/.test(value)
const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) > 0
const isText = (value: unknown, most: number): value is string => typeof value === "string" && value !== "" && value.length <= most

// checked copies the fields that the type has: later versions may add others.
function checked(value: Record<string, unknown>): HistoryMessage | undefined {
  const { type, id, request, device, before, entries, parts } = value
  if (!isId(id)) return undefined
  switch (type) {
    case "request":
      return isDigest(device) && isCount(before) ? { type, id, device, before } : undefined
    case "agree":
      return isId(request) ? { type, request, id } : undefined
    case "bundle":
      if (!isId(request) || !isCount(entries) || !Array.isArray(parts)) return undefined
      return { type, request, id, entries, parts: parts.map(checkedPart) }
    case "file":
    case "cancel":
      return { type, id }
  }
  return undefined
}

function checkedPart(value: unknown): PartPointer {
  const { id, key, nonce, sha256, size, entries, from, to } = value as Record<string, unknown>
  const right = isText(id, 64) && isText(key, 43) && isText(nonce, 16) && isDigest(sha256)
  if (!right || ![size, entries, from, to].every(isCount)) throw new HistoryError("a part is not described")
  return { id, key, nonce, sha256, size, entries, from, to } as PartPointer
}

/**
 * Compares what a message says of a bundle with the bounds.
 *
 * @param seq the place of the message in the log: a bundle holds what is before it
 * @throws HistoryError
 */
export function checkBundle(parts: readonly PartPointer[], entries: number, seq: number, mostBytes: number = bounds.bundle): void {
  const sum = (of: (part: PartPointer) => number) => parts.reduce((total, part) => total + of(part), 0)
  if (parts.length === 0 || parts.length > bounds.parts) throw new HistoryError(`${parts.length} parts`)
  if (sum(({ entries }) => entries) !== entries || entries > bounds.entries) throw new HistoryError(`${entries} messages`)
  if (sum(({ size }) => size) > Math.min(mostBytes, bounds.bundle)) throw new HistoryError("the bundle is too large")
  let last = 0
  for (const { size, entries, from, to } of parts) {
    if (size > bounds.part) throw new HistoryError("a part is too large")
    if (from <= last || to < from || to >= seq || entries > to - from + 1) throw new HistoryError("the parts are not in their order")
    last = to
  }
}

/** The additional data of a part: it opens only as this part of this bundle of this convo. */
export function boundTo(convo: string, bundle: string, part: number): Uint8Array {
  return encoder.encode(`mlsd-history ${version}\n${convo}\n${bundle}\n${part}`)
}

/** Bytes that an entry has beside its texts and its plaintext. */
const fixedBytes = 8 + 1 + 8 + 32 + 1 + 2 + 2 + 4

const mostId = 64
const mostText = 2048
const latest = 253_402_300_799_999 // the end of the year 9999

/** Encodes an entry. */
export function encodeEntry(entry: HistoryEntry): Uint8Array {
  const [id, sender, uri] = [entry.id, entry.sender, entry.embedUri].map((text) => encoder.encode(text)) as [Uint8Array, Uint8Array, Uint8Array]
  const bytes = new Uint8Array(fixedBytes + id.length + sender.length + uri.length + entry.plaintext.length)
  const view = new DataView(bytes.buffer)
  view.setBigUint64(0, BigInt(entry.seq))
  view.setUint8(8, entry.relayed ? 1 : 0)
  view.setBigUint64(9, BigInt(entry.createdAt))
  bytes.set(fromHex(entry.digest), 17)
  let at = 49
  const add = (size: 1 | 2 | 4, content: Uint8Array) => {
    if (size === 1) view.setUint8(at, content.length)
    else if (size === 2) view.setUint16(at, content.length)
    else view.setUint32(at, content.length)
    bytes.set(content, at + size)
    at += size + content.length
  }
  add(1, id)
  add(2, sender)
  add(2, uri)
  add(4, entry.plaintext)
  return bytes
}

/** The plaintext of a part. */
export function encodePart(entries: readonly Uint8Array[]): Uint8Array {
  return concat([partMagic, Uint8Array.of(version), ...entries])
}

/**
 * Decodes the plaintext of a part, one entry after the other. The plaintexts of its entries are views of it.
 *
 * @throws HistoryError if it is not what the pointer says, which can be found at the end: nothing of the
 *   part is used then
 */
export function* decodePart(
  bytes: Uint8Array, { entries, from, to }: Pick<PartPointer, "entries" | "from" | "to">,
): Generator<HistoryEntry, void> {
  if (!same(bytes.subarray(0, partMagic.length), partMagic)) throw new HistoryError("this is no part of a bundle")
  if (bytes[partMagic.length] !== version) throw new HistoryError(`version ${bytes[partMagic.length]}`)
  const reader = new Reader(bytes, headBytes)
  let [count, first, last] = [0, from, from - 1]
  for (; reader.left > 0; count++) {
    const entry = reader.entry()
    if (entry.seq <= last || entry.seq > to || count === entries) throw new HistoryError("a message is not in its place")
    if (count === 0) first = entry.seq
    last = entry.seq
    yield entry
  }
  if (count !== entries || first !== from || last !== to) throw new HistoryError("messages are missing")
}

class Reader {
  private readonly view: DataView

  constructor(private readonly bytes: Uint8Array, private at: number) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  }

  get left(): number {
    return this.bytes.length - this.at
  }

  entry(): HistoryEntry {
    const seq = this.number()
    const flags = this.take(1)[0] ?? 0
    const createdAt = this.number()
    const digest = hex(this.take(32))
    const id = this.text(1)
    const sender = this.text(2)
    const embedUri = this.text(2)
    const plaintext = this.vector(4)
    const right = flags <= 1 && createdAt <= latest && id.length <= mostId && embedUri.length <= mostText
    if (!right || sender.length > mostText || !/^did:[a-z]+:[\w.:%-]+$/.test(sender)) throw new HistoryError("a message is not described")
    return { seq, id, sender, createdAt, digest, relayed: flags === 1, embedUri, plaintext }
  }

  private number(): number {
    this.need(8)
    const value = this.view.getBigUint64(this.at)
    this.at += 8
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new HistoryError("a number is too large")
    return Number(value)
  }

  private text(size: 1 | 2): string {
    try {
      return decoder.decode(this.vector(size))
    } catch (err) {
      throw err instanceof HistoryError ? err : new HistoryError("a text is not UTF-8")
    }
  }

  private vector(size: 1 | 2 | 4): Uint8Array {
    this.need(size)
    const length = size === 1 ? this.view.getUint8(this.at) : size === 2 ? this.view.getUint16(this.at) : this.view.getUint32(this.at)
    this.at += size
    return this.take(length)
  }

  private take(length: number): Uint8Array {
    this.need(length)
    return this.bytes.subarray(this.at, (this.at += length))
  }

  private need(length: number): void {
    if (length > this.left) throw new HistoryError("the part is cut short")
  }
}
