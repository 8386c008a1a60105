// People chat through mlsd: groups of ts-mls, races for epochs, a device that comes back.

import assert from "node:assert/strict"
import { test } from "node:test"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

test("two people chat", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const phones = await Promise.all([openPhone(alice, new MemoryStore()), openPhone(bob, new MemoryStore())])
  const [a, b] = phones
  assert.equal(await b.replenish(), 6, "five one-time KeyPackages and one of last resort")
  assert.equal(await b.replenish(), 0)
  const convo = await a.createConvo([bob], { name: "tea" })
  const states = async () => (await a.invited(convo)).map(({ did, state }) => [did, state])
  assert.deepEqual(await states(), [[bob, "available"]])
  await b.join(convo)
  assert.deepEqual(await states(), [[bob, "consumed"]])
  assert.deepEqual(await b.invited(convo), [])
  await (await a.send(convo, bytesOf("hello"))).sent
  await b.sync(convo)
  await (await b.send(convo, bytesOf("hi"))).sent
  await b.update(convo)
  await (await b.send(convo, bytesOf("still here"))).sent
  await a.sync(convo)
  await b.sync(convo)
  const want = ["hello", "hi", "still here"]
  assert.deepEqual([await textsOf(a, convo), await textsOf(b, convo)], [want, want])
  const [ga, gb] = [await a.group(convo), await b.group(convo)]
  assert.deepEqual([ga.epoch, ga.members], [gb.epoch, gb.members])
  await Promise.all(phones.map((phone) => phone.close()))
})

test("the creator hands a convo over, and its new admin removes people", needsServer, async () => {
  const dids = await newAccounts(3)
  const [alice, bob, carol] = dids
  assert.ok(alice && bob && carol)
  const phones = await Promise.all(dids.map((did) => openPhone(did, new MemoryStore())))
  const [a, b, c] = phones
  assert.ok(a && b && c)
  await Promise.all(phones.map((phone) => phone.replenish()))
  const convo = await a.createConvo([bob, carol], { name: "tea" })
  await Promise.all([b.join(convo), c.join(convo)])
  assert.deepEqual(await b.admins(convo), [alice])
  await assert.rejects(b.promoteAdmin(convo, bob), /NotPermitted/)
  await assert.rejects(a.demoteAdmin(convo, alice), /NotPermitted/)
  await a.promoteAdmin(convo, bob)
  assert.deepEqual((await c.admins(convo)).sort(), [alice, bob].sort())
  await a.demoteAdmin(convo, alice)
  await assert.rejects(a.updateConvo(convo, { name: "coffee" }), /NotPermitted/)
  await b.updateConvo(convo, { name: "coffee" })
  await b.remove(convo, carol)
  assert.deepEqual(await a.admins(convo), [bob])
  await assert.rejects(c.admins(convo), /NotMember/)
  await Promise.all(phones.map((phone) => phone.close()))
})

test("four people join, race for epochs, and one is removed", needsServer, async () => {
  const dids = await newAccounts(4)
  const phones = await Promise.all(dids.map((did) => openPhone(did, new MemoryStore())))
  await Promise.all(phones.map((phone) => phone.replenish()))
  const [a, b, c, d] = phones
  assert.ok(a && b && c && d)
  const [, bob, carol, dave] = dids
  assert.ok(bob && carol && dave)
  const convo = await a.createConvo([bob])
  await b.join(convo)
  await a.add(convo, [carol])
  await c.join(convo)
  await Promise.all([a, b, c].map((phone, i) => phone.send(convo, bytesOf(`before ${i}`)).then(({ sent }) => sent)))
  await Promise.all([a.update(convo), b.add(convo, [dave]), c.update(convo), b.update(convo)])
  await d.join(convo)
  await Promise.all(phones.map((phone, i) => phone.send(convo, bytesOf(`after ${i}`)).then(({ sent }) => sent)))
  await Promise.all([a.remove(convo, carol), b.update(convo), d.update(convo)])
  for (const phone of [a, b, d]) await phone.sync(convo)
  const groups = await Promise.all([a, b, d].map((phone) => phone.group(convo)))
  assert.deepEqual(groups[1]?.members, groups[0]?.members)
  assert.deepEqual(groups[2]?.members, groups[0]?.members)
  assert.deepEqual(groups[0]?.members.map(({ identity }) => identity).sort(), [dids[0], bob, dave].sort())
  assert.equal((await textsOf(a, convo)).length, 7)
  assert.deepEqual(await textsOf(b, convo), await textsOf(a, convo))
  await assert.rejects(c.sync(convo), /NotMember/)
  await Promise.all(phones.map((phone) => phone.close()))
})

test("a device that lost its group comes back by itself", needsServer, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const [a, b] = [await openPhone(alice, new MemoryStore()), await openPhone(bob, new MemoryStore())]
  await b.replenish()
  const convo = await a.createConvo([bob])
  await b.join(convo)
  await b.close()
  const again = await openPhone(bob, new MemoryStore())
  await again.rejoin(convo)
  await (await again.send(convo, bytesOf("I am back"))).sent
  await a.sync(convo)
  assert.deepEqual(await textsOf(a, convo), ["I am back"])
  await a.close()
  await again.close()
})
