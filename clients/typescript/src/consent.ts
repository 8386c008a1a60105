// Who may invite a person: docs/CONSENT.md.

import { withIdempotencyKey } from "./api.js"
import type { Core } from "./core.js"
import type { Did } from "./ids.js"
import * as mls from "#lexicons"

/**
 * Who may invite a person: `everyone`, of whom those who share no convo with the person send requests; `shared`,
 * who shares a convo with the person; or `nobody`.
 */
export type InvitationPolicy = "everyone" | "shared" | "nobody"

/** The blocks and the policy of a person at its own service, which has its KeyPackages. */
export class Consent {
  constructor(private readonly core: Core) {}

  async policy(): Promise<InvitationPolicy> {
    const { policy } = await this.core.services.at(undefined).query(mls.getInvitationPolicy.main, {})
    return policy as InvitationPolicy
  }

  async setPolicy(policy: InvitationPolicy, service?: Did): Promise<void> {
    const { clock, services } = this.core
    await services.at(service).procedure(mls.setInvitationPolicy.main, withIdempotencyKey({ policy }, clock))
  }

  /** The blocked people, in the order of their DIDs. */
  async blocks(): Promise<Did[]> {
    const all: Did[] = []
    for (let cursor: string | undefined; ; ) {
      const page = await this.core.services.at(undefined).query(mls.getBlocks.main, { ...(cursor !== undefined && { cursor }) })
      all.push(...page.blocks.map(({ did }) => did as Did))
      cursor = page.cursor
      if (cursor === undefined) return all
    }
  }

  async block(did: Did, service?: Did): Promise<void> {
    const { clock, services } = this.core
    await services.at(service).procedure(mls.blockActor.main, withIdempotencyKey({ did }, clock))
  }

  async unblock(did: Did, service?: Did): Promise<void> {
    const { clock, services } = this.core
    await services.at(service).procedure(mls.unblockActor.main, withIdempotencyKey({ did }, clock))
  }
}
