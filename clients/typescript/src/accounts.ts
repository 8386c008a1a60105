import type { Did } from "./ids.js"

export interface Accounts {
  lists(did: Did, key: Uint8Array, signal?: AbortSignal): Promise<boolean>
  keys(did: Did, signal?: AbortSignal): Promise<Uint8Array[]>
  hasEnded(did: Did, signal?: AbortSignal): Promise<boolean>
  list(device: ListedDevice): Promise<void>
  unlist(key: Uint8Array): Promise<void>
}
export interface ListedDevice { readonly key: Uint8Array; readonly cipherSuite: string; readonly name?: string }
export class AccountAwayError extends Error {
  override readonly name = "AccountAwayError"
  constructor(readonly did: string, why: string, options?: ErrorOptions) { super(`${did}: ${why}`, options) }
}
