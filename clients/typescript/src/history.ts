// History for a new device: docs/clients/HISTORY.md. Devices ask for what they have no keys for, and
// others give it as an encrypted bundle.

import { Attachments, type FilePointer, FileChangedError, sealFile, type SealedFile } from "./attachments.js"
import { hex } from "./bytes.js"
import type { Core } from "./core.js"
import { idLength } from "./envelope.js"
import { errorName, NoAnswerError, UnknownConvoError, XrpcError } from "./errors.js"
import {
  boundTo, bounds, checkBundle, decodeMessage, decodePart, encodeEntry, encodeMessage, encodePart, HistoryError, type HistoryEntry,
  type HistoryMessage, isHistory, type PartPointer, tagBytes, usualPart,
} from "./history-format.js"
import type { ConvoId } from "./ids.js"
import type { LexValue } from "./json.js"
import { deviceIdOf } from "./keypackages.js"
import { once } from "./locks.js"
import type { Outbox } from "./outbox.js"
import { type Item, lockOf, names, type Thread } from "./records.js"
import { type Changes, get, getAll, put } from "./store.js"
import type { SendContent } from "./write-messages.js"
import * as mls from "#lexicons"

export { HistoryError, isHistory }

/** Entries that are read or stored in one step. Between two steps the app's other work runs. */
const batch = 200
/** So many requests and bundles of a convo are remembered: the newest ones. */
const mostKept = 32
/** So many files of a bundle are named again for a newer member: the newest ones. */
const mostFiles = 100
/** How often a part is announced anew whose bytes did not arrive as announced. */
const maxAnnouncements = 3

/** A device asks for the history of a convo. */
export interface HistoryRequest {
  readonly id: string
  /** Who asks, and the id of the device that does. */
  readonly did: string
  readonly device: string
  /** The device has everything from this seq on. */
  readonly before: number
  /** Set if this device asks. */
  readonly mine?: true
  /** The people that have agreed to give it. */
  readonly agreed: readonly string[]
}

/** A bundle that somebody has made. */
export interface HistoryBundle {
  readonly id: string
  readonly request: string
  /** Who has made it, and whose word its messages are. */
  readonly from: string
  readonly entries: number
  readonly bytes: number
  /** Set if this device has asked for it. */
  readonly asked?: true
  readonly state: "offered" | "importing" | "imported" | "cancelled" | "failed"
  /** Why it has failed. */
  readonly reason?: string
  /** Messages that are imported; that this device had; that the log contradicts. */
  readonly imported: number
  readonly known: number
  readonly refused: number
}

/** A message that a bundle has brought: somebody's word, and to be shown as that. */
export interface ImportedItem {
  readonly seq: number
  readonly id: string
  /** The DID that the bundle says. */
  readonly sender: string
  readonly createdAt: string
  readonly digest: string
  readonly messageId: string
  readonly content: Uint8Array
  readonly embedUri?: string
  /** Whose word it is: the DID of who made the bundle. */
  readonly from: string
  readonly bundle: string
  /** Set if that person was given it too. */
  readonly relayed?: true
  /** Set if the log has this entry at this place, of this sender. What it said is still only the giver's word. */
  readonly inLog?: true
}

interface SavedBundle extends HistoryBundle {
  readonly seq: number
  readonly parts: readonly PartPointer[]
  /** The next part, and how many of its entries are done. */
  readonly part: number
  readonly entry: number
}

/** A bundle that this device makes. */
interface Share {
  readonly convo: ConvoId
  readonly bundle: string
  readonly request: string
  /** Up to this seq it is made. */
  readonly after: number
  readonly before: number
  readonly parts: readonly PartPointer[]
  /** Attachments to name again, of which so many are named. */
  readonly files?: readonly string[]
  readonly named: number
  readonly sent?: true
}

interface SealedPart extends Omit<SealedFile, "size" | "sha256"> {
  readonly size: number
  readonly sha256: string
  readonly entries: number
  readonly from: number
  readonly to: number
  readonly files: readonly string[]
}

/** What an app hears of history. */
export interface HistoryEvents {
  /** A device asks for history. The app asks its person, and calls {@link History.share}. */
  onHistoryRequest?(convo: ConvoId, request: HistoryRequest): void
  /** A bundle was made, or its import has another state. An offered one waits for {@link History.import}. */
  onHistoryBundle?(convo: ConvoId, bundle: HistoryBundle): void
  /** Messages were imported and stored. */
  onImported?(convo: ConvoId, items: readonly ImportedItem[]): void
  onFailure?(err: unknown): void
}

/** Asks for history, gives it and imports it. All steps are stored: a crash repeats one, and doubles nothing. */
export class History {
  private readonly attachments: Attachments
  private readonly running = new Map<string, Promise<void>>()
  private readonly aborts = new Map<string, AbortController>() // of what is running, by bundle

  constructor(
    private readonly core: Core,
    private readonly outbox: Outbox,
    private readonly events: HistoryEvents,
    private readonly closing: AbortSignal,
  ) {
    this.attachments = new Attachments(core.api.transport, core.clock)
  }

  // Asking

  /**
   * Asks the members of a convo, and this person's other devices, for the messages that this device
   * has no keys for. Returns the request's id.
   */
  async request(convo: ConvoId): Promise<string> {
    const thread = await this.thread(convo)
    const before = thread.readFrom ?? thread.cursor + 1
    const [id, device] = [this.newId(), await deviceIdOf(this.core)]
    const saved: HistoryRequest = { id, did: this.core.did, device, before, mine: true, agreed: [] }
    const changes: Changes = new Map()
    put(changes, names.historyRequest(convo, id), saved)
    await this.say(convo, { type: "request", id, device, before }, changes)
    return id
  }

  /** The open requests of a convo. */
  requests(convo: ConvoId): Promise<HistoryRequest[]> {
    return getAll<HistoryRequest>(this.core.store, names.historyRequests(convo))
  }

  /** The bundles that others have made in a convo. */
  async bundles(convo: ConvoId): Promise<HistoryBundle[]> {
    return (await getAll<SavedBundle>(this.core.store, names.bundles(convo))).map(shown)
  }

  // Giving

  /**
   * Agrees to a request: makes a bundle of the messages that this device has, and sends it. **All
   * members can read it**: who calls it has asked its person. Returns the bundle's id at once; what is
   * not done goes on in the next life.
   *
   * @param options.after gives only what is after this seq
   * @throws HistoryError if there is no such request, or nothing to give
   */
  async share(convo: ConvoId, request: string, options: { after?: number } = {}): Promise<string> {
    const asked = await get<HistoryRequest>(this.core.store, names.historyRequest(convo, request))
    if (asked === undefined || asked.mine) throw new HistoryError("nobody asks for it")
    const { cursor } = await this.thread(convo)
    const share: Share = {
      convo, bundle: this.newId(), request, after: options.after ?? 0, before: Math.min(asked.before, cursor + 1), parts: [], named: 0,
      ...(asked.did !== this.core.did && { files: [] }),
    }
    const first = await this.entries(share, 1)
    if (first.length === 0) throw new HistoryError("there is nothing to give")
    const changes: Changes = new Map()
    put(changes, names.share(share.bundle), share)
    await this.say(convo, { type: "agree", request, id: share.bundle }, changes)
    this.later(this.make(share.bundle))
    return share.bundle
  }

  /** Resolves when a bundle is sent that this device makes. Rejects if it was cancelled. */
  sent(bundle: string): Promise<void> {
    return this.make(bundle)
  }

  private make(bundle: string): Promise<void> {
    return once(this.running, bundle, () => this.abortable(bundle, (signal) => this.makeAll(bundle, signal)))
  }

  private async makeAll(bundle: string, signal: AbortSignal): Promise<void> {
    for (;;) {
      const share = await get<Share>(this.core.store, names.share(bundle))
      if (share === undefined) throw new HistoryError("the bundle was cancelled")
      if (share.sent) return
      const part = share.parts.length === bounds.parts ? undefined : await this.sealNext(share, signal)
      if (part !== undefined) await this.upload(share, part, signal)
      else if (share.named < (share.files?.length ?? 0)) await this.nameFile(share)
      else await this.announce(share)
    }
  }

  // sealNext makes a part, and stores it before it is sent: made again it would have another key.
  private async sealNext(share: Share, signal: AbortSignal): Promise<SealedPart | undefined> {
    const { store } = this.core
    const made = await get<SealedPart>(store, names.sealedPart(share.bundle))
    if (made !== undefined) return made
    const entries = await this.entries(share, Number.POSITIVE_INFINITY, signal)
    const [first, last] = [entries[0], entries.at(-1)]
    if (first === undefined || last === undefined) return undefined
    const plain = encodePart(entries.map(({ bytes }) => bytes))
    const files = entries.flatMap(({ embedUri }) => (isAttachment(embedUri) ? [embedUri] : []))
    const sealed = await sealFile(plain, boundTo(share.convo, share.bundle, share.parts.length + 1))
    const part: SealedPart = { ...sealed, entries: entries.length, from: first.seq, to: last.seq, files }
    const changes: Changes = new Map()
    put(changes, names.sealedPart(share.bundle), part)
    await this.update(share, {}, changes)
    return part
  }

  private async upload(share: Share, part: SealedPart, signal: AbortSignal): Promise<void> {
    const { entries, from, to, files } = part
    const pointer = await this.put(share, part, signal)
    const { uri: _, ...rest } = pointer
    const changes: Changes = new Map([[names.sealedPart(share.bundle), undefined]])
    const parts = [...share.parts, { ...rest, entries, from, to }]
    const all = share.files && { files: [...share.files, ...files].slice(-mostFiles) }
    await this.update(share, { parts, after: to, ...all }, changes)
  }

  private async put(share: Share, part: SealedPart, signal: AbortSignal): Promise<FilePointer> {
    for (let n = 1; ; n++) {
      try {
        return await this.attachments.upload(share.convo, part, { signal })
      } catch (err) {
        if (errorName(err) !== "InvalidAsset" || n === maxAnnouncements) throw err
        part = { ...part, idempotencyKey: crypto.randomUUID() }
      }
    }
  }

  // nameFile lets members read a file of the bundle that are newer than it.
  private async nameFile(share: Share): Promise<void> {
    const uri = share.files?.[share.named] as `${string}:${string}`
    const { write, settled } = await this.update(share, { named: share.named + 1 }, new Map(), { type: "file", id: share.bundle }, uri)
    // The file may be gone: then the bundle goes without it.
    settled.catch(() => this.outbox.discard(write.id)).catch(() => {})
  }

  private async announce(share: Share): Promise<void> {
    const { bundle: id, request, parts } = share
    if (parts.length === 0) throw new HistoryError("there is nothing to give any more")
    const entries = parts.reduce((sum, part) => sum + part.entries, 0)
    const { settled } = await this.update(share, { sent: true }, new Map(), { type: "bundle", request, id, entries, parts })
    await settled
  }

  // update stores what has changed of a share, and sends a message with it, unless it was cancelled.
  private update(share: Share, change: Partial<Share>, changes: Changes): Promise<void>
  private update(share: Share, change: Partial<Share>, changes: Changes, message: HistoryMessage, uri?: `${string}:${string}`): ReturnType<Outbox["add"]>
  private update(share: Share, change: Partial<Share>, changes: Changes, message?: HistoryMessage, uri?: `${string}:${string}`): Promise<unknown> {
    return this.locked(share.convo, async () => {
      if ((await this.core.store.read(names.share(share.bundle))) === undefined) throw new HistoryError("the bundle was cancelled")
      put(changes, names.share(share.bundle), { ...share, ...change })
      return message === undefined ? this.core.store.write(changes) : this.say(share.convo, message, changes, uri)
    })
  }

  // entries encodes the messages behind a share's place, as many as a part takes.
  private async entries(share: Share, most: number, signal?: AbortSignal): Promise<{ seq: number; embedUri: string; bytes: Uint8Array }[]> {
    const entries: { seq: number; embedUri: string; bytes: Uint8Array }[] = []
    let size = tagBytes + encodePart([]).length
    for (const [n, seq] of (await this.seqs(share)).entries()) {
      if (n % batch === batch - 1) await this.breathe(signal)
      const entry = await this.entry(share.convo, seq)
      const bytes = entry && encodeEntry(entry)
      if (entry === undefined || bytes === undefined || bytes.length > bounds.part - size) continue
      if (entries.length > 0 && size + bytes.length > usualPart) break
      entries.push({ seq, embedUri: entry.embedUri, bytes })
      size += bytes.length
      if (entries.length === most) break
    }
    return entries
  }

  private async seqs({ convo, after, before }: Share): Promise<number[]> {
    const all = new Set<number>()
    for (const prefix of [names.items(convo), names.imports(convo)]) {
      for (const name of await this.core.store.list(prefix)) {
        const seq = Number(name.slice(prefix.length))
        if (seq > after && seq < before) all.add(seq)
      }
    }
    return [...all].sort((a, b) => a - b)
  }

  private async entry(convo: ConvoId, seq: number): Promise<HistoryEntry | undefined> {
    const item = await get<Item>(this.core.store, names.item(convo, seq))
    const read = item?.state === "read" && item.content !== undefined
    const relayed = read ? undefined : await get<ImportedItem>(this.core.store, names.imported(convo, seq))
    const from = read ? item : relayed
    if (from?.content === undefined || from.messageId === undefined || isHistory(from.content)) return undefined
    const { id, sender, createdAt, digest, messageId, content, embedUri = "" } = from
    const plaintext = messageId === digest ? content : this.core.envelope.wrap({ id: messageId, content })
    return { seq, id, sender, createdAt: Date.parse(createdAt), digest, relayed: relayed !== undefined, embedUri, plaintext }
  }

  // Importing

  /**
   * Imports a bundle, or goes on with that. It resolves when all is stored.
   *
   * @param options.mostBytes refuses a larger bundle, 256 MiB by default
   * @throws HistoryError if the bundle breaks the format, or was cancelled. The parts before stay imported
   */
  async import(convo: ConvoId, bundle: string, options: { mostBytes?: number } = {}): Promise<HistoryBundle> {
    await once(this.running, bundle, () => this.abortable(bundle, (signal) => this.importAll(convo, bundle, signal, options.mostBytes)))
    return shown(await this.bundle(convo, bundle))
  }

  /** The imported messages of a convo after a seq, in the order of the log. They are not among its items. */
  async imported(convo: ConvoId, after = 0): Promise<ImportedItem[]> {
    const items: ImportedItem[] = []
    const from = names.imported(convo, after)
    for (const name of await this.core.store.list(names.imports(convo))) {
      const item = name > from ? await get<ImportedItem>(this.core.store, name) : undefined
      if (item !== undefined) items.push(item)
    }
    return items
  }

  /** Forgets imported messages: those of a bundle, or all of the convo. */
  async forget(convo: ConvoId, bundle?: string): Promise<void> {
    const changes: Changes = new Map()
    for (const item of await this.imported(convo)) {
      if (bundle === undefined || item.bundle === bundle) changes.set(names.imported(convo, item.seq), undefined)
    }
    await this.core.store.write(changes)
  }

  private async importAll(convo: ConvoId, id: string, signal: AbortSignal, mostBytes?: number): Promise<void> {
    const bundle = await this.bundle(convo, id)
    if (bundle.state === "imported") return
    try {
      checkBundle(bundle.parts, bundle.entries, bundle.seq, mostBytes)
      await this.note(convo, id, () => ({ state: "importing" }))
      for (let part = bundle.part; part < bundle.parts.length; part++) await this.importPart(convo, id, part, signal)
      await this.note(convo, id, () => ({ state: "imported" }))
    } catch (err) {
      const broken = err instanceof HistoryError || err instanceof FileChangedError || err instanceof XrpcError
      if (broken && !signal.aborted) await this.note(convo, id, () => ({ state: "failed", reason: String(err) })).catch(() => {})
      throw err instanceof FileChangedError ? new HistoryError(err.message, { cause: err }) : err
    }
  }

  // importPart has one part in memory, which is checked as a whole before anything of it is stored.
  private async importPart(convo: ConvoId, id: string, part: number, signal: AbortSignal): Promise<void> {
    const { parts, entry: done } = await this.bundle(convo, id)
    const pointer = parts[part] as PartPointer
    const bytes = await this.attachments.download(convo, pointer, { signal, boundTo: boundTo(convo, id, part + 1) })
    const entries: HistoryEntry[] = []
    for (const entry of decodePart(bytes, pointer)) {
      if (entries.push(entry) % batch === 0) await this.breathe(signal)
    }
    for (let at = done; at < entries.length; at += batch) {
      await this.breathe(signal)
      const last = at + batch >= entries.length
      const place = last ? { part: part + 1, entry: 0 } : { part, entry: at + batch }
      await this.take(convo, id, entries.slice(at, at + batch), place)
    }
  }

  // take stores entries and the place behind them in one step. So each is taken once.
  private async take(convo: ConvoId, id: string, entries: readonly HistoryEntry[], place: { part: number; entry: number }): Promise<void> {
    const items: ImportedItem[] = []
    await this.note(convo, id, async (bundle, changes) => {
      const thread = await this.thread(convo)
      const counts = { imported: bundle.imported, known: bundle.known, refused: bundle.refused }
      for (const entry of entries) {
        const verdict = await this.judge(convo, thread, entry)
        counts[verdict === "inLog" ? "imported" : verdict]++
        if (verdict === "known" || verdict === "refused") continue
        const item = this.itemOf(bundle, entry, verdict === "inLog")
        put(changes, names.imported(convo, item.seq), item)
        items.push(item)
      }
      return { ...counts, ...place }
    })
    if (items.length > 0) this.events.onImported?.(convo, items)
  }

  // judge compares an entry with what this device has of the log. What it has read itself counts.
  private async judge(convo: ConvoId, thread: Thread, entry: HistoryEntry): Promise<"imported" | "inLog" | "known" | "refused"> {
    const item = await get<Item>(this.core.store, names.item(convo, entry.seq))
    if (item !== undefined) {
      const fits = item.digest === entry.digest && item.sender === entry.sender && item.kind === "application"
      if (!fits) return "refused"
      if (item.state === "read") return "known"
    } else if (entry.seq >= (thread.readFrom ?? Number.POSITIVE_INFINITY)) {
      return "known" // it was read, and the app has forgotten it here
    }
    if ((await this.core.store.read(names.imported(convo, entry.seq))) !== undefined) return "known"
    if (isHistory(this.core.envelope.unwrap(entry.plaintext).content)) return "refused"
    return item === undefined ? "imported" : "inLog"
  }

  private itemOf({ from, id: bundle }: SavedBundle, entry: HistoryEntry, inLog: boolean): ImportedItem {
    const { seq, id, sender, createdAt, digest, relayed, embedUri, plaintext } = entry
    const { id: messageId = digest, content } = this.core.envelope.unwrap(plaintext)
    return {
      seq, id, sender, createdAt: new Date(createdAt).toISOString(), digest, messageId, content, from, bundle,
      ...(embedUri && { embedUri }), ...(relayed && { relayed }), ...(inLog && { inLog }),
    }
  }

  // note stores what has changed of a bundle, unless it was cancelled.
  private async note(
    convo: ConvoId, id: string, change: (bundle: SavedBundle, changes: Changes) => Partial<SavedBundle> | Promise<Partial<SavedBundle>>,
  ): Promise<void> {
    const after = await this.locked(convo, async () => {
      const bundle = await this.bundle(convo, id)
      if (bundle.state === "cancelled") throw new HistoryError("the bundle was cancelled")
      const changes: Changes = new Map()
      const after: SavedBundle = { ...bundle, ...(await change(bundle, changes)) }
      put(changes, names.bundle(convo, id), after)
      await this.core.store.write(changes)
      return after
    })
    this.events.onHistoryBundle?.(convo, shown(after))
  }

  // Cancelling

  /**
   * Ends a request of this device, a bundle that it makes or has made, or an import. What is imported
   * stays: {@link History.forget} forgets it.
   */
  async cancel(convo: ConvoId, id: string): Promise<void> {
    const { store } = this.core
    const share = await get<Share>(store, names.share(id))
    if (share !== undefined) {
      const changes: Changes = new Map([[names.share(id), undefined], [names.sealedPart(id), undefined]])
      await this.locked(convo, () => this.say(convo, { type: "cancel", id }, changes))
      this.stop(id)
      return this.later(this.remove(share))
    }
    const request = await get<HistoryRequest>(store, names.historyRequest(convo, id))
    const imports = (await getAll<SavedBundle>(store, names.bundles(convo))).filter((bundle) => bundle.id === id || bundle.request === id)
    await this.locked(convo, async () => {
      const changes: Changes = new Map()
      for (const { id } of imports) await this.cancelBundle(convo, id, changes)
      if (request?.mine) {
        changes.set(names.historyRequest(convo, id), undefined)
        await this.say(convo, { type: "cancel", id }, changes)
      } else {
        await store.write(changes)
      }
    })
    for (const { id } of imports) this.stop(id)
  }

  private async cancelBundle(convo: ConvoId, id: string, changes: Changes): Promise<void> {
    const bundle = await get<SavedBundle>(this.core.store, names.bundle(convo, id))
    if (bundle !== undefined && bundle.state !== "imported") put(changes, names.bundle(convo, id), { ...bundle, state: "cancelled" })
  }

  private stop(id: string): void {
    this.aborts.get(id)?.abort()
  }

  // remove deletes what is uploaded of a bundle. What fails is deleted with the messages of its time.
  private async remove({ convo, parts }: Share): Promise<void> {
    for (const { id } of parts) {
      try {
        await this.core.api.procedure(mls.deleteAttachment.main, { convoId: convo, attachmentId: id })
      } catch (err) {
        if (!(err instanceof XrpcError)) throw err
      }
    }
  }

  // What the log brings

  /** Adds to the changes of a page of the log what its messages about history say. The caller has the convo's lock. */
  async alongside(convo: ConvoId, items: readonly Item[], changes: Changes): Promise<void> {
    for (const item of items) {
      const message = messageOf(item)
      if (message !== undefined) await this.hear(convo, item, message, changes)
    }
  }

  private async hear(convo: ConvoId, { sender, seq }: Item, message: HistoryMessage, changes: Changes): Promise<void> {
    const { id } = message
    const requestOf = (id: string) => this.pending<HistoryRequest>(changes, names.historyRequest(convo, id))
    switch (message.type) {
      case "request": {
        if ((await requestOf(id)) !== undefined) return
        const { device, before } = message
        put(changes, names.historyRequest(convo, id), { id, did: sender, device, before, agreed: [] } satisfies HistoryRequest)
        return this.bound(names.historyRequests(convo), changes)
      }
      case "agree": {
        const request = await requestOf(message.request)
        if (request === undefined || request.agreed.length >= mostKept || request.agreed.includes(sender)) return
        return put(changes, names.historyRequest(convo, request.id), { ...request, agreed: [...request.agreed, sender] })
      }
      case "bundle": {
        if ((await this.pending(changes, names.bundle(convo, id))) !== undefined) return // ids do not come twice
        const { request, entries, parts } = message
        const asked = (await requestOf(request))?.mine === true
        const bytes = parts.reduce((sum, { size }) => sum + size, 0)
        put(changes, names.bundle(convo, id), {
          id, request, from: sender, entries, bytes, ...(asked && { asked }), state: "offered", imported: 0, known: 0, refused: 0,
          seq, parts, part: 0, entry: 0,
        } satisfies SavedBundle)
        return this.bound(names.bundles(convo), changes)
      }
      case "cancel":
        return this.hearCancel(convo, sender, id, changes)
    }
  }

  private async hearCancel(convo: ConvoId, sender: string, id: string, changes: Changes): Promise<void> {
    const bundle = await this.pending<SavedBundle>(changes, names.bundle(convo, id))
    if (bundle?.from === sender && bundle.state !== "imported") put(changes, names.bundle(convo, id), { ...bundle, state: "cancelled" })
    const request = await this.pending<HistoryRequest>(changes, names.historyRequest(convo, id))
    if (request?.did !== sender) return
    changes.set(names.historyRequest(convo, id), undefined)
    for (const share of await getAll<Share>(this.core.store, names.shares)) {
      if (share.request !== id || share.convo !== convo || share.sent) continue
      changes.set(names.share(share.bundle), undefined)
      changes.set(names.sealedPart(share.bundle), undefined)
      this.later(this.remove(share))
    }
  }

  // pending reads a record as the changes leave it.
  private async pending<T extends object>(changes: Changes, name: string): Promise<T | undefined> {
    if (!changes.has(name)) return get<T>(this.core.store, name)
    const content = changes.get(name)
    return content && get<T>({ read: async () => content } as unknown as Core["store"], name)
  }

  // bound forgets the oldest of what others have asked or offered, so that nobody fills the store.
  private async bound(prefix: string, changes: Changes): Promise<void> {
    const stored = (await this.core.store.list(prefix)).filter((name) => !changes.has(name))
    const fresh = [...changes.keys()].filter((name) => name.startsWith(prefix) && changes.get(name) !== undefined)
    const others: { name: string; seq: number }[] = []
    for (const name of [...stored, ...fresh]) {
      const { mine, state, asked, seq = 0 } = (await this.pending<Partial<HistoryRequest & SavedBundle>>(changes, name)) ?? {}
      if (!mine && !asked && state !== "importing") others.push({ name, seq })
    }
    others.sort((a, b) => a.seq - b.seq)
    for (const { name } of others.slice(0, Math.max(0, others.length - mostKept))) changes.set(name, undefined)
  }

  /** Tells the app what a page of the log has brought, after it is stored. */
  async heard(convo: ConvoId, items: readonly Item[]): Promise<void> {
    for (const item of items) {
      const message = messageOf(item)
      if (message === undefined) continue
      const request = await get<HistoryRequest>(this.core.store, names.historyRequest(convo, message.id))
      if (message.type === "request" && request !== undefined) this.events.onHistoryRequest?.(convo, request)
      const bundle = await get<SavedBundle>(this.core.store, names.bundle(convo, message.id))
      if (bundle !== undefined) this.events.onHistoryBundle?.(convo, shown(bundle))
      if (message.type !== "cancel") continue
      if (bundle?.state === "cancelled") this.stop(bundle.id)
      for (const id of this.aborts.keys()) {
        if (bundle?.id !== id && (await this.isGone(convo, id))) this.stop(id)
      }
    }
  }

  private async isGone(convo: ConvoId, id: string): Promise<boolean> {
    const { store } = this.core
    return (await store.read(names.share(id))) === undefined && (await store.read(names.bundle(convo, id))) === undefined
  }

  /** Goes on with what an earlier life has begun. */
  async resume(convos: readonly ConvoId[]): Promise<void> {
    for (const share of await getAll<Share>(this.core.store, names.shares)) if (!share.sent) this.later(this.make(share.bundle))
    for (const convo of convos) {
      for (const { id, state } of await this.bundles(convo)) if (state === "importing") this.later(this.import(convo, id))
    }
  }

  /** Waits until nothing runs any more, after `closing` has aborted. */
  async idle(): Promise<void> {
    await Promise.allSettled(this.running.values())
  }

  // Steps

  private say(convo: ConvoId, message: HistoryMessage, changes: Changes, embedUri?: `${string}:${string}`): ReturnType<Outbox["add"]> {
    const content: SendContent = { id: this.newId(), content: encodeMessage(message), ...(embedUri && { embedUri }) }
    return this.outbox.add(convo, "send", content as unknown as LexValue, changes).then((added) => {
      added.settled.catch(() => {}) // it is in outbox.refused too
      return added
    })
  }

  private async thread(convo: ConvoId): Promise<Thread> {
    const thread = await get<Thread>(this.core.store, names.thread(convo))
    if (thread === undefined) throw new UnknownConvoError(`this device is not in convo ${convo}`)
    return thread
  }

  private async bundle(convo: ConvoId, id: string): Promise<SavedBundle> {
    const bundle = await get<SavedBundle>(this.core.store, names.bundle(convo, id))
    if (bundle === undefined) throw new HistoryError(`convo ${convo} has no bundle ${id}`)
    return bundle
  }

  private locked<T>(convo: ConvoId, fn: () => Promise<T>): Promise<T> {
    return this.core.locks.run(lockOf(convo), fn)
  }

  private async abortable(id: string, fn: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const abort = new AbortController()
    this.aborts.set(id, abort)
    try {
      await fn(AbortSignal.any([abort.signal, this.closing]))
    } catch (err) {
      throw abort.signal.aborted ? new HistoryError("the bundle was cancelled", { cause: err }) : err
    } finally {
      this.aborts.delete(id)
    }
  }

  // breathe lets the app's other work run.
  private async breathe(signal: AbortSignal = this.closing): Promise<void> {
    if (signal.aborted) throw new NoAnswerError("it was ended")
    await this.core.clock.sleep(0, signal)
  }

  // later tells the app if a step fails that nobody waits for.
  private later(done: Promise<unknown>): void {
    done.catch((err: unknown) => {
      if (!this.closing.aborted && !(err instanceof HistoryError)) this.events.onFailure?.(err)
    })
  }

  private newId(): string {
    return hex(this.core.clock.randomBytes(idLength))
  }
}

// messageOf reads what another device has said about history.
function messageOf({ own, content, kind, state }: Item): HistoryMessage | undefined {
  return !own && kind === "application" && state === "read" && content !== undefined ? decodeMessage(content) : undefined
}

function shown({ seq: _, parts: __, part: ___, entry: ____, ...bundle }: SavedBundle): HistoryBundle {
  return bundle
}

function isAttachment(uri: string): boolean {
  return uri.startsWith("mlsd:attachment/")
}
