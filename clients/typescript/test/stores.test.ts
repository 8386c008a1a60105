// The stores: what is written survives, all or nothing.

import assert from "node:assert/strict"
import { appendFile, mkdtemp, rm, stat, truncate } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { after, test } from "node:test"
import "fake-indexeddb/auto"
import { FileStore } from "../src/store-file.js"
import { IndexedDBStore } from "../src/store-indexeddb.js"
import { MemoryStore, type Store } from "../src/store.js"

const folder = await mkdtemp(join(tmpdir(), "mlsd-stores-"))
after(() => rm(folder, { recursive: true }))

const path = join(folder, "file")
const kinds: Record<string, () => Promise<Store>> = {
  FileStore: () => FileStore.open(path),
  IndexedDBStore: () => IndexedDBStore.open("test"),
}

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

test("FileStore: one process has it at a time", async () => {
  const store = await FileStore.open(join(folder, "one"))
  await assert.rejects(FileStore.open(join(folder, "one")), /in use by process/)
  await store.close()
  await (await FileStore.open(join(folder, "one"))).close()
})
