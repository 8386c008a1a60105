// A device and the server agree about its KeyPackages.

import assert from "node:assert/strict"
import { test } from "node:test"
import { Api } from "../src/api.js"
import { systemClock } from "../src/clock.js"
import { names } from "../src/records.js"
import { MemoryStore } from "../src/store.js"
import { chanceOf } from "./support/chance.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"
import * as mls from "#lexicons"

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

const seeds = Number(process.env.TEST_SEEDS ?? 20)

test(`after ${seeds} losses on either side nothing is served that the device cannot use`, needsServer, async () => {
  for (let seed = 1; seed <= seeds; seed++) {
    const chance = chanceOf(seed)
    const [bob] = await newAccounts(1)
    assert.ok(bob)
    const store = new MemoryStore()
    const before = await openPhone(bob, store)
    await before.replenish()
    const deviceId = await before.deviceId()
    await before.close()

    const api = new Api(transportOf(bob), systemClock, new AbortController().signal)
    const served = async () =>
      (await api.query(mls.getOwnKeyPackages.main, { deviceId })).keyPackages
        .filter(({ state }) => state === "available").map(({ keyPackageRef }) => keyPackageRef)
    const some = (refs: string[], share: number) => refs.filter(() => chance() < share)
    const all = await served()
    const lost = some(all, (seed % 4) / 3)
    await store.write(new Map(lost.map((ref) => [names.keyPackage(ref), undefined])))
    const gone = some(all, (Math.floor(seed / 4) % 4) / 3) // of the server: the same to a device
    if (gone.length > 0) await api.procedure(mls.withdrawKeyPackages.main, { deviceId, keyPackageRefs: gone })

    const after = await openPhone(bob, store)
    await after.replenish()
    const held = new Set(await store.list(names.keyPackage("")))
    const left = await served()
    assert.deepEqual(left.filter((ref) => !held.has(names.keyPackage(ref))), [], `seed ${seed}`)
    assert.ok(left.length >= Math.min(6, all.length - lost.length - gone.length), `seed ${seed}: ${left.length}`)
    assert.equal(await after.replenish(), 0, `seed ${seed}`)
    await after.close()
  }
})
