// What safety numbers and group codes are made of: digits that people compare.

import { concat } from "./bytes.js"

/** How the digits are made. Digits of two versions cannot be compared. */
export const codeVersion = 1

/**
 * How often SHA-512 is iterated: that much each attempt costs an attacker. Other keys with the digits of a
 * given person take 2^100 attempts, because 30 digits hold 100 bits. Two commits that split a group and give
 * both parts the same digits take 2^50. Attempts at one person or group do not help with another, because
 * the DID or the secret of the group is in each of them.
 */
const iterations = 5200

/** The bytes of which five digits are made. */
const groupBytes = 5

/** Why there are no digits. */
export type CodeProblem =
  /** A person has no keys. */
  | "NoKeys"
  /** Both persons have the same DID. */
  | "SameDid"
  /** A key is not as long as the public keys of any cipher suite. */
  | "KeyLength"
  /** An epoch_authenticator is not as long as the hash of any cipher suite. */
  | "AuthenticatorLength"
  /** A text is not the form of a safety number that is scanned. */
  | "NotASafetyNumber"

/** There is no safety number or group code. */
export class CodeError extends Error {
  override readonly name = "CodeError"
  readonly code = "Code"

  constructor(
    readonly problem: CodeProblem,
    text: string,
  ) {
    super(text)
  }
}

/**
 * Makes 30 digits of byte strings: 30 bytes of PBKDF2 (RFC 8018) with HMAC-SHA-512, of which each five are
 * a number modulo 100,000. The label is the password. The salt is the version and the byte strings, each
 * after its length in two bytes.
 */
export async function thirtyDigits(label: string, parts: readonly Uint8Array[]): Promise<string> {
  const salt = concat([Uint8Array.of(codeVersion), ...parts.flatMap((part) => [Uint8Array.of(part.length >> 8, part.length), part])])
  const password = await crypto.subtle.importKey("raw", new TextEncoder().encode(label), "PBKDF2", false, ["deriveBits"])
  const parameters = { name: "PBKDF2", hash: "SHA-512", salt: salt as Uint8Array<ArrayBuffer>, iterations }
  const bytes = new Uint8Array(await crypto.subtle.deriveBits(parameters, password, 6 * groupBytes * 8))
  let digits = ""
  for (let at = 0; at < bytes.length; at += groupBytes) {
    const number = bytes.subarray(at, at + groupBytes).reduce((sum, byte) => sum * 256 + byte, 0)
    digits += String(number % 100_000).padStart(5, "0")
  }
  return digits
}

/** Digits as people read them: groups of five, with spaces between them. */
export function formatDigits(digits: string): string {
  return digits.match(/.{1,5}/g)?.join(" ") ?? ""
}
