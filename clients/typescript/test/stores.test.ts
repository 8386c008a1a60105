// The stores: what is written survives, all or nothing.

import assert from "node:assert/strict"
import { type ChildProcess, fork } from "node:child_process"
import { once } from "node:events"
import { appendFile, mkdtemp, rm, stat, symlink, truncate, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { after, test } from "node:test"
import { fileURLToPath } from "node:url"
import "fake-indexeddb/auto"
import { Client, type Page } from "../src/client.js"
import { openDevice } from "../src/device.js"
import { NoAnswerError } from "../src/errors.js"
import { asConvoId, asDid } from "../src/ids.js"
import { TsMls } from "../src/mls-ts.js"
import { names } from "../src/records.js"
import { FileStore } from "../src/store-file.js"
import { IndexedDBStore } from "../src/store-indexeddb.js"
import { type Changes, MemoryStore, OwnedStore, put, type Store } from "../src/store.js"
import { measure, writeEntries } from "./support/entries.js"
import { accountsOf } from "./support/everyone.js"

const folder = await mkdtemp(join(tmpdir(), "mlsd-stores-"))
after(() => rm(folder, { recursive: true }))

const path = join(folder, "file")
const kinds: Record<string, () => Promise<Store>> = {
  FileStore: () => FileStore.open(path),
  IndexedDBStore: () => IndexedDBStore.open("test"),
}

const alice = asDid("did:plc:alice")
const noService = { call: () => Promise.reject(new NoAnswerError("there is no service")) }
const aliceOn = (store: Store) => ({ did: alice, store, transport: noService, accounts: accountsOf(alice) })

const bytes = (...values: number[]) => Uint8Array.from(values)

for (const [name, open] of Object.entries({ ...kinds, MemoryStore: async () => new MemoryStore() })) {
  test(`${name}: writes, removes and lists`, async () => {
    const store = await open()
    await store.write(new Map([["a/2", bytes(2)], ["a/1", bytes(1)], ["b", bytes()]]))
    await store.write(new Map<string, Uint8Array | undefined>([["a/1", undefined], ["a/3", bytes(3)]]))
    assert.deepEqual(await store.list("a/"), ["a/2", "a/3"])
    assert.deepEqual(await store.read("a/3"), bytes(3))
    assert.deepEqual(await store.read("b"), bytes())
    assert.equal(await store.read("a/1"), undefined)
    await store.close()
  })
}

for (const [name, open] of Object.entries(kinds)) {
  test(`${name}: has after it is opened again what it had`, async () => {
    const first = await open()
    await first.write(new Map([["kept", bytes(7)]]))
    await first.close()
    const second = await open()
    assert.deepEqual(await second.read("kept"), bytes(7))
    await second.close()
  })
}

test("FileStore: an append that was cut short is dropped, and nothing else", async () => {
  const file = join(folder, "torn")
  const first = await FileStore.open(file)
  await first.write(new Map([["a", bytes(1)]]))
  const { size: whole, mode } = await stat(file)
  assert.equal(mode & 0o777, 0o600, "others can read private keys")
  await first.write(new Map([["a", bytes(2)], ["b", bytes(2)]]))
  await first.close()
  for (let cut = (await stat(file)).size - 1; cut >= whole; cut--) {
    await truncate(file, cut)
    const again = await FileStore.open(file)
    assert.deepEqual([await again.read("a"), await again.read("b")], [bytes(1), undefined], `cut at ${cut}`)
    await again.close()
  }
  await appendFile(file, bytes(0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9))
  const again = await FileStore.open(file)
  await again.write(new Map([["c", bytes(3)]]))
  await again.close()
  const last = await FileStore.open(file)
  assert.deepEqual(await last.list(""), ["a", "c"])
  await last.close()
})

test("FileStore: the journal is written anew when most of it is old", async () => {
  const file = join(folder, "long")
  const store = await FileStore.open(file)
  const large = new Uint8Array(1 << 20)
  for (let i = 0; i < 12; i++) await store.write(new Map([["a", large.fill(i)]]))
  const { size, mode } = await stat(file)
  assert.ok(size < 7 << 20)
  assert.equal(mode & 0o777, 0o600, "others can read private keys")
  await store.close()
  const again = await FileStore.open(file)
  assert.equal((await again.read("a"))?.[0], 11)
  await again.close()
})

for (const [name, open] of Object.entries({ ...kinds, MemoryStore: async () => new MemoryStore() })) {
  test(`D12: ${name}: a range has its ends, its limit and its direction, whatever was written and removed`, async () => {
    const store = await open()
    await store.write(new Map((await store.list("")).map((old) => [old, undefined])))
    const model = new Map<string, Uint8Array>()
    const key = (n: number) => `r/${String(n).padStart(4, "0")}`
    for (let step = 0; step < 40; step++) {
      const changes: Changes = new Map()
      for (let i = 0; i < (step % 4 === 0 ? 50 : 3); i++) {
        const at = key((step * 131 + i * 37) % 300)
        if ((step + i) % 3 === 0) changes.set(at, undefined)
        else changes.set(at, bytes(step, i))
      }
      await store.write(changes)
      for (const [at, content] of changes) if (content === undefined) model.delete(at); else model.set(at, content)
      const [from, to, limit] = [key(step), key(200 + step), 1 + (step % 7)]
      const all = [...model].filter(([at]) => at >= from && at <= to).sort(([a], [b]) => (a < b ? -1 : 1))
      assert.deepEqual(await store.range({ from, to }), all)
      assert.deepEqual(await store.range({ from, to, limit }), all.slice(0, limit))
      assert.deepEqual(await store.range({ from, to, limit, last: true }), all.slice(-limit))
      assert.equal(await store.count({ from, to }), all.length)
      assert.deepEqual(await store.list("r/"), [...model.keys()].sort())
    }
    await store.write(new Map([...model.keys()].map((old) => [old, undefined])))
    await store.close()
  })
}

test("D12: pages of a convo, forwards and backwards, and its counts", async () => {
  const store = new MemoryStore()
  const [convo, other] = [asConvoId("0192f3a4-5b6c-7d8e-9f01-23456789abcd"), asConvoId("0192f3a4-5b6c-7d8e-9f01-23456789abce")]
  const changes: Changes = new Map()
  for (let seq = 1; seq <= 9; seq++) {
    for (const one of [convo, other]) put(changes, names.item(one, seq), { seq, kind: seq === 4 ? "commit" : "application", state: "read", sender: seq === 5 ? alice : "did:plc:bob" })
  }
  await store.write(changes)
  const client = await openDevice(aliceOn(store))
  const seqs = async (page: Page) => (await client.items(convo, page)).map(({ seq }) => seq)
  assert.deepEqual(await seqs({}), [1, 2, 3, 4, 5, 6, 7, 8, 9])
  assert.deepEqual(await seqs({ limit: 3 }), [7, 8, 9])
  assert.deepEqual(await seqs({ limit: 3, before: 7 }), [4, 5, 6])
  assert.deepEqual(await seqs({ limit: 3, before: 2 }), [1])
  assert.deepEqual(await seqs({ limit: 3, after: 0 }), [1, 2, 3])
  assert.deepEqual(await seqs({ limit: 3, after: 7 }), [8, 9])
  assert.deepEqual(await seqs({ after: 2, before: 5 }), [3, 4])
  for (const none of [{ before: 1 }, { after: 9 }, { limit: 0 }, { after: 4, before: 5 }]) assert.deepEqual(await seqs(none), [])
  assert.deepEqual(await client.counts(convo), { items: 9, unread: 7 })
  const reading = [6, 3].map((seq) => client.markRead(convo, seq).catch(() => {})) // the service does not answer
  await new Promise(setImmediate)
  assert.deepEqual(await client.counts(convo), { items: 9, unread: 3 })
  await client.close()
  await Promise.all(reading)
})

test("D12: a page of 100,000 entries in a file", async () => {
  const file = join(folder, "entries")
  const first = await FileStore.open(file)
  await writeEntries(first)
  await first.close()
  const store = await FileStore.open(file)
  console.log(await measure("FileStore", store))
  await store.close()
})

const isOpen = { name: "StoreOpenError", code: "StoreOpen" }

for (const [name, open] of Object.entries(kinds)) {
  test(`D1: ${name}: a store that is open is refused by name, until it is closed`, async () => {
    const store = await open()
    await assert.rejects(open(), isOpen)
    await store.close()
    await store.close()
    await (await open()).close()
  })
}

test("D1: FileStore: another path to the same file is the same store", async () => {
  await symlink(folder, join(folder, "other"))
  const store = await FileStore.open(join(folder, "one"))
  await assert.rejects(FileStore.open(join(folder, "other", "one")), isOpen)
  await store.close()
})

test("D1: IndexedDBStore: with `wait` a second one takes over when the first is closed", async () => {
  const first = await IndexedDBStore.open("waiting")
  const second = IndexedDBStore.open("waiting", { wait: true })
  const leaving = new AbortController()
  const third = IndexedDBStore.open("waiting", { wait: true, signal: leaving.signal })
  leaving.abort(new Error("the page is left"))
  await assert.rejects(third, /the page is left/)
  await first.write(new Map([["a", bytes(1)]]))
  await first.close()
  const store = await second
  assert.deepEqual(await store.read("a"), bytes(1))
  await assert.rejects(IndexedDBStore.open("waiting"), isOpen)
  await store.close()
})

for (const [name, open] of Object.entries({ ...kinds, MemoryStore: async () => new MemoryStore() })) {
  test(`D1: ${name}: a second client over an open store is refused, and changes nothing`, async () => {
    const store = await open()
    const first = await openDevice(aliceOn(store))
    await assert.rejects(openDevice(aliceOn(store)), isOpen)
    const mls = await TsMls.create(alice, "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519")
    await assert.rejects(Client.open({ ...aliceOn(store), mls }), isOpen)
    const id = await first.deviceId()
    await first.close()
    const second = await openDevice(aliceOn(store)) // as React's StrictMode does: open, close, open
    assert.equal(await second.deviceId(), id)
    await second.close()
    await store.close()
  })
}

test("D1: of two clients that open a new store at once, one has it, and its device is the store's", async () => {
  const store = new MemoryStore()
  const both = await Promise.allSettled([openDevice(aliceOn(store)), openDevice(aliceOn(store))])
  assert.deepEqual(both.map(({ status }) => status), ["fulfilled", "rejected"])
  const first = (both[0] as PromiseFulfilledResult<Client>).value
  const id = await first.deviceId()
  await first.close()
  const again = await openDevice(aliceOn(store))
  assert.equal(await again.deviceId(), id)
  await again.close()
})

test("D1: a client that is closed writes nothing any more", async () => {
  const store = new MemoryStore()
  const owned = OwnedStore.take(store)
  const last = owned.write(new Map([["a", bytes(1)]]))
  await owned.release()
  await last
  await assert.rejects(owned.write(new Map([["a", bytes(2)]])), { code: "Store" })
  assert.deepEqual(await store.read("a"), bytes(1))
})

test("D2: FileStore: a lock of a process whose id another one has now does not block", async () => {
  const file = join(folder, "reused")
  await (await FileStore.open(file)).close()
  await writeFile(join(file + ".locks", "000000000099"), `${process.ppid} before it`)
  const store = await FileStore.open(file)
  await assert.rejects(FileStore.open(file), isOpen)
  await store.close()
})

const trials = Number(process.env.TEST_STARTS ?? 20)

test(`D2: FileStore: of three starts after a kill one has the store, ${trials} times`, async () => {
  const file = join(folder, "killed")
  const start = async () => {
    const owner = fork(fileURLToPath(new URL("support/owner.js", import.meta.url)), [file], { execArgv: [] })
    await once(owner, "message")
    return owner
  }
  const open = async (owner: ChildProcess) => {
    const answer = once(owner, "message")
    owner.send("open")
    return String((await answer)[0])
  }
  let first = await start()
  let others: ChildProcess[] = await Promise.all([start(), start(), start()])
  assert.equal(await open(first), "owner")
  let [several, blocked] = [0, 0]
  for (let trial = 0; trial < trials; trial++) {
    const ended = once(first, "exit")
    first.kill("SIGKILL")
    await ended // before that the system may not have ended it yet
    const [answers, next] = await Promise.all([Promise.all(others.map(open)), start()])
    const owners = answers.filter((answer) => answer === "owner").length
    assert.ok(answers.every((answer) => ["owner", "StoreOpen"].includes(answer)), answers.join(", "))
    if (owners > 1) several++
    if (owners === 0) blocked++
    if (owners !== 1) break
    first = others[answers.indexOf("owner")]!
    others = [...others.filter((owner) => owner !== first), next]
  }
  for (const owner of [first, ...others]) owner.kill("SIGKILL")
  console.log(`${trials} kills, three starts after each: more than one owner ${several}, blocked ${blocked}`)
  assert.deepEqual({ several, blocked }, { several: 0, blocked: 0 })
})
