// Invitations of people who have no KeyPackages: FINDINGS D9.

import assert from "node:assert/strict"
import { test } from "node:test"
import { Client } from "../src/client.js"
import { SealError, XrpcError } from "../src/errors.js"
import type { ConvoId, Did } from "../src/ids.js"
import { names } from "../src/records.js"
import { MemoryStore } from "../src/store.js"
import type { Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { KillingStore } from "./support/killing.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

const options = { ...needsServer, timeout: 180_000 }

/** Alice, Bob with KeyPackages, and Carol, who has published none. */
async function people(): Promise<{ alice: Did; bob: Client; carol: Did; b: Did }> {
  const [alice, b, carol] = await newAccounts(3)
  assert.ok(alice && b && carol)
  const bob = await openPhone(b, new MemoryStore(), { fullStock: 40 })
  await bob.replenish()
  return { alice, bob, b, carol }
}

/** How many of Bob's KeyPackages have been taken. */
async function taken(b: Did): Promise<number> {
  const stats = JSON.parse(await transportOf(b).call({ method: "blue.catbird.mls.getKeyPackageStats" })) as { available: number }
  return 40 - stats.available
}

test("D9: who has KeyPackages is invited, and the others are named, and invited once they have some", options, async () => {
  const { alice: a, bob, b, carol } = await people()
  const heard: [ConvoId, readonly Did[]][] = []
  const store = new MemoryStore()
  let wake = () => {}
  const events = {
    onMissing: (convo: ConvoId, dids: readonly Did[]) => void heard.push([convo, dids]),
    onItems: () => wake(),
  }
  const alice = await openPhone(a, store, { events })
  const convo = await alice.createConvo([b, carol])
  assert.deepEqual(heard, [[convo, [carol]]])
  assert.deepEqual((await alice.missing(convo)).map(({ did }) => did), [carol])
  assert.deepEqual((await alice.group(convo)).members.length, 2)
  await assert.rejects(alice.add(convo, [carol]), /KeyPackageNotFound/, "if nobody can be invited, the app hears it at once")
  await bob.join(convo)
  await alice.close() // the next life goes on with it

  const hers = await openPhone(carol, new MemoryStore())
  await hers.replenish()
  const again = await openPhone(a, store, { events })
  again.listen()
  for (;;) {
    const came = new Promise<void>((resolve) => (wake = resolve))
    if ((await again.group(convo)).members.length === 3) break
    await came
  }
  assert.deepEqual([await again.missing(convo), heard.length], [[], 1])
  await hers.join(convo)
  await (await again.send(convo, bytesOf("all are here"))).sent
  await hers.sync(convo)
  assert.deepEqual(await textsOf(hers, convo), ["all are here"])
  await Promise.all([again, bob, hers].map((client) => client.close()))
})

test("D9: 35 attempts take the KeyPackages of one", options, async () => {
  const { alice: a, bob, b, carol } = await people()
  const way = transportOf(a)
  let refuses = true
  const refusing: Transport = {
    call: async (call) => {
      if (refuses && /createConvo|addMembers/.test(call.method)) throw new XrpcError(403, "NotPermitted", "not now")
      return way.call(call)
    },
  }
  const store = new MemoryStore()
  const alice = await openPhone(a, store, { transport: refusing })
  for (let i = 0; i < 35; i++) await assert.rejects(alice.createConvo([b, carol]), /NotPermitted/)
  assert.equal(await taken(b), 1)
  await alice.close()
  const again = await openPhone(a, store, { transport: refusing })
  await assert.rejects(again.createConvo([b]), /NotPermitted/)
  assert.equal(await taken(b), 1, "the next life of the client too")
  refuses = false
  const convo = await again.createConvo([b, carol])
  await bob.join(convo)
  assert.deepEqual([await taken(b), await store.list(names.claims)], [1, []], "and what was taken is used")

  const empty = await again.createConvo([])
  refuses = true
  for (let i = 0; i < 35; i++) await assert.rejects(again.add(empty, [b, carol]), /NotPermitted/)
  refuses = false
  for (let i = 0; i < 35; i++) await again.add(empty, [b, carol]).catch((err: unknown) => assert.match(String(err), /KeyPackageNotFound/))
  assert.equal(await taken(b), 2)
  await bob.join(empty)
  await Promise.all([again.close(), bob.close()])
})

test("writes at the same time never share a KeyPackage, and a bad one is not tried again", options, async () => {
  const { alice: a, bob, b } = await people()
  const way = transportOf(a)
  let refusal: XrpcError | undefined
  const alice = await openPhone(a, new MemoryStore(), {
    transport: {
      call: async (call) => {
        if (refusal !== undefined && call.method.endsWith(".createConvo")) throw refusal
        return way.call(call)
      },
    },
  })
  const convos = await Promise.all([1, 2, 3].map(() => alice.createConvo([b])))
  for (const convo of convos) await bob.join(convo)
  assert.equal(await taken(b), 3)
  refusal = new XrpcError(400, "InvalidWelcome", "the KeyPackage was used")
  await assert.rejects(alice.createConvo([b]), /InvalidWelcome/)
  refusal = undefined
  await bob.join(await alice.createConvo([b]))
  assert.equal(await taken(b), 5)
  await Promise.all([alice.close(), bob.close()])
})

test("who is removed, or has a leaf, is missing no more", options, async () => {
  const { alice: a, bob, b, carol } = await people()
  const store = new MemoryStore()
  const alice = await openPhone(a, store)
  const [first, second] = [await alice.createConvo([b, carol]), await alice.createConvo([b, carol])]
  await alice.remove(first, carol)
  assert.deepEqual(await alice.missing(first), [])
  await bob.join(second)
  const hers = await openPhone(carol, new MemoryStore())
  await hers.replenish()
  await bob.add(second, [carol])
  await alice.sync(second)
  assert.deepEqual(await alice.missing(second), [])
  await assert.rejects(alice.createConvo([carol, "did:plc:nobody" as Did, "did:web:nobody.example" as Did]).then(() => { throw new SealError("made") }), SealError)
  await Promise.all([alice, bob, hers].map((client) => client.close()))
})

test("a kill at each write of the store: a convo is made once, who is missing is not forgotten", options, async () => {
  let kills = 0
  for (const late of [false, true]) {
    for (let writes = 0, killed = true; killed; writes++) {
      const { alice: a, bob, b, carol } = await people()
      const disk = new MemoryStore()
      let die = () => {}
      const dying = new Promise<void>((resolve) => (die = resolve))
      const store = new KillingStore(disk, writes, late, () => die())
      let client: Client | undefined
      const living = async () => {
        client = await openPhone(a, store, { events: { onFailure: () => {} } })
        await client.createConvo([b, carol])
      }
      await Promise.race([dying, living().catch((err: unknown) => {
        if (!store.killed) throw err
      })])
      await client?.close()
      killed = store.killed
      if (killed) kills++
      const heard: Did[] = []
      const again = await openPhone(a, disk, { events: { onMissing: (_, dids) => void heard.push(...dids) } })
      await again.outbox.idle()
      if ((await again.convos()).length === 0) await again.createConvo([b, carol])
      const [convo, ...more] = await again.convos()
      assert.ok(convo && more.length === 0, `write ${writes}, late ${late}`)
      assert.deepEqual((await again.missing(convo.convoId)).map(({ did }) => did), [carol])
      assert.equal(await taken(b), 1)
      assert.ok(heard.every((did) => did === carol))
      await bob.join(convo.convoId)
      assert.deepEqual(await disk.list("leftout/"), [])
      await Promise.all([again.close(), bob.close()])
    }
  }
  assert.ok(kills > 6, `${kills} kills`)
  console.log(`${kills} kills`)
})
