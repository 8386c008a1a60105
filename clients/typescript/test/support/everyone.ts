// The accounts of everybody in a test, and the devices that they list.

import type { Accounts } from "../../src/accounts.js"
import { fromHex, hex } from "../../src/bytes.js"
import type { Did } from "../../src/ids.js"

const listed = new Map<string, Set<string>>()

/** The accounts as a person of the test has them. */
export function accountsOf(own: string): Accounts {
  const of = (did: string) => listed.get(did) ?? listed.set(did, new Set()).get(did)!
  return {
    lists: async (did, key) => of(did).has(hex(key)),
    keys: async (did: Did) => [...of(did)].map(fromHex),
    hasEnded: async () => false,
    list: async ({ key }) => void of(own).add(hex(key)),
    unlist: async (key) => void of(own).delete(hex(key)),
  }
}

/** Accounts that list every device, for tests of more than one process. */
export function gullible(own: string): Accounts {
  return { ...accountsOf(own), lists: async () => true }
}
