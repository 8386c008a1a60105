// What a verifier of logs finds: docs/TRANSPARENCY.md.

import { keyHashText } from "./log-head.js"

/** What a verifier has found. `sentence` says it, and `evidence` has signed heads. */
export type Finding = LieFinding | WentBackFinding | UnsignedFinding | OtherKeyFinding | OtherSenderFinding | ContraryFinding

/** The server has lied. It stays. */
export interface LieFinding {
  readonly kind: "lie"
  readonly sentence: string
  readonly evidence: readonly string[]
  /** When it was found, in milliseconds of Unix time. */
  readonly at: number
}

/**
 * The server's database went back to an earlier state: a restore, or a failover that lost writes. It is
 * no lie, because the head says so itself. But a server that shows members different logs could give
 * each of them generations of its own: tell the user, who asks the operator.
 */
export interface WentBackFinding {
  readonly kind: "wentBack"
  readonly sentence: string
  /** The last head before, if there was one, and the first one after. */
  readonly evidence: readonly string[]
  /** Entries: what the device or the member had seen, and what the new head has. */
  readonly from: number
  readonly to: number
  /** The first entries that both have, as far as the device can tell; 0 for a member's head. */
  readonly common: number
  readonly generation: number
  /** Who had seen the log of before, unless it was the device itself. */
  readonly member?: string
}

/**
 * The service goes on acknowledging this device's entries, and gives no head that has them. It can be
 * at fault and not lie. It ends with the next head; checks go on.
 */
export interface UnsignedFinding {
  readonly kind: "unsigned"
  readonly sentence: string
  /** The newest head that the device has checked, if there is one. */
  readonly evidence: readonly string[]
  /** The newest entry that was acknowledged, and how many entries the newest head has. */
  readonly acknowledged: number
  readonly signed: number
}

/**
 * A member has a head that is signed in the service's name with a key that the service has not given to
 * this device. Either the member has made it up, or the server gives members keys of their own. Only
 * the members can find out which, by comparing the keys.
 */
export interface OtherKeyFinding {
  readonly kind: "otherKey"
  readonly sentence: string
  /** The member's text, and the newest head that the device has checked. */
  readonly evidence: readonly string[]
  readonly member: string
  readonly keyHash: number
  /** The member has sent the key, and the head is signed with it. */
  readonly signed: boolean
}

/**
 * A member was shown another sender of entries than this device was: a tombstone, which has no salt that
 * binds it. Either the member has made it up, or the server shows one tag as an account's to one of
 * them and as a tombstone to the other.
 */
export interface OtherSenderFinding {
  readonly kind: "otherSender"
  readonly sentence: string
  readonly evidence: readonly string[]
  readonly member: string
  readonly mine: string
  readonly theirs: string
  readonly tag: string
}

/**
 * The service says something of a group that MLS does not show, or shows otherwise. The client has not done
 * what it asks for.
 */
export interface ContraryFinding {
  readonly kind: "contrary"
  readonly sentence: string
  readonly evidence: readonly string[]
  /** What was not believed: a KeyPackage, a Welcome, a GroupInfo, the successor of a reset, a removal, or a sender's name. */
  readonly what: "keyPackage" | "welcome" | "groupInfo" | "successor" | "removal" | "sender"
}

/** A finding, as a verifier throws it. */
export class FindingError extends Error {
  override readonly name = "FindingError"

  constructor(readonly finding: Finding) {
    super(finding.sentence)
  }
}

/**
 * What was shown does not fit a signed head. The device reads the entries behind `size` once more from
 * the server. If they do not fit again, that is a lie.
 */
export class ReadAgainError extends Error {
  override readonly name = "ReadAgainError"

  constructor() {
    super("entries do not fit the signed head; read them again")
  }
}

/** What a member has sent is no head that the service has signed. It says nothing of the server. */
export class NotSignedError extends Error {
  override readonly name = "NotSignedError"
  readonly code = "NotSigned"

  constructor(why: string) {
    super(`the member's head is not signed by the service: ${why}`)
  }
}

/** Makes the finding that the server went back. */
export function wentBack({ why, ...of }: Omit<WentBackFinding, "kind" | "sentence"> & { why?: string }): WentBackFinding {
  const { from, to, common, generation, member } = of
  const because = why === undefined ? "" : `: ${why}`
  const sentence = member === undefined
    ? `the server went back from ${from} entries to ${to}; the first ${common} are the same (generation ${generation})${because}`
    : `the server went back, or has two logs: ${member} has a head of ${from} entries of an earlier generation, ` +
      `and the log does not begin with them (generation ${generation})`
  return { kind: "wentBack", sentence, ...of }
}

/** Makes the finding of entries that no head has, after a time in words. */
export function unsigned(of: Omit<UnsignedFinding, "kind" | "sentence">, time: string, why: string): UnsignedFinding {
  const { acknowledged, signed } = of
  const sentence = `the server has acknowledged my entry ${acknowledged}, and for ${time} given no head of more than ${signed} entries (${why})`
  return { kind: "unsigned", sentence, ...of }
}

/** Makes the finding of a head with a key that is not known. */
export function otherKey(of: Omit<OtherKeyFinding, "kind" | "sentence">): OtherKeyFinding {
  const key = keyHashText(of.keyHash)
  const sentence = `${of.member} has a head that is signed with another key of the service (${key}): one of them has made it up`
  return { kind: "otherKey", sentence, ...of }
}

/** Makes the finding of another sender. */
export function otherSender(of: Omit<OtherSenderFinding, "kind" | "sentence" | "evidence">): OtherSenderFinding {
  const sentence = `${of.member} was shown entries as by ${of.theirs} that I was shown as by ${of.mine}, or has made it up`
  return { kind: "otherSender", sentence, evidence: [], ...of }
}
