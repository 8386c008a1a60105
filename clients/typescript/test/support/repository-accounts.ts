// Accounts whose repositories mlsd-dev serves: a client asks them as it asks real PDSes.

import { AtprotoAccounts } from "../../src/accounts-atproto.js"
import type { Clock } from "../../src/clock.js"
import type { Did } from "../../src/ids.js"
import { agentOf, serverURL } from "./dev.js"

/** The accounts as a person has them, and how often their client asks. */
export class CountedAccounts {
  readonly accounts: AtprotoAccounts
  /** What was asked, in order: methods, or `document`. */
  asked: string[] = []
  /** So many requests were under way at once at most. */
  most = 0
  private running = 0

  constructor(did: Did, clock: Clock) {
    this.accounts = new AtprotoAccounts({
      did, agent: agentOf(did), plcDirectory: serverURL(), clock, timeout: 3_600_000, fetch: (input, init) => this.fetch(input, init),
    })
  }

  private async fetch(input: string, init: RequestInit): Promise<Response> {
    const { pathname } = new URL(input)
    this.asked.push(pathname.startsWith("/xrpc/") ? pathname.slice("/xrpc/".length) : "document")
    this.most = Math.max(this.most, ++this.running)
    try {
      return await fetch(input, init)
    } finally {
      this.running--
    }
  }
}
