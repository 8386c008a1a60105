// Who is in a group, while it changes: docs/clients/DEVICES.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Accounts } from "../src/accounts.js"
import type { Did } from "../src/ids.js"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { accountsOf } from "./support/everyone.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

// slow asks about one account only when it is let, and counts the questions that are under way.
function slow(own: Did, whom: Did): { accounts: Accounts; asked: Promise<void>; let(): void; most: () => number; answered(count: number): Promise<void> } {
  const accounts = accountsOf(own)
  const lists = accounts.lists.bind(accounts)
  let [ask, free, running, most] = [() => {}, () => {}, 0, 0]
  let [answers, wake] = [0, () => {}]
  const asked = new Promise<void>((resolve) => (ask = resolve))
  const allowed = new Promise<void>((resolve) => (free = resolve))
  accounts.lists = async (did, key) => {
    most = Math.max(most, ++running)
    if (did === whom) {
      ask()
      await allowed
    }
    await new Promise((resolve) => setImmediate(resolve)) // those who are asked at once are under way together
    running--
    answers++
    wake()
    return lists(did, key)
  }
  const answered = async (count: number) => {
    while (answers < count) await new Promise<void>((resolve) => (wake = resolve))
  }
  return { accounts, asked, let: free, most: () => most, answered }
}

test("a commit that comes while a device is judged has its own devices judged, and messages go on", { ...needsServer, timeout: 60_000 }, async () => {
  const [a, b, c, d] = await newAccounts(4)
  assert.ok(a && b && c && d)
  const way = slow(a, c)
  const [alice, bob] = [await openPhone(a, new MemoryStore(), { accounts: way.accounts }), await openPhone(b, new MemoryStore())]
  const [carol, dave] = [await openPhone(c, new MemoryStore()), await openPhone(d, new MemoryStore())]
  for (const phone of [bob, carol, dave]) await phone.replenish()
  const convo = await alice.createConvo([b])
  await bob.join(convo)
  await bob.add(convo, [c])
  const first = alice.sync(convo) // reads it, and waits for carol's account
  await way.asked
  await bob.add(convo, [d])
  const second = alice.sync(convo)
  const { sent } = await alice.send(convo, bytesOf("for all"))
  way.let()
  await Promise.all([first, second, sent])
  await dave.join(convo)
  await bob.sync(convo)
  assert.deepEqual(await textsOf(bob, convo), ["for all"])
  await Promise.all([alice, bob, carol, dave].map((phone) => phone.close()))
})

test("of a large group few accounts are asked at once", { ...needsServer, timeout: 60_000 }, async () => {
  const [a, ...others] = await newAccounts(21)
  assert.ok(a)
  const way = slow(a, "did:plc:nobody" as Did)
  const alice = await openPhone(a, new MemoryStore(), { accounts: way.accounts })
  for (const did of others) {
    const phone = await openPhone(did, new MemoryStore())
    await phone.replenish()
    await phone.close()
  }
  const convo = await alice.createConvo(others)
  assert.equal((await alice.group(convo)).members.length, 21)
  assert.ok(way.most() > 1 && way.most() <= 8, `${way.most()} at once`)
  await alice.close()
})

test("of a large group one slow account holds up no other", { ...needsServer, timeout: 60_000 }, async () => {
  const [a, ...others] = await newAccounts(21)
  assert.ok(a && others[0])
  const way = slow(a, others[0])
  const alice = await openPhone(a, new MemoryStore(), { accounts: way.accounts })
  for (const did of others) {
    const phone = await openPhone(did, new MemoryStore())
    await phone.replenish()
    await phone.close()
  }
  const made = alice.createConvo(others)
  await way.answered(others.length - 1)
  way.let()
  assert.equal((await alice.group(await made)).members.length, 21)
  await alice.close()
})
