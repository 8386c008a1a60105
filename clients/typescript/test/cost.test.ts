// What it costs to ask accounts: docs/clients/DEVICES.md.

import assert from "node:assert/strict"
import { cpus } from "node:os"
import { test } from "node:test"
import type { Client } from "../src/client.js"
import type { ConvoId, Did } from "../src/ids.js"
import { MemoryStore } from "../src/store.js"
import { dev, needsServer, newAccounts } from "./support/dev.js"
import { PassingClock } from "./support/passing.js"
import { bytesOf, openPhone } from "./support/phone.js"
import { CountedAccounts } from "./support/repository-accounts.js"

const count = Number(process.env.TEST_PEOPLE ?? 10)
const options = { ...needsServer, timeout: 60_000 + count * 2_000 }
const [document, proof] = ["document", "com.atproto.sync.getRecord"]
const day = 24 * 3_600_000

/** People with so many devices each, which have KeyPackages. */
async function peopleWith(devices: number, people: number): Promise<Did[]> {
  const dids = await newAccounts(people)
  for (const did of dids) {
    for (let i = 0; i < devices; i++) await dev("POST", "/dev/devices", { did })
  }
  return dids
}

/** A person who counts what it asks. Its own record is written already. */
async function counting(clock: PassingClock): Promise<{ alice: Client; counted: CountedAccounts }> {
  const [did] = await newAccounts(1)
  assert.ok(did)
  const counted = new CountedAccounts(did, clock)
  const alice = await openPhone(did, new MemoryStore(), { clock, accounts: counted.accounts })
  await alice.createConvo([])
  counted.asked = []
  return { alice, counted }
}

// asked is what is asked while something is done.
async function asked(counted: CountedAccounts, act: () => Promise<unknown>): Promise<string[]> {
  counted.asked = []
  await act()
  return [...counted.asked].sort()
}

async function says(client: Client, convo: ConvoId): Promise<void> {
  await (await client.send(convo, bytesOf("again"))).sent
}

test("a new person costs a document and a proof, each further device a proof; a day costs the same", options, async () => {
  const clock = new PassingClock()
  const { alice, counted } = await counting(clock)
  const [[one], [other]] = [await peopleWith(1, 1), await peopleWith(3, 1)]
  assert.ok(one && other)
  let convo: ConvoId | undefined
  const fresh = [document, document, proof, proof, proof, proof].sort()
  assert.deepEqual(await asked(counted, async () => (convo = await alice.createConvo([one, other]))), fresh)
  const used = async () => {
    for (let i = 0; i < 10; i++) await says(alice, convo as ConvoId)
    await alice.update(convo as ConvoId)
    await alice.createConvo([one])
  }
  assert.deepEqual(await asked(counted, used), [], "among known devices nobody is asked")
  clock.pass(day)
  assert.deepEqual(await asked(counted, used), fresh, "a day later each is asked once")
  await alice.close()
})

test(`a convo with ${count} people, cold and warm`, options, async (t) => {
  const { alice, counted } = await counting(new PassingClock())
  const dids = await peopleWith(1, count)
  const took = { cold: 0, warm: 0 }
  for (const how of ["cold", "warm"] as const) {
    const begun = performance.now()
    const requests = await asked(counted, () => alice.createConvo(dids))
    took[how] = Math.round(performance.now() - begun)
    assert.equal(requests.length, how === "cold" ? 2 * count : 0, how)
  }
  assert.ok(counted.most <= 8, `${counted.most} requests at once`)
  t.diagnostic(`createConvo with ${count} people: ${took.cold} ms cold, ${took.warm} ms warm, at most ${counted.most} requests at once (${cpus()[0]?.model}, on loopback)`)
  await alice.close()
})
