// A person with messages, and a new device of it that has none: for tests of history.

import assert from "node:assert/strict"
import { Attachments, type FilePointer, sealFile } from "../../src/attachments.js"
import type { Client, ClientOptions } from "../../src/client.js"
import { boundTo, encodeEntry, encodeMessage, encodePart, type HistoryEntry, type PartPointer } from "../../src/history-format.js"
import type { HistoryBundle, HistoryRequest } from "../../src/history.js"
import type { ConvoId, Did } from "../../src/ids.js"
import { type Item, names } from "../../src/records.js"
import { type Changes, MemoryStore, put, type Store } from "../../src/store.js"
import type { Transport } from "../../src/transport.js"
import { newAccounts, transportOf } from "./dev.js"
import { bytesOf, openPhone, textsOf } from "./phone.js"

/** A convo of people, of whom the first has written all of it, with files. */
export interface Scene {
  readonly convo: ConvoId
  readonly dids: readonly Did[]
  readonly phones: readonly Client[]
  readonly texts: string[]
  readonly files: { readonly pointer: FilePointer; readonly plain: Uint8Array }[]
}

/** Makes a convo of so many people, in which messages are sent. The first ones name files. */
export async function scene(people: number, messages: number, files: number, store: Store = new MemoryStore()): Promise<Scene> {
  const dids = await newAccounts(people)
  const phones = await Promise.all(dids.map((did, i) => openPhone(did, i === 0 ? store : new MemoryStore())))
  for (const phone of phones.slice(1)) await phone.replenish()
  const [first] = phones
  assert.ok(first)
  const convo = await first.createConvo(dids.slice(1))
  for (const phone of phones.slice(1)) await phone.join(convo)
  const made: Scene = { convo, dids, phones, texts: [], files: [] }
  for (let i = 0; i < files; i++) await sendFile(made, i)
  await Promise.all(phones.map(async (phone, p) => {
    for (let i = p; i < messages - files; i += phones.length) await (await phone.send(convo, bytesOf(`message ${i}`))).sent
  }))
  await first.sync(convo)
  made.texts.push(...(await textsOf(first, convo)))
  assert.equal(made.texts.length, messages)
  return made
}

/** A convo whose log seems to begin with so many messages, of which the first ones name files. */
export async function largeScene(messages: number, files: number): Promise<Scene> {
  const dids = await newAccounts(2)
  const first = await openPhone(dids[0]!, new MemoryStore(), { transport: shifted(transportOf(dids[0]!), messages) })
  const made: Scene = { convo: await first.createConvo([]), dids, phones: [first], texts: [], files: [] }
  for (let i = 0; i < files; i++) made.files.push(await uploads(made, i))
  await first.sync(made.convo)
  await plant(first, made, messages)
  return made
}

/** A way to a server whose log seems to have so many entries before its first one. */
export function shifted(way: Transport, by: number): Transport {
  return {
    call: async (call) => {
      const params = new URLSearchParams(call.params)
      if (params.has("sinceSeq")) params.set("sinceSeq", String(Math.max(0, Number(params.get("sinceSeq")) - by)))
      const answer = await way.call({ ...call, ...(call.params && { params }) })
      return answer.replace(/"(seq|lastSeq)":(\d+)/g, (_, name: string, seq: string) => `"${name}":${Number(seq) + by}`)
    },
    receive: (call) => way.receive!(call),
  }
}

// plant makes a device have read the entries that the log only seems to have. Some name files.
async function plant(phone: Client, { convo, dids, files, texts }: Scene, count: number): Promise<void> {
  const changes: Changes = new Map()
  for (let seq = 1; seq <= count; seq++) {
    const pointer = files[seq - 1]?.pointer
    texts.push(pointer ? JSON.stringify({ type: "file", ...pointer }) : `message ${seq} of somebody: some words, as many as people say at once`)
    const digest = seq.toString(16).padStart(64, "0")
    const item: Item = {
      seq, id: `0192f3a4-0000-7000-8000-${digest.slice(52)}`, kind: "application", sender: dids[seq % dids.length]!, digest, own: false,
      createdAt: new Date(1_767_225_600_000 + seq).toISOString(), state: "read", messageId: digest.slice(32), content: bytesOf(texts.at(-1)!),
      ...(pointer && { embedUri: pointer.uri }),
    }
    put(changes, names.item(convo, seq), item)
  }
  await phone["core"].store.write(changes)
}

async function sendFile(made: Scene, i: number): Promise<void> {
  const { pointer, plain } = await uploads(made, i)
  const content = bytesOf(JSON.stringify({ type: "file", ...pointer }))
  await (await made.phones[0]!.send(made.convo, content, { embedUri: pointer.uri })).sent
  made.files.push({ pointer, plain })
}

async function uploads({ convo, dids }: Scene, i: number): Promise<Scene["files"][number]> {
  const plain = Uint8Array.from({ length: 300_000 + i }, (_, at) => (at * 7 + i) & 255)
  return { plain, pointer: await new Attachments(transportOf(dids[0]!)).upload(convo, await sealFile(plain)) }
}

/** Another device of a person, that enters by an external commit and has no older messages. */
export async function newDevice({ convo, phones }: Scene, did: Did, options: Partial<ClientOptions> = {}, store: Store = new MemoryStore()): Promise<Client> {
  const phone = await openPhone(did, store, options)
  await phone.rejoin(convo)
  await Promise.all(phones.map((other) => other.sync(convo)))
  return phone
}

/** A device asks, and another one hears it. */
export async function asks(phone: Client, giver: Client, convo: ConvoId): Promise<HistoryRequest> {
  const id = await phone.history.request(convo)
  await phone.outbox.idle()
  await giver.sync(convo)
  const request = (await giver.history.requests(convo)).find((one) => one.id === id)
  assert.ok(request, "the request has arrived")
  return request
}

/** A device gives what another one has asked for. */
export async function gives(giver: Client, phone: Client, convo: ConvoId, request: string): Promise<HistoryBundle> {
  const id = await giver.history.share(convo, request)
  await giver.history.sent(id)
  await phone.sync(convo)
  const bundle = (await phone.history.bundles(convo)).find((one) => one.id === id)
  assert.ok(bundle, "the bundle has arrived")
  return bundle
}

/** The texts of imported messages. */
export async function importedTexts(phone: Client, convo: ConvoId): Promise<string[]> {
  return (await phone.history.imported(convo)).map(({ content }) => new TextDecoder().decode(content))
}

/** What a hostile member changes. */
export interface Forgery {
  readonly entries?: readonly Partial<HistoryEntry>[]
  readonly part?: Partial<PartPointer>
  readonly count?: number
  /** What the part is bound to. */
  readonly convo?: string
  readonly index?: number
  /** The plaintext of the part. */
  readonly plain?: (bytes: Uint8Array) => Uint8Array
  readonly parts?: (part: PartPointer) => readonly PartPointer[]
}

const entry: HistoryEntry = {
  seq: 1, id: "0192f3a4-0000-7000-8000-000000000001", sender: "did:plc:victim", createdAt: 1_700_000_000_000, digest: "00".repeat(32),
  relayed: false, embedUri: "", plaintext: bytesOf("0123456789abcdefI never wrote this"),
}

/** Sends a bundle that a hostile member has made by hand, of one message unless the forgery says otherwise. */
export async function forges(giver: Client, did: Did, convo: ConvoId, request: string, forgery: Forgery = {}): Promise<string> {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")
  const entries = (forgery.entries ?? [{}]).map((change) => ({ ...entry, ...change }))
  const plain = (forgery.plain ?? ((bytes) => bytes))(encodePart(entries.map(encodeEntry)))
  const sealed = await sealFile(plain, boundTo(forgery.convo ?? convo, id, forgery.index ?? 1))
  const { id: attachment, key, nonce, sha256, size } = await new Attachments(transportOf(did)).upload(convo, sealed)
  const part: PartPointer = {
    id: attachment, key, nonce, sha256, size, entries: entries.length, from: entries[0]?.seq ?? 1, to: entries.at(-1)?.seq ?? 1, ...forgery.part,
  }
  const parts = forgery.parts?.(part) ?? [part]
  await (await giver.send(convo, encodeMessage({ type: "bundle", request, id, entries: forgery.count ?? part.entries, parts }))).sent
  return id
}
