// A device and the server agree about its KeyPackages.

import assert from "node:assert/strict"
import { test } from "node:test"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

test("a device that has lost private keys withdraws their KeyPackages, and can be invited", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const a = await openPhone(alice, new MemoryStore())
  const store = new MemoryStore()
  const before = await openPhone(bob, store)
  assert.equal(await before.replenish(), 6)
  await before.close()

  const lost = new Map((await store.list("keypackage/")).map((name) => [name, undefined]))
  assert.equal(lost.size, 6)
  await store.write(lost)
  const after = await openPhone(bob, store)
  assert.equal(await after.replenish(), 6, "all six are withdrawn, and others published")
  assert.equal(await after.replenish(), 0)

  const convo = await a.createConvo([bob])
  await after.join(convo)
  await (await a.send(convo, bytesOf("hello"))).sent
  await after.sync(convo)
  assert.deepEqual(await textsOf(after, convo), ["hello"])
  await Promise.all([a.close(), after.close()])
})

test("a device that holds its private keys withdraws nothing", needsServer, async () => {
  const [bob] = await newAccounts(1)
  assert.ok(bob)
  const store = new MemoryStore()
  const before = await openPhone(bob, store)
  assert.equal(await before.replenish(), 6)
  await before.close()
  const after = await openPhone(bob, store)
  assert.equal(await after.replenish(), 0)
  await after.close()
})
