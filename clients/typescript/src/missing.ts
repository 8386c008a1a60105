// People who could not be invited yet, because they have no KeyPackage that can be used. They are invited later.

import { hex } from "./bytes.js"
import type { Core } from "./core.js"
import { idLength } from "./envelope.js"
import type { ConvoId, Did } from "./ids.js"
import { DiscardedError } from "./errors.js"
import type { LexValue } from "./json.js"
import { once } from "./locks.js"
import { didOf, type Group } from "./mls.js"
import type { Outbox } from "./outbox.js"
import { names } from "./records.js"
import { type Changes, get, getAll, put } from "./store.js"
import type { AddContent } from "./write-commits.js"

/** A person who could not be invited yet. */
export interface Missing {
  readonly did: Did
  /** Since when, in milliseconds of Unix time. */
  readonly since: number
}

/** The people who are missing in a convo. */
export interface SavedMissing {
  readonly convoId: ConvoId
  readonly people: readonly Missing[]
  readonly tries: number
  /** When they are tried again. */
  readonly next: number
}

/** The first wait before another try, and the longest, in milliseconds. */
const firstWait = 60_000
const longestWait = 6 * 3_600_000
/** So long somebody is tried. */
const triedFor = 30 * 24 * 3_600_000

/** Adds to changes whom an invitation has left out, and that the others are missing no more. The app hears of new ones. */
export async function leave(core: Core, convo: ConvoId, invited: readonly Did[], leftOut: readonly Did[], changes: Changes): Promise<void> {
  const saved = await get<SavedMissing>(core.store, names.missing(convo))
  const now = core.clock.now()
  const before = (saved?.people ?? []).filter(({ did, since }) => (!invited.includes(did) || leftOut.includes(did)) && now - since < triedFor)
  const added = leftOut.filter((did) => before.every((one) => one.did !== did) && saved?.people.every((one) => one.did !== did) !== false)
  const people = [...before, ...added.map((did): Missing => ({ did, since: now }))]
  const tries = added.length > 0 ? 0 : (saved?.tries ?? 0)
  const next = added.length > 0 || saved === undefined ? now + firstWait : saved.next
  if (people.length > 0) put(changes, names.missing(convo), { convoId: convo, people, tries, next } satisfies SavedMissing)
  else if (saved !== undefined) changes.set(names.missing(convo), undefined)
  if (added.length > 0) core.news.add(changes, { convo, missing: added })
}

/** Invites people later who could not be invited. */
export class LaterInvitations {
  private readonly inviting = new Map<string, Promise<void>>()
  private wake = new AbortController()

  constructor(
    private readonly core: Core,
    private readonly outbox: Outbox,
    private readonly signal: AbortSignal,
    private readonly group: (convo: ConvoId) => Promise<Group | undefined>,
  ) {}

  /** Who is missing in a convo. */
  async in(convo: ConvoId): Promise<Missing[]> {
    const group = await this.group(convo)
    const people = (await get<SavedMissing>(this.core.store, names.missing(convo)))?.people ?? []
    return people.filter(({ did }) => !group?.members.some(({ identity }) => didOf(identity) === did))
  }

  /** Looks again for whom it is time. */
  look(): void {
    this.wake.abort()
  }

  /** Invites whoever is missing, each when it is time, until the client is closed. */
  async run(): Promise<void> {
    while (!this.signal.aborted) {
      this.wake = new AbortController()
      const next = await this.inviteAll()
      if (this.signal.aborted) return
      await this.core.clock.sleep(Math.min(next - this.core.clock.now(), longestWait), AbortSignal.any([this.signal, this.wake.signal]))
    }
  }

  // inviteAll invites whom it is time for, and returns when it is time for the next.
  private async inviteAll(): Promise<number> {
    let next = this.core.clock.now() + longestWait
    for (const saved of await getAll<SavedMissing>(this.core.store, names.missings)) {
      if (saved.next <= this.core.clock.now()) void once(this.inviting, saved.convoId, () => this.invite(saved))
      else next = Math.min(next, saved.next)
    }
    return next
  }

  private async invite({ convoId, tries, ...saved }: SavedMissing): Promise<void> {
    const people = (await this.in(convoId)).map(({ did }) => did)
    const changes: Changes = new Map()
    if (people.length === 0 || (await this.group(convoId)) === undefined) {
      changes.set(names.missing(convoId), undefined)
      return this.core.store.write(changes)
    }
    const next = this.core.clock.now() + Math.min(firstWait * 2 ** (tries + 1), longestWait) // whatever becomes of this try
    put(changes, names.missing(convoId), { ...saved, convoId, tries: tries + 1, next } satisfies SavedMissing)
    await this.core.store.write(changes)
    const isPending = this.outbox.pending(convoId).some(({ kind, content }) => kind === "add" && (content as unknown as AddContent).later)
    if (isPending) return
    const content: AddContent = { dids: people, claim: hex(this.core.clock.randomBytes(idLength)), later: true }
    const { write, settled } = await this.outbox.add(convoId, "add", content as unknown as LexValue)
    settled.catch(async (err: unknown) => {
      if (!(err instanceof DiscardedError)) await this.outbox.discard(write.id)
    }).catch(() => {})
  }
}
