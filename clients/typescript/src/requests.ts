// Convos that wait for their person's answer: requests at the person's own service (docs/CONSENT.md), and
// invitations to convos of other services (docs/NETWORK.md). Until the person accepts, nothing of them is
// fetched, joined or confirmed.

import { type Api, type Output, withIdempotencyKey } from "./api.js"
import { ContraryError } from "./binding.js"
import type { Core } from "./core.js"
import { DiscardedError, errorName, isRefusal, UnknownConvoError } from "./errors.js"
import type { StreamEvent } from "./events.js"
import type { ConvoId, Did } from "./ids.js"
import { deviceIdOf } from "./keypackages.js"
import type { LexValue } from "./json.js"
import { once } from "./locks.js"
import type { Log } from "./log.js"
import type { Added, Outbox, Write } from "./outbox.js"
import { type ConvoRequest, names, requestQueue, type SavedRequest } from "./records.js"
import { type Changes, getAll, put } from "./store.js"
import { WelcomeLostError } from "./welcome.js"
import type { AnswerContent } from "./write-requests.js"
import * as mls from "#lexicons"

type ConvoView = Output<typeof mls.getConvos.main>["conversations"][number]
type Invitation = Pick<Output<typeof mls.getInvitations.main>["invitations"][number], "service" | "convoId" | "inviter" | "state" | "createdAt">

/** A request that was accepted. */
export interface Accepted {
  /**
   * Resolves when this device is in the convo. Rejects if it cannot join. If the convo's service is away,
   * that takes as long as it is, also in later lives of the client: nobody need wait here.
   */
  readonly joined: Promise<void>
}

/** What requests ask of the client. */
export interface RequestsParts {
  readonly log: Log
  readonly outbox: Outbox
  /** Enters a convo of this person's own service, if the device is not in it. */
  enter(convo: ConvoId): Promise<void>
  /** Joins a convo of another service, unless something else puts this device into it. */
  join(convo: ConvoId, isIn: () => Promise<boolean>): Promise<void>
  /** This device is in a convo of another service. */
  entered(service: Did): void
  /** This person was invited anew: what this device has of a convo is of a membership that has ended. */
  ended(convo: ConvoId): Promise<void>
  later(done: Promise<void>): void
}

/** The requests of a device. */
export class Requests {
  private readonly entering = new Map<string, Promise<void>>()

  private constructor(
    private readonly core: Core,
    private readonly parts: RequestsParts,
    private readonly known: Map<string, SavedRequest>,
  ) {}

  static async open(core: Core, parts: RequestsParts): Promise<Requests> {
    const all = await getAll<SavedRequest>(core.store, names.requests)
    return new Requests(core, parts, new Map(all.map((one) => [one.request.convoId, one])))
  }

  /** Goes on with the answers of earlier lives. */
  resume(): void {
    for (const write of this.parts.outbox.pending()) {
      if (write.kind === "decline") this.parts.later(this.settle({ write, settled: this.parts.outbox.settled(write) }))
    }
    for (const { request, answer } of this.known.values()) {
      if (answer === "accepted") this.parts.later(this.enter(request.convoId))
    }
  }

  /** What waits, the newest first. */
  list(): ConvoRequest[] {
    const waiting = [...this.known.values()].filter(({ request: { convoId }, answer }) => answer === undefined && !this.isPlaced(convoId))
    return waiting.map(({ request }) => request).sort((a, b) => (a.since < b.since ? 1 : -1))
  }

  /** Reports whether a convo waits for an answer, or its answer is not done. */
  has(convo: ConvoId): boolean {
    return this.known.has(convo)
  }

  /** Reports whether a convo waits for an answer, or was declined: this device must not enter it. */
  waits(convo: ConvoId): boolean {
    const saved = this.known.get(convo)
    return saved !== undefined && saved.answer !== "accepted"
  }

  /** Reports whether a convo was accepted, and this device is on its way into it. */
  isAccepted(convo: ConvoId): boolean {
    return this.known.get(convo)?.answer === "accepted" || this.entering.has(convo)
  }

  /** Waits until this device has entered a convo that was accepted, or could not. */
  async settled(convo: ConvoId): Promise<void> {
    await this.entering.get(convo)?.catch(() => {})
  }

  // What services say

  /** Reads what waits at the person's own service, and returns its convos that wait for nothing. */
  async read(): Promise<ConvoId[]> {
    const { services } = this.core
    const before = [...this.known.values()].filter(({ answer }) => answer === undefined)
    const waiting = new Set<string>()
    const convos: ConvoId[] = []
    for (const view of await viewsAt(this.core.api)) {
      if (!view.request) convos.push(view.id as ConvoId)
      else if (waiting.add(view.id)) await this.note(requestOf(view, this.core.did))
    }
    for (const one of services.home === undefined ? [] : await this.invitationsAt(this.core.api)) {
      if (one.state === "open" && waiting.add(one.convoId)) await this.note(invitationOf(one))
    }
    for (const { request: { convoId, service } } of before) {
      const isElsewhere = service !== undefined && services.former.includes(service)
      if (!waiting.has(convoId) && !isElsewhere) await this.forget(convoId)
    }
    return convos
  }

  /** Reads what waits at a former home, and returns its convos that wait for nothing. */
  async readAt(former: Did): Promise<ConvoId[]> {
    const api = this.core.services.at(former)
    const views = await viewsAt(api)
    for (const view of views) if (view.request) await this.note({ ...requestOf(view, this.core.did), service: former })
    for (const one of await this.invitationsAt(api)) if (one.state === "open") await this.note(invitationOf(one))
    return views.filter(({ request }) => !request).map(({ id }) => id as ConvoId)
  }

  /**
   * Takes what an event of the person's own service says. `waits`: its convo waits for an answer. `accepted`:
   * it has waited, and another device of the person has accepted it.
   */
  async take({ type, body }: StreamEvent): Promise<"waits" | "accepted" | undefined> {
    if (type === "invitationEvent" || type === "keyPackagesEvent" || type === "arrivalEvent") return undefined
    const { convoId, request } = type === "messageEvent" ? { ...body, convoId: body.message.convoId } : body
    const convo = convoId as ConvoId
    if (type === "membershipEvent" && body.did === this.core.did && body.change !== "joined") {
      if (this.waits(convo)) await this.forget(convo)
      return undefined
    }
    if (this.isAccepted(convo)) return undefined
    const waited = this.waits(convo)
    if (!request) {
      if (!waited || this.known.get(convo)?.answer !== undefined) return waited ? "waits" : undefined
      await this.forget(convo)
      return "accepted"
    }
    const isInvitation = type === "welcomeEvent" || (type === "membershipEvent" && body.did === this.core.did)
    if (!waited && isInvitation) return this.ask(convo)
    return waited ? "waits" : undefined
  }

  // ask asks what the convo of an event is now: the event can be an old one.
  private async ask(convo: ConvoId): Promise<"waits" | undefined> {
    try {
      const { convo: view } = await this.core.api.query(mls.getConvo.main, { convoId: convo })
      if (!view.request) return undefined
      await this.note(requestOf(view, this.core.did))
    } catch (err) {
      if (!isRefusal(err)) throw err // it has ended
    }
    return "waits"
  }

  /** Takes what an event says of an invitation to a convo of another service. */
  async takeInvitation(body: Omit<Invitation, "state"> & { readonly state?: string }): Promise<void> {
    const { state = "open" } = body
    const convo = body.convoId as ConvoId
    const thread = await this.parts.log.thread(convo)
    if (thread !== undefined && !thread.left) return this.acceptSuccessor(convo) // this device is in it
    if (state === "open") await this.note(invitationOf({ ...body, state }))
    else if (this.known.get(convo)?.request.service === body.service) await this.forget(convo)
  }

  private async invitationsAt(api: Api): Promise<Invitation[]> {
    const deviceId = await deviceIdOf(this.core)
    const all: Invitation[] = []
    for (let cursor: string | undefined; ; ) {
      const page = await api.query(mls.getInvitations.main, { ...(cursor !== undefined && { cursor }) })
      all.push(...page.invitations.filter((one) => one.deviceId === deviceId))
      cursor = page.cursor
      if (cursor === undefined) return all
    }
  }

  // note keeps a request. The app hears of it once. No service speaks for the convos of another one.
  private async note(request: ConvoRequest): Promise<void> {
    const { convoId, service } = request
    const saved = this.known.get(convoId)
    const thread = service === undefined ? undefined : await this.parts.log.thread(convoId)
    if (thread !== undefined && !thread.left) {
      if (this.core.services.of(convoId) !== service) return
      await this.parts.ended(convoId)
    }
    if (saved !== undefined ? saved.answer !== undefined || saved.request.service !== service : this.isPlaced(convoId)) return
    const changes: Changes = new Map()
    if (saved === undefined) this.core.news.add(changes, { convo: convoId, request })
    put(changes, names.request(convoId), { request } satisfies SavedRequest)
    await this.core.store.write(changes)
    this.known.set(convoId, { request })
    await this.core.news.deliver()
  }

  private async forget(convo: ConvoId): Promise<void> {
    await this.core.store.write(new Map([[names.request(convo), undefined]]))
    this.known.delete(convo)
  }

  private isPlaced(convo: ConvoId): boolean {
    return this.core.services.of(convo) !== undefined
  }

  // What the person says

  /** See {@link Client.accept}. */
  async accept(convo: ConvoId): Promise<Accepted> {
    const saved = this.known.get(convo)
    if (saved?.answer === "declined" || (saved === undefined && !this.entering.has(convo))) {
      const thread = await this.parts.log.thread(convo)
      if (thread === undefined || thread.left) throw new UnknownConvoError(`convo ${convo} waits for no answer`)
      return { joined: Promise.resolve() }
    }
    if (saved?.request.service !== undefined) return this.acceptElsewhere(saved.request, saved.request.service)
    if (saved?.answer === undefined && saved !== undefined) await this.answer(saved, "accepted", "accept", { convoId: convo })
    const joined = this.enter(convo)
    this.parts.later(joined)
    return { joined }
  }

  /** See {@link Client.decline}. */
  async decline(convo: ConvoId, block: boolean): Promise<void> {
    const saved = this.known.get(convo)
    if (saved === undefined || saved.answer !== undefined) throw new UnknownConvoError(`convo ${convo} waits for no answer`)
    if (saved.request.service !== undefined) return this.declineElsewhere(saved.request, saved.request.service)
    await this.settle(await this.answer(saved, "declined", "decline", { convoId: convo, block }))
  }

  // answer stores an answer in one step with the write that sends it.
  private async answer(saved: SavedRequest, answer: "accepted" | "declined", kind: string, content: AnswerContent): Promise<Added> {
    const { convoId } = content
    const answered: SavedRequest = { ...saved, answer }
    const changes: Changes = new Map()
    put(changes, names.request(convoId), answered)
    this.known.set(convoId, answered)
    return this.parts.outbox.add(requestQueue(convoId), kind, content as unknown as LexValue, changes)
  }

  // settle waits for the service's word on an answer. After a refusal the request waits again.
  private async settle({ write, settled }: Added): Promise<void> {
    const { convoId } = write.content as unknown as AnswerContent
    try {
      await settled
      if (write.kind === "decline") this.known.delete(convoId)
    } catch (err) {
      const saved = this.known.get(convoId)
      if (saved !== undefined) this.known.set(convoId, { request: saved.request })
      if (!(err instanceof DiscardedError)) await this.parts.outbox.discard(write.id)
      throw err
    }
  }

  /** Forgets an answer whose convo the service does not have any more. */
  async end(write: Write): Promise<void> {
    const { convoId } = write.content as unknown as AnswerContent
    await this.parts.outbox.discard(write.id)
    await this.forget(convoId)
  }

  /** Enters the convos that were accepted, as far as that is not done. */
  async enterAccepted(): Promise<void> {
    for (const { request: { convoId }, answer } of [...this.known.values()]) {
      if (answer === "accepted") await this.enter(convoId).catch(ignoreIfLost)
    }
  }

  // enter enters a convo of the own service, once that knows that the person has accepted. A crash repeats it.
  private enter(convo: ConvoId): Promise<void> {
    return once(this.entering, convo, async () => {
      const { outbox } = this.parts
      const write = outbox.pending(requestQueue(convo)).find(({ kind }) => kind === "accept")
      if (write !== undefined) await this.settle({ write, settled: outbox.settled(write) })
      try {
        await this.parts.enter(convo)
      } catch (err) {
        if (isLost(err)) await this.forget(convo)
        throw err
      }
      await this.forget(convo)
    })
  }

  // Convos of other services

  private async acceptElsewhere({ convoId: convo, byInvitation }: ConvoRequest, at: Did): Promise<Accepted> {
    const { services } = this.core
    const toNewHome = at === services.home && services.former.length > 0 // a former home has the invitation
    if (!toNewHome) await services.place({ convoId: convo, service: at })
    if (byInvitation) await this.answerInvitation(mls.acceptInvitation.main, convo, at)
    await this.forget(convo)
    const joined = this.enterElsewhere(convo, at)
    this.parts.later(joined)
    return { joined }
  }

  private async declineElsewhere({ convoId: convo, byInvitation }: ConvoRequest, at: Did): Promise<void> {
    await this.core.services.place({ convoId: convo, service: at, declined: true })
    if (byInvitation) await this.answerInvitation(mls.declineInvitation.main, convo, at)
    await this.forget(convo)
    this.parts.later(this.refuse(convo))
  }

  /** Enters a convo of another service that the person has accepted. A crash repeats it. */
  enterElsewhere(convo: ConvoId, service: Did): Promise<void> {
    return once(this.entering, convo, async () => {
      const { api, services } = this.core
      const thread = await this.parts.log.thread(convo)
      try {
        if (thread === undefined || thread.left || thread.stuck) {
          await api.procedure(mls.acceptConvo.main, { convoId: convo })
          const isIn = thread === undefined ? async () => (await this.parts.log.thread(convo)) !== undefined : async () => false
          await this.parts.join(convo, isIn)
        }
      } catch (err) {
        if (isRefusal(err) && thread === undefined) await services.forget(convo) // it has ended
        throw err
      }
      this.parts.entered(service)
    })
  }

  /** Tells a convo's service that the person does not want to be in it. A crash repeats it. */
  async refuse(convo: ConvoId): Promise<void> {
    try {
      await this.core.api.procedure(mls.leaveConvo.main, withIdempotencyKey({ convoId: convo }, this.core.clock))
    } catch (err) {
      if (!isRefusal(err)) throw err // it has ended
    }
    await this.core.services.forget(convo)
  }

  /** Accepts the invitation to a successor at home. The reset has put the person on its roster. */
  async acceptSuccessor(convo: ConvoId): Promise<void> {
    const service = this.core.services.of(convo)
    if (service === undefined) return
    await this.answerInvitation(mls.acceptInvitation.main, convo, service).catch((err: unknown) => {
      if (!isRefusal(err)) throw err // there is none yet, or it is accepted
    })
  }

  // answerInvitation tells the person's own service what the person says. A former one can have the invitation.
  private async answerInvitation(
    method: typeof mls.acceptInvitation.main | typeof mls.declineInvitation.main, convo: ConvoId, service: Did,
  ): Promise<void> {
    const { services, clock } = this.core
    const input = withIdempotencyKey({ service, convoId: convo }, clock)
    let refused: unknown
    for (const at of [undefined, ...services.former]) {
      try {
        await services.at(at).procedure(method, input)
        return
      } catch (err) {
        refused = err
        if (errorName(err) !== "InvitationNotFound") break
      }
    }
    if (isRefusal(refused) && (await this.parts.log.thread(convo)) === undefined) {
      await services.forget(convo)
      await this.forget(convo)
    }
    throw refused
  }
}

/** Lists the convos of a person at a service. */
async function viewsAt(api: Api): Promise<ConvoView[]> {
  const all: ConvoView[] = []
  for (let cursor: string | undefined; ; ) {
    const page = await api.query(mls.getConvos.main, { ...(cursor !== undefined && { cursor }) })
    all.push(...page.conversations)
    cursor = page.cursor
    if (cursor === undefined) return all
  }
}

function requestOf({ id, invitedBy, creator, members, metadata, createdAt }: ConvoView, own: Did): ConvoRequest {
  const joinedAt = members.find(({ did }) => did === own)?.joinedAt
  return {
    convoId: id as ConvoId, invitedBy: (invitedBy ?? creator) as Did, people: members.map(({ did }) => did as Did),
    since: joinedAt ?? createdAt, ...(metadata?.name !== undefined && { name: metadata.name }),
  }
}

function invitationOf({ convoId, inviter, service, createdAt }: Invitation): ConvoRequest {
  return { convoId: convoId as ConvoId, invitedBy: inviter as Did, people: [inviter as Did], since: createdAt, service: service as Did, byInvitation: true }
}

function isLost(err: unknown): boolean {
  return err instanceof WelcomeLostError || err instanceof ContraryError || isRefusal(err)
}

function ignoreIfLost(err: unknown): void {
  if (!isLost(err)) throw err
}
