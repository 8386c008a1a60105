// The accounts of everybody in a test, and the devices that they list.

import { type Accounts, type MemoryAccount, MemoryAccounts } from "../../src/accounts.js"
import type { Did } from "../../src/ids.js"

const everyone = new Map<Did, MemoryAccount>()

/** The accounts as a person of the test has them. */
export function accountsOf(own: Did): MemoryAccounts {
  return new MemoryAccounts(own, everyone)
}

/** Accounts that list every device, for tests of more than one process. */
export function gullible(own: Did): Accounts {
  const accounts = accountsOf(own)
  accounts.lists = async () => true
  return accounts
}
