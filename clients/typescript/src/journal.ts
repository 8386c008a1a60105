// The form of a FileStore's file. Each write is one record:
//
//   length of the body, 4 bytes | SHA-256 of the body, its first 8 bytes | body
//
// The body is a list of changes: length of the name, name, length of the content, content. Lengths
// are big-endian. The length `removed` says that the change removes the record.

import { createHash } from "node:crypto"
import type { Changes } from "./store.js"

const headerLength = 12
const removed = 0xffffffff

/** What a journal holds. */
export interface Decoded {
  readonly changes: Changes[]
  /** How many bytes of the journal are whole records. What follows was cut short. */
  readonly length: number
}

/** Encodes one write. */
export function encodeRecords(changes: Changes): Uint8Array {
  const parts: Uint8Array[] = []
  for (const [name, content] of changes) {
    const text = Buffer.from(name)
    parts.push(length(text.length), text, length(content?.length ?? removed), content ?? new Uint8Array())
  }
  const body = Buffer.concat(parts)
  return Buffer.concat([length(body.length), checksum(body), body])
}

/** Decodes a journal up to the first record that is not whole. */
export function decodeRecords(bytes: Uint8Array): Decoded {
  const journal = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)
  const changes: Changes[] = []
  let at = 0
  while (at + headerLength <= journal.length) {
    const end = at + headerLength + journal.readUInt32BE(at)
    const body = journal.subarray(at + headerLength, end)
    if (end > journal.length || !checksum(body).equals(journal.subarray(at + 4, at + headerLength))) break
    changes.push(decodeBody(body))
    at = end
  }
  return { changes, length: at }
}

function decodeBody(body: Buffer): Changes {
  const changes: Changes = new Map()
  let at = 0
  const take = (size: number) => body.subarray(at, (at += size))
  while (at < body.length) {
    const name = take(take(4).readUInt32BE()).toString()
    const size = take(4).readUInt32BE()
    changes.set(name, size === removed ? undefined : new Uint8Array(take(size)))
  }
  return changes
}

function length(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}

function checksum(body: Buffer): Buffer {
  return createHash("sha256").update(body).digest().subarray(0, 8)
}
