// Forms of bytes as text.

import { fromBase64, toBase64 } from "@atproto/lex-data"

/** Base64 of the URL-safe alphabet, without padding. */
export function base64url(bytes: Uint8Array): string {
  return toBase64(bytes, "base64url")
}

/** Reads base64 of the URL-safe alphabet, without padding. */
export function fromBase64url(text: string): Uint8Array {
  return fromBase64(text, "base64url")
}

/** Lower-case hexadecimal. */
export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")
}

/** Reads hexadecimal. */
export function fromHex(text: string): Uint8Array {
  if (!/^([0-9a-f]{2})*$/i.test(text)) throw new Error("not hexadecimal")
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16))
}

/** The SHA-256 of bytes, in lower-case hexadecimal. */
export async function sha256(bytes: Uint8Array): Promise<string> {
  return hex(await sha256Bytes(bytes))
}

/** The SHA-256 of bytes. */
export async function sha256Bytes(bytes: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>))
}

/** Reports whether two byte strings are equal. Not for secrets: it takes other time for others. */
export function same(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i])
}

/** Byte strings one behind the other. */
export function concat(all: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(all.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const one of all) {
    bytes.set(one, at)
    at += one.length
  }
  return bytes
}
