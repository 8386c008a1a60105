// Which devices an account lists: the account itself says so, and never the delivery service.

import { sha256Bytes } from "./bytes.js"
import type { Did } from "./ids.js"

/** What accounts say of themselves: their own PDS, which the DID document names. */
export interface Accounts {
  /**
   * Whether an account lists a device's signature key.
   *
   * @throws AccountAwayError if nobody can say now: the directory or the PDS is away or slow, or its answer
   *   proves nothing
   */
  lists(did: Did, key: Uint8Array, signal?: AbortSignal): Promise<boolean>
  /**
   * The keys of all devices that an account lists, in the order of {@link recordKeyOf}.
   *
   * @throws AccountAwayError
   */
  keys(did: Did, signal?: AbortSignal): Promise<Uint8Array[]>
  /**
   * All devices that an account lists, in the same order.
   *
   * @throws AccountAwayError
   */
  devices(did: Did, signal?: AbortSignal): Promise<ListedDevice[]>
  /**
   * Whether an account has ended for good: it was deleted at its PDS, or its DID is a tombstone. An account that
   * is deactivated or suspended can come back: it has not ended. `lists` and `keys` say nothing about an account
   * that has ended.
   *
   * @throws AccountAwayError
   */
  hasEnded(did: Did, signal?: AbortSignal): Promise<boolean>
  /**
   * Writes the record of this device into the own account's repository, if it is not there as it should be.
   * Idempotent.
   *
   * @throws XrpcError or NoAnswerError if the PDS does not take it
   */
  list(device: ListedDevice): Promise<void>
  /**
   * Takes a device's record away. Idempotent.
   *
   * @throws XrpcError or NoAnswerError if the PDS does not take it
   */
  unlist(key: Uint8Array): Promise<void>
}

/** What an account says of one of its devices. */
export interface ListedDevice {
  /** The public signature key, as in the leaves of the device. */
  readonly key: Uint8Array
  /** The MLS name of the key's cipher suite. */
  readonly cipherSuite: string
  /** What people call the device. Everybody can read it. Without a name, the record keeps the one that it has. */
  readonly name?: string
}

/** Nobody can say now what an account lists. */
export class AccountAwayError extends Error {
  override readonly name = "AccountAwayError"
  readonly code = "AccountAway"

  constructor(
    readonly did: Did,
    message: string,
    options?: ErrorOptions,
  ) {
    super(`${did}: ${message}`, options)
  }
}

const base32 = "abcdefghijklmnopqrstuvwxyz234567"

/**
 * The record key of a device's record: the base32 of the first 20 bytes of the key's SHA-256, in lower case. It is
 * derived from the signature key, so that a record cannot stand under the name of another key.
 */
export async function recordKeyOf(key: Uint8Array): Promise<string> {
  let [name, bits, count] = ["", 0, 0]
  for (const byte of (await sha256Bytes(key)).subarray(0, 20)) {
    bits = ((bits << 8) | byte) & 0xfff // at most 4 bits wait for the next byte
    for (count += 8; count >= 5; count -= 5) name += base32[(bits >> (count - 5)) & 31]
  }
  return name
}

/** What {@link MemoryAccounts} know of one account. */
export interface MemoryAccount {
  /** By record key. */
  readonly devices: Map<string, ListedDevice>
  away: boolean
  ended: boolean
}

/** Accounts that end with the process, for tests. Give the clients of all people the same map. */
export class MemoryAccounts implements Accounts {
  /** @param did the own account */
  constructor(
    private readonly did: Did,
    private readonly accounts = new Map<Did, MemoryAccount>(),
  ) {}

  async lists(did: Did, key: Uint8Array): Promise<boolean> {
    return this.reach(did).devices.has(await recordKeyOf(key))
  }

  async keys(did: Did): Promise<Uint8Array[]> {
    return (await this.devices(did)).map(({ key }) => key)
  }

  async devices(did: Did): Promise<ListedDevice[]> {
    return [...this.reach(did).devices].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, device]) => device)
  }

  async hasEnded(did: Did): Promise<boolean> {
    const account = this.account(did)
    if (account.away) throw new AccountAwayError(did, "the account is away")
    return account.ended
  }

  async list(device: ListedDevice): Promise<void> {
    const [name, { devices }] = [await recordKeyOf(device.key), this.account(this.did)]
    devices.set(name, { ...devices.get(name), ...device })
  }

  async unlist(key: Uint8Array): Promise<void> {
    await this.hide(this.did, key)
  }

  /** A fault: the PDS of an account is away, until `is` is false. */
  away(did: Did, is = true): void {
    this.account(did).away = is
  }

  /** A fault: a device's record is gone from an account. */
  async hide(did: Did, key: Uint8Array): Promise<void> {
    this.account(did).devices.delete(await recordKeyOf(key))
  }

  /** An account ends. */
  end(did: Did): void {
    this.account(did).ended = true
  }

  private account(did: Did): MemoryAccount {
    const account = this.accounts.get(did) ?? { devices: new Map(), away: false, ended: false }
    this.accounts.set(did, account)
    return account
  }

  private reach(did: Did): MemoryAccount {
    const account = this.account(did)
    if (account.away || account.ended) throw new AccountAwayError(did, account.away ? "the account is away" : "the account has ended")
    return account
  }
}
