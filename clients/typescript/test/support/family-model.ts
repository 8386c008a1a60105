// What a family knows of itself, without a client and without a server: who is in which convo, who waits for an
// answer, who is an admin, who has blocked whom, and what was said.

import type { ConvoId, Did } from "../../src/ids.js"

/** A membership. */
export interface Membership {
  /** Set while the person has not accepted. */
  request: boolean
  readonly invitedBy: Did
  /** The act by which it began. */
  readonly since: number
}

/** A message. */
export interface Said {
  readonly text: string
  readonly by: Did
  /** The act that said it. */
  readonly act: number
  /** Whether it must arrive. Otherwise a kill has ended the act, and it may have got lost. */
  certain: boolean
  /** Whether the service has it. */
  arrived: boolean
}

/** A convo. */
export class Convo {
  readonly members = new Map<Did, Membership>()
  readonly admins = new Set<Did>()
  readonly said: Said[] = []
  /** When each person has left last, by act. */
  readonly left = new Map<Did, number>()
  /** People of whom a kill, or an account without KeyPackages, leaves open whether they are in it. */
  readonly open = new Map<Did, Did>()
  /** Whether a kill leaves open who is an admin. */
  openAdmins = false

  constructor(
    readonly id: ConvoId,
    readonly name: string,
  ) {}

  hasAccepted(did: Did): boolean {
    return this.members.get(did)?.request === false
  }

  /** Takes a person out. Who has been there longest is admin after the last one. */
  leave(did: Did, act: number): void {
    if (!this.members.delete(did)) return
    this.left.set(did, act)
    for (const said of this.said) if (said.by === did && !said.arrived) said.certain = false // it may not be sent any more
    this.admins.delete(did)
    this.handOver()
  }

  handOver(): void {
    if (this.admins.size > 0) return
    const rank = ([did, { request, since }]: [Did, Membership]) => `${request ? 1 : 0} ${String(since).padStart(9, "0")} ${did}`
    const [heir] = [...this.members].sort((a, b) => (rank(a) < rank(b) ? -1 : 1))
    if (heir !== undefined) this.admins.add(heir[0])
  }
}

/** All convos of a family. */
export class FamilyModel {
  readonly convos = new Map<ConvoId, Convo>()
  private readonly blocks = new Set<string>()
  private readonly ended = new Set<Did>()

  hasEnded(did: Did): boolean {
    return this.ended.has(did)
  }

  blocked(by: Did, whom: Did): boolean {
    return this.blocks.has(`${by} ${whom}`)
  }

  /** Whether two people share a convo that both have accepted. */
  share(a: Did, b: Did): boolean {
    return [...this.convos.values()].some((convo) => convo.hasAccepted(a) && convo.hasAccepted(b))
  }

  /** Whether an invitation waits for its answer. */
  isRequest(by: Did, whom: Did, company: Iterable<Did>): boolean {
    return !this.share(by, whom) || [...company].some((one) => this.blocked(whom, one))
  }

  create(id: ConvoId, name: string, by: Did, others: readonly Did[], act: number): Convo {
    const convo = new Convo(id, name)
    const company = [by, ...others]
    const members = others.map((did): [Did, Membership] => [did, { request: this.isRequest(by, did, company), invitedBy: by, since: act }])
    convo.members.set(by, { request: false, invitedBy: by, since: act })
    convo.admins.add(by)
    for (const [did, membership] of members) convo.members.set(did, membership)
    this.convos.set(id, convo)
    return convo
  }

  add(convo: Convo, by: Did, did: Did, act: number): void {
    if (convo.members.has(did)) return
    convo.members.set(did, { request: this.isRequest(by, did, convo.members.keys()), invitedBy: by, since: act })
  }

  /** Blocks somebody, whose open invitations are declined by it. */
  block(by: Did, whom: Did, act: number): void {
    this.blocks.add(`${by} ${whom}`)
    for (const convo of this.convos.values()) {
      const membership = convo.members.get(by)
      if (membership?.request && membership.invitedBy === whom) convo.leave(by, act)
    }
  }

  unblock(by: Did, whom: Did): void {
    this.blocks.delete(`${by} ${whom}`)
  }

  blocksOf(by: Did): Did[] {
    return [...this.blocks].map((pair) => pair.split(" ") as [Did, Did]).filter(([one]) => one === by).map(([, whom]) => whom)
  }

  /** An account ends. */
  end(did: Did, act: number): void {
    this.ended.add(did)
    for (const convo of this.convos.values()) convo.leave(did, act)
  }
}
