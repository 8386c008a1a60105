// History for a new device: docs/clients/HISTORY.md.
//
// TEST_HISTORY is how many messages the large bundle has, 300 by default.

import assert from "node:assert/strict"
import { readFile, writeFile } from "node:fs/promises"
import { monitorEventLoopDelay } from "node:perf_hooks"
import { test } from "node:test"
import { Attachments, openFile, sealFile } from "../src/attachments.js"
import type { Client } from "../src/client.js"
import {
  boundTo, checkBundle, decodeMessage, decodePart, encodeEntry, encodeMessage, encodePart, type HistoryEntry, type PartPointer,
} from "../src/history-format.js"
import { HistoryError, type HistoryRequest, type ImportedItem, isHistory } from "../src/history.js"
import type { ConvoId } from "../src/ids.js"
import { names } from "../src/records.js"
import { type Changes, MemoryStore, put } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { asks, forges, type Forgery, gives, importedTexts, largeScene, newDevice, type Scene, scene, shifted } from "./support/givers.js"
import { Killed, KillingStore } from "./support/killing.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

const count = Number(process.env.TEST_HISTORY ?? 300)

const closeAll = (...phones: readonly Client[]) => Promise.all(phones.map((phone) => phone.close()))

async function readsFiles({ convo, files }: Scene, did: string, items: readonly ImportedItem[]): Promise<void> {
  const pointers = items.filter(({ embedUri }) => embedUri !== undefined).map(({ content }) => JSON.parse(new TextDecoder().decode(content)))
  assert.equal(pointers.length, files.length)
  for (const [i, { plain }] of files.entries()) {
    assert.deepEqual(await new Attachments(transportOf(did as never)).download(convo, pointers[i]), plain)
  }
}

test(`a new device gets ${count} messages and 3 attachments, in their order, each once`, needsServer, async () => {
  const isLarge = count > 1000 // a log of so many is only seemingly there: to send them takes minutes
  const set = isLarge ? await largeScene(count, 3) : await scene(3, count, 3)
  const { convo, dids, phones, texts } = set
  const [old] = phones as [Client]
  const batches: number[] = []
  const phone = await newDevice(set, dids[0]!, {
    transport: shifted(transportOf(dids[0]!), isLarge ? count : 0), events: { onImported: (_, items) => batches.push(items.length) },
  })
  const request = await asks(phone, old, convo)
  const begun = performance.now()
  const bundle = await gives(old, phone, convo, request.id)
  const given = performance.now()
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  let turns = 0
  const turning = setInterval(() => turns++, 0)
  const done = await phone.history.import(convo, bundle.id)
  clearInterval(turning)
  delay.disable()
  const ended = performance.now()

  const items = await phone.history.imported(convo)
  assert.deepEqual(await importedTexts(phone, convo), texts)
  const seqs = items.map(({ seq }) => seq)
  assert.deepEqual(seqs, [...seqs].sort((a, b) => a - b), "the log's order")
  assert.equal(new Set(seqs).size, count, "no duplicates")
  assert.deepEqual([done.state, done.imported, done.known, done.refused], ["imported", count, 0, 0])
  assert.ok(batches.every((size) => size <= 200), "batches are small")
  assert.ok(turns >= batches.length, `the event loop ran ${turns} times in ${batches.length} batches`)
  await readsFiles(set, dids[0]!, items)
  console.log(
    `${count} messages and 3 attachments: ${bundle.bytes} bytes, made and sent in ${Math.round(given - begun)} ms, imported in ` +
    `${Math.round(ended - given)} ms, the event loop stood still for ${Math.round(delay.max / 1e6)} ms at most; ` +
    `${items.length} in their order, ${items.length - new Set(seqs).size} duplicates`,
  )
  await closeAll(phone, ...phones)
})

test("what is imported is shown as imported: by whom, of whom, and never among what was received", needsServer, async () => {
  const set = await scene(2, 6, 0)
  const { convo, dids, phones, texts } = set
  const [alice, bob] = phones as [Client, Client]
  await bob.sync(convo)
  const phone = await newDevice(set, dids[0]!)
  await (await bob.send(convo, bytesOf("after"))).sent
  const bundle = await gives(bob, phone, convo, (await asks(phone, bob, convo)).id)
  await phone.history.import(convo, bundle.id)
  const items = await phone.history.imported(convo)
  assert.deepEqual(items.map(({ from }) => from), items.map(() => dids[1]), "they are Bob's word")
  assert.deepEqual(new Set(items.map(({ sender }) => sender)), new Set(dids), "and of both")
  const received = await alice.items(convo)
  for (const item of items) {
    const { messageId, id, digest, createdAt } = received.find(({ seq }) => seq === item.seq)!
    assert.deepEqual([item.messageId, item.id, item.digest, Date.parse(item.createdAt)], [messageId, id, digest, Date.parse(createdAt)])
  }
  const own = (await phone.items(convo)).filter(({ content }) => content !== undefined && !isHistory(content))
  assert.deepEqual(own.map(({ content }) => new TextDecoder().decode(content)), ["after"])
  assert.deepEqual(await importedTexts(phone, convo), texts)
  // What was given is given on, and marked.
  const third = await newDevice({ ...set, phones: [alice, bob, phone] }, dids[0]!)
  const again = await gives(phone, third, convo, (await asks(third, phone, convo)).id)
  await third.history.import(convo, again.id)
  const relayed = await third.history.imported(convo)
  assert.deepEqual(relayed.map(({ relayed = false }) => relayed), [...texts.map(() => true), false])
  await closeAll(phone, third, alice, bob)
})

test("a newer member gets history and files from a member who agrees", needsServer, async () => {
  const set = await scene(2, 5, 3)
  const { convo, phones, texts } = set
  const [alice, bob] = phones as [Client, Client]
  const [carol] = await newAccounts(1)
  const heard: HistoryRequest[] = []
  const phone = await openPhone(carol!, new MemoryStore())
  await phone.replenish()
  await alice.add(convo, [carol!])
  await phone.join(convo)
  const request = await asks(phone, alice, convo)
  await bob.sync(convo)
  heard.push(...(await bob.history.requests(convo)))
  assert.deepEqual(heard.map(({ did, agreed }) => [did, agreed]), [[carol, []]])
  const bundle = await gives(alice, phone, convo, request.id)
  assert.deepEqual([bundle.from, bundle.asked, bundle.state], [alice["core"].did, true, "offered"])
  await bob.sync(convo)
  assert.deepEqual((await bob.history.requests(convo)).map(({ agreed }) => agreed), [[bundle.from]], "others see who has agreed")
  assert.equal((await bob.history.bundles(convo))[0]?.asked, undefined, "Bob has not asked for it")
  await phone.history.import(convo, bundle.id)
  assert.deepEqual(await importedTexts(phone, convo), texts)
  await readsFiles(set, carol!, await phone.history.imported(convo))
  await closeAll(phone, alice, bob)
})

test("what this device has of the log, and has no keys for, is compared with a bundle", needsServer, async () => {
  const set = await scene(2, 4, 0)
  const { convo, dids, phones } = set
  const [alice, bob] = phones as [Client, Client]
  const store = new MemoryStore()
  const phone = await newDevice(set, dids[0]!, {}, store)
  const [one, two] = (await alice.items(convo)).filter(({ content }) => content !== undefined)
  const changes: Changes = new Map()
  for (const [item, digest] of [[one!, one!.digest], [two!, "11".repeat(32)]] as const) {
    const { content: _, messageId: __, ...past } = item
    put(changes, names.item(convo, item.seq), { ...past, digest, state: "past" })
  }
  await store.write(changes)
  const bundle = await gives(alice, phone, convo, (await asks(phone, alice, convo)).id)
  const done = await phone.history.import(convo, bundle.id)
  assert.deepEqual([done.imported, done.known, done.refused], [3, 0, 1])
  const items = await phone.history.imported(convo)
  assert.deepEqual(items.filter(({ inLog }) => inLog).map(({ seq }) => seq), [one!.seq])
  assert.ok(!items.some(({ seq }) => seq === two!.seq), "the log contradicts it")
  await closeAll(phone, alice, bob)
})

test("two bundles at once: what both have is imported once", needsServer, async () => {
  const set = await scene(2, 250, 0)
  const { convo, dids, phones, texts } = set
  const [alice, bob] = phones as [Client, Client]
  await bob.sync(convo)
  const phone = await newDevice(set, dids[0]!)
  const request = await asks(phone, alice, convo)
  await bob.sync(convo)
  const [half] = (await alice.items(convo)).slice(120)
  const ids = [await alice.history.share(convo, request.id, { after: half!.seq }), await bob.history.share(convo, request.id)]
  await Promise.all([alice.history.sent(ids[0]!), bob.history.sent(ids[1]!)])
  await phone.sync(convo)
  const [one, two] = await Promise.all(ids.map((id) => phone.history.import(convo, id)))
  assert.ok(one && two && one.entries < two.entries)
  assert.equal(one.imported + two.imported, texts.length, "each once")
  assert.equal(one.known + two.known, one.entries, "and what both have is known")
  assert.deepEqual(await importedTexts(phone, convo), texts)
  const again = await gives(bob, phone, convo, request.id)
  assert.deepEqual([(await phone.history.import(convo, again.id)).imported, (await importedTexts(phone, convo)).length], [0, texts.length])
  await closeAll(phone, alice, bob)
})

test("what this device has received is never replaced", needsServer, async () => {
  const set = await scene(2, 4, 0)
  const { convo, dids, phones } = set
  const [alice, bob] = phones as [Client, Client]
  await bob.sync(convo)
  const before = await bob.items(convo)
  const [target] = before.filter(({ content }) => content !== undefined)
  const request = await asks(bob, alice, convo)
  const lie = { seq: target!.seq, digest: target!.digest, sender: target!.sender }
  const id = await forges(alice, dids[0]!, convo, request.id, { entries: [lie] })
  const other = await forges(alice, dids[0]!, convo, request.id, { entries: [{ ...lie, digest: "11".repeat(32) }] })
  await bob.sync(convo)
  assert.deepEqual([(await bob.history.import(convo, id)).known, (await bob.history.import(convo, other)).refused], [1, 1])
  // Not even after the app has taken them into a database of its own.
  await bob.forget(convo, target!.seq)
  const last = await forges(alice, dids[0]!, convo, request.id, { entries: [lie] })
  await bob.sync(convo)
  assert.equal((await bob.history.import(convo, last)).known, 1)
  assert.deepEqual(await bob.history.imported(convo), [])
  await closeAll(alice, bob)
})

test("cancelled: a request, a bundle that is being made, one that is offered, and an import", needsServer, async () => {
  const disk = new MemoryStore()
  const set = await scene(2, 30, 0, disk)
  const { convo, dids, phones } = set
  const [first, bob] = phones as [Client, Client]
  const store = new MemoryStore()
  const phone = await newDevice(set, dids[0]!, {}, store)

  const early = await asks(phone, first, convo)
  await phone.history.cancel(convo, early.id)
  await phone.outbox.idle()
  await first.sync(convo)
  assert.deepEqual(await first.history.requests(convo), [])
  await assert.rejects(first.history.share(convo, early.id), HistoryError)

  await first.close()
  // The giver stops while the upload waits for an answer: by itself, and because who asked has cancelled.
  for (const who of ["giver", "asker"] as const) {
    const stuck = new Stuck(transportOf(dids[0]!), "createAttachment")
    const giver = await openPhone(dids[0]!, disk, { transport: stuck })
    const asked = await asks(phone, giver, convo)
    const making = await giver.history.share(convo, asked.id)
    const ended = assert.rejects(giver.history.sent(making), /cancelled/)
    await stuck.reached
    if (who === "giver") await giver.history.cancel(convo, making)
    else await phone.history.cancel(convo, asked.id)
    await Promise.all([giver.outbox.idle(), phone.outbox.idle()])
    await giver.sync(convo)
    await ended
    assert.deepEqual(await disk.list("history/share/"), [])
    assert.deepEqual(await disk.list("history/part/"), [])
    await giver.close()
  }
  const alice = await openPhone(dids[0]!, disk)
  const second = await asks(phone, bob, convo)

  const bundle = await gives(alice, phone, convo, (await synced(alice, convo, second.id)).id)
  await alice.history.cancel(convo, bundle.id)
  await alice.outbox.idle()
  await phone.sync(convo)
  assert.equal((await phone.history.bundles(convo)).find(({ id }) => id === bundle.id)?.state, "cancelled")
  await assert.rejects(phone.history.import(convo, bundle.id), /cancelled/)

  // The importer stops while the download waits for an answer. It stays cancelled in the next life.
  const last = await gives(bob, phone, convo, (await synced(bob, convo, second.id)).id)
  await phone.close()
  const waiting = new Stuck(transportOf(dids[0]!), "getAttachment")
  const again = await openPhone(dids[0]!, store, { transport: waiting })
  const importing = assert.rejects(again.history.import(convo, last.id), /cancelled/)
  await waiting.reached
  await again.history.cancel(convo, last.id)
  await importing
  await again.close()
  const next = await openPhone(dids[0]!, store)
  assert.equal((await next.history.bundles(convo)).find(({ id }) => id === last.id)?.state, "cancelled")
  assert.deepEqual(await next.history.imported(convo), [])
  await closeAll(next, alice, bob)
})

async function synced(phone: Client, convo: ConvoId, request: string): Promise<HistoryRequest> {
  await phone.sync(convo)
  return (await phone.history.requests(convo)).find(({ id }) => id === request)!
}

/** A way on which calls of one method get no answer until they are aborted. */
class Stuck implements Transport {
  private reach = () => {}
  readonly reached = new Promise<void>((resolve) => (this.reach = resolve))
  constructor(private readonly way: Transport, private readonly method: string) {}
  call(call: Call): Promise<string> {
    return this.stuck(call) ?? this.way.call(call)
  }
  receive(call: Call): Promise<Uint8Array> {
    return this.stuck(call) ?? this.way.receive!(call)
  }
  private stuck(call: Call): Promise<never> | undefined {
    if (!call.method.endsWith("." + this.method)) return undefined
    this.reach()
    return new Promise((_, reject) => call.signal?.addEventListener("abort", () => reject(call.signal?.reason)))
  }
}

test("an import that is killed at any of its writes goes on, and doubles nothing", needsServer, async () => {
  const set = await scene(2, 260, 0)
  const { convo, dids, phones, texts } = set
  const [alice] = phones as [Client]
  const asking = new MemoryStore()
  const phone = await newDevice(set, dids[0]!, {}, asking)
  const bundle = await gives(alice, phone, convo, (await asks(phone, alice, convo)).id)
  await phone.close()
  let kills = 0
  for (const late of [false, true]) {
    for (let writes = 0, killed = true; killed; writes++) {
      const disk = new MemoryStore()
      for (const name of await asking.list("")) await disk.write(new Map([[name, await asking.read(name)]]))
      const store = new KillingStore(disk, writes, late)
      const dying = await openPhone(dids[0]!, store)
      await dying.history.import(convo, bundle.id).catch((err) => {
        if (!(err instanceof Killed) && !store.killed) throw err
      })
      await dying.close()
      killed = store.killed
      const next = await openPhone(dids[0]!, disk) // it goes on by itself with what was begun
      const done = await next.history.import(convo, bundle.id)
      assert.deepEqual([done.imported, done.known, done.refused], [texts.length, 0, 0], `killed at write ${writes}, late ${late}`)
      assert.deepEqual(await importedTexts(next, convo), texts)
      await next.close()
      if (killed) kills++
    }
  }
  assert.ok(kills >= 8, `${kills} kills`)
  await closeAll(...phones)
})

test("a bundle whose maker is killed at any of its writes arrives once", needsServer, async () => {
  const disk = new MemoryStore()
  const set = await scene(2, 5, 0, disk)
  const { convo, dids, phones, texts } = set
  const [alice, bob] = phones as [Client, Client]
  const phone = await newDevice(set, dids[0]!)
  const request = await asks(phone, alice, convo)
  await alice.close()
  for (const late of [false, true]) {
    for (let writes = 0, killed = true; killed; writes++) {
      const store = new KillingStore(disk, writes, late)
      const events = await new Promise<void>((resolve) => {
        const life = async () => {
          const dying = await openPhone(dids[0]!, store, { events: { onFailure: () => store.killed && resolve() } })
          const id = await dying.history.share(convo, request.id).catch(() => undefined)
          if (id !== undefined) await dying.history.sent(id).catch(() => {})
          if (!store.killed) await dying.outbox.idle()
          await dying.close()
        }
        life().then(resolve, () => resolve())
      })
      assert.equal(events, undefined)
      killed = store.killed
      const next = await openPhone(dids[0]!, disk)
      for (const name of await disk.list("history/share/")) await next.history.sent(name.slice("history/share/".length))
      await next.outbox.idle()
      await next.close()
    }
  }
  await phone.sync(convo)
  const bundles = await phone.history.bundles(convo)
  assert.ok(bundles.length >= 8, `${bundles.length} bundles`)
  for (const { id } of bundles) await phone.history.import(convo, id)
  assert.deepEqual((await importedTexts(phone, convo)).slice(0, texts.length), texts)
  assert.equal((await phone.history.imported(convo)).length, new Set((await phone.history.imported(convo)).map(({ seq }) => seq)).size)
  await closeAll(phone, bob)
})

const huge = 0xffffffff
const hostile: Readonly<Record<string, Forgery & { readonly says: RegExp }>> = {
  "says that a part has 4 GiB": { part: { size: huge }, says: /too large/ },
  "has 300 parts": { parts: (part) => Array.from({ length: 300 }, () => part), count: 300, says: /300 parts/ },
  "has 25 parts of 11 MiB": {
    parts: (part) => Array.from({ length: 25 }, (_, i) => ({ ...part, size: 11 << 20, from: i + 1, to: i + 1 })), count: 25, says: /too large/,
  },
  "says that it has more messages than its parts": { count: 7, says: /7 messages/ },
  "says that it has a million messages": { part: { entries: 1_000_000 }, says: /not in their order/ },
  "has the same part twice": { parts: (part) => [part, part], count: 2, says: /not in their order/ },
  "has parts in the wrong order": {
    parts: (part) => [{ ...part, from: 2, to: 2 }, { ...part, from: 1, to: 1 }], count: 2, says: /not in their order/,
  },
  "has another part's place": { index: 2, says: /cannot be decrypted/ },
  "was made for another convo": { convo: "0192f3a4-0000-7000-8000-000000000000", says: /cannot be decrypted/ },
  "has another key": { part: { key: "A".repeat(43) }, says: /cannot be decrypted/ },
  "has a key of another length": { part: { key: "AAAA" }, says: /cannot be decrypted/ },
  "names other bytes": { part: { sha256: "00".repeat(32) }, says: /not the one that was sent/ },
  "has messages from after itself": { entries: [{ seq: 900_000 }], says: /not in their order/ },
  "has a message outside of its part": { part: { from: 2, to: 2 }, says: /not in its place/ },
  "has a message twice": { entries: [{ seq: 1 }, { seq: 1 }], part: { to: 2 }, says: /not in its place/ },
  "has messages in the wrong order": { entries: [{ seq: 2 }, { seq: 1 }], part: { from: 1, to: 2 }, says: /not in its place/ },
  "has fewer messages than it says": { entries: [{ seq: 1 }], part: { entries: 2, to: 2 }, says: /missing/ },
  "is cut short": { plain: (bytes) => bytes.subarray(0, -1), says: /cut short/ },
  "says that a message has 4 GiB": {
    plain: (bytes) => bytes.map((byte, i) => (i >= bytes.length - 38 && i < bytes.length - 34 ? 255 : byte)), says: /cut short/,
  },
  "has another version": { plain: (bytes) => bytes.map((byte, i) => (i === 4 ? 2 : byte)), says: /version 2/ },
  "is something else": { plain: () => bytesOf("something else"), says: /no part/ },
  "has a sender that is no DID": { entries: [{ sender: "<b>Alice</b>" }], says: /not described/ },
  "has a message of the year 20000": { entries: [{ createdAt: 568_971_820_800_000 }], says: /not described/ },
}

test("hostile bundles are refused before they cost anything, and nothing of them is imported", needsServer, async () => {
  const set = await scene(2, 6, 0)
  const { convo, dids, phones } = set
  const [alice, bob] = phones as [Client, Client]
  const phone = await newDevice(set, dids[0]!)
  const request = await asks(phone, bob, convo)
  for (const [name, forgery] of Object.entries(hostile)) {
    const id = await forges(bob, dids[1]!, convo, request.id, forgery)
    await phone.sync(convo)
    await assert.rejects(phone.history.import(convo, id), (err) => err instanceof HistoryError && forgery.says.test(err.message), name)
    assert.equal((await phone.history.bundles(convo)).find((one) => one.id === id)?.state, "failed", name)
    assert.deepEqual(await phone.history.imported(convo), [], name)
  }
  // A message about history that comes in a bundle could name files, or ask.
  const inner = new Uint8Array([...new Uint8Array(16), ...encodeMessage({ type: "cancel", id: request.id })])
  const id = await forges(bob, dids[1]!, convo, request.id, { entries: [{ plaintext: inner }] })
  const honest = await forges(bob, dids[1]!, convo, request.id)
  await phone.sync(convo)
  assert.equal((await phone.history.import(convo, id)).refused, 1)
  await assert.rejects(phone.history.import(convo, honest, { mostBytes: 100 }), /too large/)
  assert.equal((await phone.history.import(convo, honest)).imported, 1, "and the same without a forgery is imported, as Bob's word")
  await closeAll(phone, alice, bob)
})

test("nobody fills a store with offers, cancels what is another's, or is understood in a later version", needsServer, async () => {
  const set = await scene(3, 3, 0)
  const { convo, dids, phones } = set
  const [alice, bob, carol] = phones as [Client, Client, Client]
  const phone = await newDevice(set, dids[0]!)
  const request = await asks(phone, bob, convo)
  const mine = await forges(bob, dids[1]!, convo, request.id)
  const say = async (content: Uint8Array) => (await carol.send(convo, content)).sent
  await say(encodeMessage({ type: "cancel", id: request.id }))
  await say(encodeMessage({ type: "cancel", id: mine }))
  for (let i = 0; i < 40; i++) {
    const id = String(i).padStart(32, "0")
    const part = { id: "a", key: "A".repeat(43), nonce: "A".repeat(16), sha256: "00".repeat(32), size: 100, entries: 1, from: 1, to: 1 }
    await say(encodeMessage({ type: "bundle", request: "0".repeat(32), id, entries: 1, parts: [part] }))
    await say(encodeMessage({ type: "request", id, device: "0".repeat(64), before: 9 }))
  }
  const later = encodeMessage({ type: "request", id: "f".repeat(32), device: "0".repeat(64), before: 9 })
  later[13] = 2
  await say(later)
  await say(encodeMessage({ type: "thing of a later version", id: "f".repeat(32) } as never))
  await Promise.all([phone.sync(convo), bob.sync(convo)])
  const bundles = await phone.history.bundles(convo)
  assert.equal(bundles.filter(({ asked }) => !asked).length, 32)
  assert.equal(bundles.find(({ id }) => id === mine)?.state, "offered", "what this device has asked for stays")
  const requests = await phone.history.requests(convo)
  assert.equal(requests.filter(({ mine }) => !mine).length, 32)
  assert.ok(requests.some(({ id }) => id === request.id), "only who asks cancels a request")
  assert.ok(!requests.some(({ id }) => id === "f".repeat(32)))
  assert.ok(isHistory(later), "an app does not show it")
  await closeAll(phone, alice, bob, carol)
})

test("a bundle of one convo is not imported into another", needsServer, async () => {
  const set = await scene(2, 4, 0)
  const { convo, dids, phones } = set
  const [alice, bob] = phones as [Client, Client]
  const second = await alice.createConvo([])
  const phone = await newDevice(set, dids[0]!)
  await phone.rejoin(second)
  const bundle = await gives(alice, phone, convo, (await asks(phone, alice, convo)).id)
  await assert.rejects(phone.history.import(second, bundle.id), HistoryError)
  // Nor if a member of both passes on the message as it is.
  const message = (await phone.items(convo)).find(({ content }) => content !== undefined && new TextDecoder().decode(content).includes(bundle.id + '","entries'))
  await alice.sync(second)
  for (let i = 0; i < 12; i++) await (await alice.send(second, bytesOf(`filler ${i}`))).sent
  await (await alice.send(second, message!.content!)).sent
  await phone.sync(second)
  assert.equal((await phone.history.bundles(second))[0]?.id, bundle.id)
  await assert.rejects(phone.history.import(second, bundle.id), /AttachmentNotFound/)
  assert.deepEqual(await phone.history.imported(second), [])
  assert.deepEqual(await textsOf(phone, second).then((texts) => texts.filter((text) => text.startsWith("message"))), [])
  await closeAll(phone, alice, bob)
})

/** A bundle as one of the clients has written it: clients/vectors. Bytes are base64. */
interface Vector {
  readonly convo: string
  readonly seq: number
  readonly message: string
  readonly parts: readonly string[]
  readonly entries: readonly (Omit<HistoryEntry, "plaintext"> & { readonly plaintext: string })[]
}

const toBase64 = (bytes: Uint8Array) => Buffer.from(bytes).toString("base64")
const fromBase64 = (text: string) => new Uint8Array(Buffer.from(text, "base64"))

const vectors = new URL("../../../vectors/", import.meta.url)

test("one format: bundles that either client has written are read, and encoded to the same bytes", async () => {
  if (process.env.HISTORY_VECTORS === "write") {
    await writeFile(new URL("history-typescript.json", vectors), JSON.stringify(await newVector(), undefined, 1) + "\n")
  }
  for (const name of ["history-typescript.json", "history-swift.json"]) {
    const vector = JSON.parse(await readFile(new URL(name, vectors), "utf8")) as Vector
    const message = decodeMessage(fromBase64(vector.message))
    assert.ok(message?.type === "bundle", name)
    checkBundle(message.parts, message.entries, vector.seq)
    const all: HistoryEntry[] = []
    for (const [i, part] of message.parts.entries()) {
      const plain = await openFile(part, fromBase64(vector.parts[i]!), boundTo(vector.convo, message.id, i + 1))
      const entries = [...decodePart(plain, part)]
      assert.deepEqual(encodePart(entries.map(encodeEntry)), plain, name)
      all.push(...entries)
    }
    const got = all.map((entry) => ({ ...entry, plaintext: toBase64(entry.plaintext) }))
    const want = vector.entries.map((entry) => ({ ...entry, plaintext: toBase64(fromBase64(entry.plaintext)) }))
    assert.deepEqual(got, want, name)
    assert.equal(all.length, 5)
  }
})

async function newVector(): Promise<Vector> {
  const [convo, id, request] = ["0192f3a4-aaaa-7bbb-8ccc-000000000001", "0".repeat(31) + "1", "0".repeat(31) + "2"]
  const entries = Array.from({ length: 5 }, (_, at): HistoryEntry => {
    const i = at + 1
    const plaintext = bytesOf(i === 4 ? "short" : `0123456789abcdefhello ${i}, from TypeScript: grüezi 👋`)
    return {
      seq: i * 3, id: `0192f3a4-0000-7000-8000-00000000000${i}`, sender: `did:plc:person${i}`, createdAt: 1_767_225_600_000 + i,
      digest: `0${i}`.repeat(32), relayed: i === 2, embedUri: i === 3 ? "mlsd:attachment/0192f3a4" : "", plaintext,
    }
  })
  const [parts, ciphertexts]: [PartPointer[], string[]] = [[], []]
  for (const [i, chunk] of [entries.slice(0, 2), entries.slice(2)].entries()) {
    const { ciphertext, key, nonce, sha256, size } = await sealFile(encodePart(chunk.map(encodeEntry)), boundTo(convo, id, i + 1))
    ciphertexts.push(toBase64(ciphertext))
    parts.push({
      id: `attachment-${i + 1}`, key, nonce, sha256, size, entries: chunk.length, from: chunk[0]!.seq, to: chunk.at(-1)!.seq,
    })
  }
  const message = toBase64(encodeMessage({ type: "bundle", request, id, entries: entries.length, parts }))
  return { convo, seq: 20, message, parts: ciphertexts, entries: entries.map((entry) => ({ ...entry, plaintext: toBase64(entry.plaintext) })) }
}
