// Reading a convo's log.

import { type Output } from "./api.js"
import { hex, sha256 } from "./bytes.js"
import { peopleIn } from "./binding.js"
import { changeOf, peopleOf, strandedBy } from "./changes.js"
import type { Core } from "./core.js"
import { isKnown } from "./devices.js"
import { errorName, OutOfStepError, StuckError, UnknownConvoError } from "./errors.js"
import type { ConvoId, Did } from "./ids.js"
import type { Seen } from "./log-state.js"
import { kinds } from "./log-tree.js"
import { changesOf } from "./members.js"
import { didOf, type Group, type Header, type Member, type Processed } from "./mls.js"
import type { News } from "./news.js"
import { isStuck, type Item, mustRead, names, type Own, type Pending, type Thread, type Withheld } from "./records.js"
import { rewind } from "./rewind.js"
import { type Changes, get, getAll, put } from "./store.js"
import * as mls from "#lexicons"

const pageSize = 100

type Page = Output<typeof mls.getMessages.main>
type Entry = Page["messages"][number]

/** A page that is being read. It is stored in one step. */
interface Reading {
  thread: Thread
  state: Uint8Array
  pending: Pending | undefined
  readonly changes: Changes
  readonly items: Item[]
  /** Set if the group has other members, or a proposal removes one. */
  moved: boolean
}

/** What reading calls. */
export interface LogHandler {
  onItems(convo: ConvoId, items: Item[]): void
  /** Adds to the changes of a page what its items bring with them. */
  alongside(convo: ConvoId, items: readonly Item[], changes: Changes): Promise<void>
  /** The group has other members, or a proposal removes one. */
  onGroup(convo: ConvoId): void
}

/** Reads logs, and keeps what it has read. */
export class Log {
  constructor(
    private readonly core: Core,
    private readonly handler: LogHandler,
  ) {}

  /** What this device knows of a convo. */
  thread(convo: string): Promise<Thread | undefined> {
    return get<Thread>(this.core.store, names.thread(convo))
  }

  /** Stores another state of a thread. */
  async save(thread: Thread): Promise<void> {
    const changes: Changes = new Map()
    put(changes, names.thread(thread.convoId), thread)
    await this.core.store.write(changes)
  }

  /**
   * Reads a convo's log to its end. The caller has the convo's lock. Each page is one write of keys,
   * place and plaintexts: after a crash the page is read again, and the keys for it are still there.
   *
   * @throws StuckError if a commit could not be processed. What comes after it is not read
   * @throws OutOfStepError if the log goes another way than this device's group
   */
  async read(convo: string): Promise<Thread> {
    for (;;) {
      const thread = await this.thread(convo)
      if (thread === undefined) throw new UnknownConvoError(`this device is not in convo ${convo}`)
      if (isStuck(thread)) throw new StuckError(`convo ${convo}: this device cannot follow the log`)
      if (thread.stuck) throw new OutOfStepError(`convo ${convo}: a commit could not be processed`)
      const page = await this.page(thread)
      if (page === undefined) {
        await this.core.store.write(await rewind(this.core, thread))
        continue
      }
      if (page.messages.length > 0) await this.take(thread, page.messages)
      const read = (await this.thread(convo)) ?? thread
      if (read.left && !thread.left) continue // it was removed: the service says whether its person was
      if (page.cursor === undefined && !read.stuck) return read
      if (page.messages.length === 0) throw new Error("an empty page with a cursor")
    }
  }

  // page asks for the entries behind the last one that was read. It names that entry by its id, so
  // that the server notices if it does not have it any more: then there is no page.
  private async page(thread: Thread): Promise<Page | undefined> {
    const since = thread.last === "" ? { sinceSeq: thread.cursor } : { sinceMessage: thread.last }
    try {
      const page = await this.core.api.query(mls.getMessages.main, {
        convoId: thread.convoId, messageType: "all", limit: pageSize, untilLeft: true, ...since,
      })
      return (page.lastSeq ?? thread.cursor) < thread.cursor ? undefined : page
    } catch (err) {
      if (errorName(err) === "InvalidCursor") return undefined
      if (errorName(err) === "NotMember") await this.save({ ...thread, left: true })
      throw err
    }
  }

  private async take(thread: Thread, entries: readonly Entry[]): Promise<void> {
    const { store } = this.core
    const pending = await get<Pending>(store, names.pending(thread.convoId))
    const state = await mustRead(store, names.group(thread.convoId))
    const reading: Reading = { thread, state, pending, changes: new Map(), items: [], moved: false }
    const outOfStep = await this.takeAll(reading, entries)
    const { changes, items } = reading
    put(changes, names.thread(thread.convoId), reading.thread)
    changes.set(names.group(thread.convoId), reading.state)
    for (const item of items) put(changes, names.item(thread.convoId, item.seq), item)
    await this.handler.alongside(thread.convoId, items, changes)
    await store.write(changes)
    if (items.length > 0) this.handler.onItems(thread.convoId, items)
    if (reading.moved) this.handler.onGroup(thread.convoId)
    await this.core.news.deliver()
    if (outOfStep !== undefined) throw outOfStep
  }

  // takeAll reads entries until one goes another way than the group, whose error it returns, or is a
  // commit that could not be processed.
  private async takeAll(reading: Reading, entries: readonly Entry[]): Promise<OutOfStepError | undefined> {
    for (const entry of entries) {
      try {
        const item = await this.takeOne(reading, entry)
        reading.items.push(item)
        const { thread } = reading
        if (this.core.checksLogs) put(reading.changes, names.seen(thread.convoId, item.seq), seenOf(entry, item.digest))
        const readFrom = thread.readFrom ?? (item.state === "read" ? item.seq : undefined)
        reading.thread = { ...thread, first: thread.first || item.seq, cursor: item.seq, last: item.id, ...(readFrom && { readFrom }) }
        if (thread.stuck) break
      } catch (err) {
        if (err instanceof OutOfStepError) return err
        throw err
      }
    }
    return undefined
  }

  // takeOne reads one entry. It trusts no field: the seq must be the next one, and the entry's own
  // bytes say what it is.
  private async takeOne(reading: Reading, entry: Entry): Promise<Item> {
    const { thread, changes } = reading
    if (thread.first !== 0 && entry.seq !== thread.cursor + 1) {
      throw new Error(`convo ${thread.convoId}: seq ${entry.seq} follows ${thread.cursor}`)
    }
    const digest = await sha256(entry.ciphertext)
    if (thread.first === 0 && thread.addedBy !== undefined && thread.addedBy !== digest) {
      throw new OutOfStepError(`convo ${thread.convoId}: the log begins with another addition of this device`)
    }
    const loose = await this.takeLoose(reading, digest)
    if (loose !== undefined) return { ...loose, seq: entry.seq, id: entry.id, createdAt: entry.createdAt }
    const { seq, id, createdAt, sender, embedUri } = entry
    const base = { seq, id, createdAt, sender, digest, own: false, state: "read" as const, ...(embedUri && { embedUri }) }
    if (entry.messageType === "reset") return { ...base, kind: "reset" }
    if (reading.pending?.digest === digest) {
      const change = await this.follow(reading, reading.pending.state, this.core.mls)
      reading.pending = undefined
      changes.set(names.pending(thread.convoId), undefined)
      return this.named(reading, { ...base, kind: "commit", own: true, ...change }, this.core.did)
    }
    const own = await get<Own>(this.core.store, names.own(digest))
    if (own !== undefined) {
      changes.set(names.own(digest), undefined)
      const item: Item = { ...base, kind: "application", own: true, messageId: own.messageId, content: own.content }
      return this.named(reading, item, this.core.did)
    }
    return this.process(reading, entry.ciphertext, base)
  }

  private async process(reading: Reading, bytes: Uint8Array, base: Omit<Item, "kind">): Promise<Item> {
    const { mls } = this.core
    const header = headerOf(this.core, bytes)
    if (header === undefined) return { ...base, kind: "application", state: "unreadable" }
    const { kind, epoch } = header
    const { entered, rewound, convoId } = reading.thread
    const present = mls.describe(reading.state).epoch
    if (rewound && kind === "commit" && epoch + 1 >= entered && epoch < present) {
      throw new OutOfStepError(`convo ${convoId}: seq ${base.seq}: another commit has taken epoch ${epoch}`)
    }
    if (epoch < entered || (rewound && epoch < present)) return { ...base, kind, state: "past" }
    try {
      const got = await mls.process(reading.state, bytes)
      if (kind === "commit") this.passPending(reading)
      const sender = didOf(got.sender?.identity ?? "") || base.sender
      if (got.external) this.askForInvitation(reading, mls.describe(reading.state), sender)
      const change = await this.follow(reading, got.state, got.sender)
      if (got.external && got.sender !== undefined) { // nobody in the group has let it in, and its key may be stolen
        this.core.devices.askAgain(got.sender, reading.changes)
        reading.moved = true
      }
      if (got.sender !== undefined) this.hear(reading, got.sender)
      if (kind === "proposal") this.hearLeaver(reading, got)
      const item = this.named(reading, { ...base, kind, ...(kind === "commit" && change) }, sender)
      return await this.readable(reading, item, got)
    } catch (err) {
      if (err instanceof OutOfStepError) throw err
      if (kind === "commit" && epoch === present) {
        reading.thread = { ...reading.thread, stuck: true, failed: { epoch: epoch + 1, committer: base.sender } }
      }
      return { ...base, kind, state: "unreadable" }
    }
  }

  // follow goes on with another state of the group, and notes who has come and gone. It returns what has changed.
  private async follow(reading: Reading, state: Uint8Array, by: Pick<Member, "identity" | "signatureKey"> | undefined): Promise<Pick<Item, "change">> {
    const { mls, news } = this.core
    const [before, after] = [mls.describe(reading.state), mls.describe(state)]
    reading.state = state
    if (before.epoch === after.epoch && after.active) return {}
    if (!after.active) reading.thread = { ...reading.thread, left: true }
    this.forgetLeavers(reading, after)
    const { thread, changes } = reading
    const devices = changesOf(before, after)
    reading.moved ||= devices.length > 0
    const added = peopleIn(after).filter((did) => !peopleIn(before).includes(did))
    if (added.length > 0) reading.thread = { ...thread, silent: [...(thread.silent ?? []), ...added] }
    news.add(changes, ...devices.map((device): News => ({ convo: thread.convoId, device })))
    this.strand(reading, strandedBy(this.core.devices, before, after), peopleOf(after))
    return by === undefined ? {} : { change: await changeOf(before, after, by) }
  }

  // strand notes who has no device in the group any more, and has not left.
  private strand(reading: Reading, stranded: readonly Did[], people: readonly Did[]): void {
    const { thread, changes } = reading
    const still = (thread.withoutDevice ?? []).filter((did) => !people.includes(did))
    if (stranded.length > 0 || still.length < (thread.withoutDevice?.length ?? 0)) reading.thread = { ...thread, withoutDevice: [...still, ...stranded] }
    this.core.news.add(changes, ...stranded.map((did): News => ({ convo: thread.convoId, without: did })))
  }

  // hear notes that a person who was added is in the group: it has written.
  private hear(reading: Reading, { identity, signatureKey: key }: Member): void {
    const [{ thread, changes }, did] = [reading, didOf(identity) as Did]
    if (!thread.silent?.includes(did)) return
    reading.thread = { ...thread, silent: thread.silent.filter((one) => one !== did) }
    this.core.news.add(changes, { convo: thread.convoId, device: { change: "joined", did, key } })
  }

  // askForInvitation notes a person who has entered by an external commit, and whom nobody in the group has
  // added before. Whether they may be here the server alone says.
  private askForInvitation(reading: Reading, before: Group, did: string): void {
    const { thread } = reading
    const invited = did === this.core.did || thread.expected?.includes(did) || before.members.some(({ identity }) => didOf(identity) === did)
    if (invited || thread.uninvited?.includes(did)) return
    reading.thread = { ...thread, uninvited: [...(thread.uninvited ?? []), did] }
  }

  // hearLeaver notes a leaf whose own person has proposed to remove it.
  private hearLeaver(reading: Reading, { sender, removes }: Processed): void {
    if (sender === undefined || removes === undefined || didOf(sender.identity) !== didOf(removes.identity)) return
    const { thread } = reading
    reading.thread = { ...thread, leaving: [...(thread.leaving ?? []), hex(removes.signatureKey)] }
    reading.moved = true
  }

  // forgetLeavers forgets the proposals of leaves that are gone: their person can be added again with the same keys.
  private forgetLeavers(reading: Reading, { members }: Group): void {
    const { leaving, ...thread } = reading.thread
    if (leaving === undefined) return
    const still = leaving.filter((key) => members.some(({ signatureKey }) => hex(signatureKey) === key))
    reading.thread = { ...thread, ...(still.length > 0 && { leaving: still }) }
  }

  // named gives an item the sender that MLS shows. The app hears if the server has named another one.
  private named(reading: Reading, item: Item, sender: string): Item {
    if (sender !== item.sender) {
      const { convoId: convo } = reading.thread
      const sentence = `convo ${convo}: entry ${item.seq} is of ${sender}, and the service says that it is of ${item.sender}`
      this.core.news.add(reading.changes, { convo, finding: { kind: "contrary", what: "sender", sentence, evidence: [] } })
    }
    return { ...item, sender }
  }

  // passPending forgets a commit of this device that lost its epoch to another one.
  private passPending(reading: Reading): void {
    if (reading.pending === undefined) return
    reading.pending = undefined
    reading.changes.set(names.pending(reading.thread.convoId), undefined)
  }

  private async readable(reading: Reading, item: Item, { plaintext, sender }: Processed): Promise<Item> {
    if (plaintext === undefined || sender === undefined) return item
    const { id, content } = this.core.envelope.unwrap(plaintext)
    const messageId = id ?? item.digest
    await this.forgetLoose(reading, messageId)
    const read: Item = { ...item, messageId, content }
    if (isKnown(this.core.devices.of(sender).state) && !reading.thread.uninvited?.includes(item.sender)) return read
    put(reading.changes, names.withheld(reading.thread.convoId, item.seq), { item: read, key: sender.signatureKey } satisfies Withheld)
    return { ...item, messageId, state: "withheld" }
  }

  /** Gives the app the messages of devices that are known by now. The caller has the convo's lock. */
  async release(convo: ConvoId): Promise<void> {
    const { store, devices } = this.core
    const thread = await this.thread(convo)
    const changes: Changes = new Map()
    const items: Item[] = []
    for (const { item, key } of await getAll<Withheld>(store, names.withheldOf(convo))) {
      const { state } = devices.of({ identity: item.sender, signatureKey: key })
      if (!isKnown(state) || thread?.uninvited?.includes(item.sender)) continue
      changes.set(names.withheld(convo, item.seq), undefined)
      put(changes, names.item(convo, item.seq), item)
      items.push(item)
    }
    if (items.length === 0) return
    await this.handler.alongside(convo, items, changes)
    await store.write(changes)
    this.handler.onItems(convo, items)
  }

  // takeLoose returns what was read before and lost by the server, and has come back byte for byte, and
  // the commit by which a stuck device has come back.
  private async takeLoose(reading: Reading, digest: string): Promise<Item | undefined> {
    const name = names.looseItem(reading.thread.convoId, digest)
    const item = await get<Item>(this.core.store, name)
    if (item !== undefined) reading.changes.set(name, undefined)
    return item
  }

  // forgetLoose forgets a message that has come back in other bytes.
  private async forgetLoose(reading: Reading, messageId: string): Promise<void> {
    const { thread, changes } = reading
    if (!thread.rewound) return
    for (const item of await getAll<Item>(this.core.store, names.loose(thread.convoId))) {
      if (item.messageId === messageId) changes.set(names.looseItem(thread.convoId, item.digest), undefined)
    }
  }
}

/** An entry as the server shows it, for the checks of logs. */
export function seenOf({ seq, epoch, createdAt, sender, messageType }: Entry, body: string): Seen {
  const kind = kinds[messageType as keyof typeof kinds] ?? kinds.application
  return { seq, kind, epoch, at: Date.parse(createdAt), body, sender }
}

function headerOf(core: Core, bytes: Uint8Array): Header | undefined {
  try {
    return core.mls.header(bytes)
  } catch {
    return undefined // not an MLS object: the server does not take such ones
  }
}
