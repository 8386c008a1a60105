// The safety number of two persons: the same for both, as long as both see the same keys.

import { CodeError, codeVersion, thirtyDigits } from "./digits.js"
import type { Did } from "./ids.js"

const label = "mlsd safety number"

const digitsOfNumber = 60

/** The lengths of the signature keys of cipher suites: Ed25519, Ed448, P-256, P-384, P-521, ML-DSA-44, -65 and -87. */
const keyLengths: readonly number[] = [32, 57, 65, 97, 133, 1312, 1952, 2592]

/** A safety number. */
export interface SafetyNumber {
  /** How it is made. Numbers of two versions cannot be compared. */
  readonly version: number
  /** 60 decimal digits. People compare all of them. */
  readonly digits: string
}

/** What a comparison says. `otherVersion`: one of the apps is older, and nothing can be said about keys. */
export type SafetyComparison = "same" | "differs" | "otherVersion"

/**
 * Makes the safety number of two persons. The order of the persons and of the keys does not matter; a key
 * counts once.
 *
 * @param ownKeys the signature keys of all devices that the person lists
 * @throws CodeError `NoKeys`, `SameDid` or `KeyLength`
 */
export async function safetyNumber(
  ownDid: Did, ownKeys: readonly Uint8Array[], otherDid: Did, otherKeys: readonly Uint8Array[],
): Promise<SafetyNumber> {
  if (ownDid === otherDid) throw new CodeError("SameDid", `${ownDid} has no safety number with itself`)
  const halves = await Promise.all([half(ownDid, ownKeys), half(otherDid, otherKeys)])
  return { version: codeVersion, digits: halves.sort().join("") }
}

// half makes the digits of one person. They are the same in its safety numbers with others.
async function half(did: Did, keys: readonly Uint8Array[]): Promise<string> {
  if (keys.length === 0) throw new CodeError("NoKeys", `${did} has no keys`)
  const wrong = keys.find(({ length }) => !keyLengths.includes(length))
  if (wrong !== undefined) throw new CodeError("KeyLength", `a key of ${did} has ${wrong.length} bytes`)
  const sorted = [...keys].sort(order)
  const different = sorted.filter((key, i) => i === 0 || order(sorted[i - 1]!, key) !== 0)
  return thirtyDigits(label, [new TextEncoder().encode(did), ...different])
}

// order is the lexicographic order of bytes.
function order(a: Uint8Array, b: Uint8Array): number {
  const at = a.findIndex((byte, i) => byte !== b[i])
  return at < 0 || at >= b.length ? a.length - b.length : a[at]! - b[at]!
}

/** The text that one device shows, for example as a QR code, and the other one scans. */
export function safetyNumberText({ version, digits }: SafetyNumber): string {
  return `mlsd-safety:${version}:${digits}`
}

/**
 * Reads the text of {@link safetyNumberText}, also one of a later version.
 *
 * @throws CodeError `NotASafetyNumber`
 */
export function parseSafetyNumber(text: string): SafetyNumber {
  const [, number = "", digits = ""] = /^mlsd-safety:([1-9][0-9]{0,2}):([0-9]+)$/.exec(text) ?? []
  const version = Number(number)
  if (version < 1 || version > 255 || (version === codeVersion && digits.length !== digitsOfNumber)) {
    throw new CodeError("NotASafetyNumber", "the text is not that of a safety number")
  }
  return { version, digits }
}

/** Compares two safety numbers, each as a whole. */
export function compareSafetyNumbers(own: SafetyNumber, scanned: SafetyNumber): SafetyComparison {
  if (own.version !== scanned.version) return "otherVersion"
  return own.digits === scanned.digits ? "same" : "differs"
}
