// The code of a group at one epoch: the same for all who are in the same group.

import { CodeError, codeVersion, thirtyDigits } from "./digits.js"
import type { Group } from "./mls.js"

const label = "mlsd group code"

/** The lengths of the hashes of cipher suites: SHA-256, SHA-384 and SHA-512. */
const hashLengths: readonly number[] = [32, 48, 64]

/** The code of a group at one epoch. Each commit makes another one. */
export interface GroupCode {
  /** How it is made. Codes of two versions cannot be compared. */
  readonly version: number
  /** Codes of two epochs differ. */
  readonly epoch: number
  /** 30 decimal digits. People compare all of them. */
  readonly digits: string
}

/**
 * Makes the code of a group.
 *
 * @throws CodeError `AuthenticatorLength`
 */
export async function groupCode({ epoch, authenticator }: Pick<Group, "epoch" | "authenticator">): Promise<GroupCode> {
  if (!hashLengths.includes(authenticator.length)) {
    throw new CodeError("AuthenticatorLength", `an epoch_authenticator has ${authenticator.length} bytes`)
  }
  return { version: codeVersion, epoch, digits: await thirtyDigits(label, [authenticator]) }
}
