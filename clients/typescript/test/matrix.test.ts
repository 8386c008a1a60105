// The fault matrix: messages through a real server while something goes wrong. Nothing is lost,
// nothing is doubled, and the order of a sender stays.
//
// TEST_MESSAGES is how many messages each row sends, 15 by default.

import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import { mkdtemp, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { after, test } from "node:test"
import { fileURLToPath } from "node:url"
import type { Client } from "../src/client.js"
import type { ConvoId, Did } from "../src/ids.js"
import { FileStore } from "../src/store-file.js"
import { MemoryStore } from "../src/store.js"
import type { Call, Transport } from "../src/transport.js"
import { chanceOf } from "./support/chance.js"
import { clearFaults, type Fault, needsServer, newAccounts, plan, transportOf } from "./support/dev.js"
import { gullible } from "./support/everyone.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

const count = Number(process.env.TEST_MESSAGES ?? 15)
const folder = await mkdtemp(join(tmpdir(), "mlsd-client-"))
after(() => rm(folder, { recursive: true }))

/** What goes wrong in one row, for each call with a probability. */
interface Row {
  readonly name: string
  readonly faults: readonly Omit<Fault, "lxm" | "did">[]
  /** Another member commits all the time. */
  readonly races?: boolean
}

const rows: readonly Row[] = [
  { name: "answers are lost", faults: [{ kind: "loseAnswer" }] },
  { name: "connections are cut", faults: [{ kind: "cut" }] },
  { name: "429", faults: [{ kind: "status", status: 429, retryAfter: 1 }] },
  { name: "503", faults: [{ kind: "status", status: 503 }] },
  { name: "slow and late", faults: [{ kind: "slow", ms: 50 }, { kind: "delay", ms: 50 }] },
  { name: "epoch races", faults: [], races: true },
  {
    name: "everything", races: true,
    faults: [{ kind: "loseAnswer" }, { kind: "cut" }, { kind: "status", status: 429, retryAfter: 1 }, { kind: "status", status: 503 }],
  },
]

const faultRate = 0.25

/** Plans a fault for some of the calls of an account. */
function faulty(did: Did, faults: Row["faults"], chance: () => number): Transport {
  const transport = transportOf(did)
  return {
    call: async (call: Call) => {
      const fault = faults[Math.floor(chance() * faults.length)]
      if (fault !== undefined && chance() < faultRate) await plan({ ...fault, did, lxm: call.method, times: 1 })
      return transport.call(call)
    },
  }
}

/** Two people in one convo. */
async function pair(row: Row, seed: number): Promise<{ alice: Client; bob: Client; convo: ConvoId; store: FileStore }> {
  const [one, two] = await newAccounts(2)
  assert.ok(one && two)
  const chance = chanceOf(seed)
  const store = await FileStore.open(join(folder, `${seed}`))
  const alice = await openPhone(one, store, { transport: faulty(one, row.faults, chance) })
  const bob = await openPhone(two, new MemoryStore(), { transport: faulty(two, row.faults, chance) })
  await bob.replenish()
  const convo = await alice.createConvo([two])
  await bob.join(convo)
  return { alice, bob, convo, store }
}

/** Commits until it is told to stop, and returns how often. */
async function race(phone: Client, convo: ConvoId, stop: AbortSignal): Promise<number> {
  let commits = 0
  for (; !stop.aborted; commits++) {
    await phone.update(convo)
    await new Promise((resolve) => setTimeout(resolve, 30))
  }
  return commits
}

const textsFor = (name: string, n: number) => Array.from({ length: n }, (_, i) => `${name} ${i}`)

/** Checks that a phone has read each text of a sender once, in order. */
async function check(phone: Client, convo: ConvoId, sender: string, want: number): Promise<void> {
  await phone.sync(convo)
  const texts = (await textsOf(phone, convo)).filter((text) => text.startsWith(sender))
  assert.deepEqual(texts, textsFor(sender, want))
  assert.deepEqual(phone.outbox.pending(), [])
  assert.deepEqual(await phone.outbox.refused(), [])
}

rows.forEach((row, i) => {
  test(`${count} messages each way: ${row.name}`, needsServer, async () => {
    const { alice, bob, convo, store } = await pair(row, i + 1)
    const stop = new AbortController()
    const racing = row.races ? race(bob, convo, stop.signal) : Promise.resolve(0)
    const sendings = []
    for (const text of textsFor("alice", count)) sendings.push(await alice.send(convo, bytesOf(text)))
    for (const text of textsFor("bob", count)) sendings.push(await bob.send(convo, bytesOf(text)))
    await Promise.all(sendings.map(({ sent }) => sent))
    stop.abort()
    const commits = await racing
    const struck = await clearFaults()
    for (const phone of [alice, bob]) {
      await check(phone, convo, "alice", count)
      await check(phone, convo, "bob", count)
    }
    assert.ok(row.faults.length === 0 || struck > 0, "faults struck")
    console.log(`${row.name}: ${2 * count} messages, ${struck} faults, ${commits} commits: 0 lost, 0 doubled`)
    await Promise.all([alice.close(), bob.close()])
    await store.close()
  })
})

/** One life of a device in a process of its own. Reports whether it was killed. */
function life(...args: (string | number)[]): Promise<boolean> {
  const here = fileURLToPath(new URL("./support/", import.meta.url))
  const child = spawn(process.execPath, ["--import", join(here, "register.js"), join(here, "mortal.js"), ...args.map(String)], {
    stdio: ["ignore", "inherit", "inherit"],
  })
  return new Promise((resolve, reject) => {
    child.on("error", reject)
    child.on("exit", (code, signal) => {
      if (signal === "SIGKILL") resolve(true)
      else if (code === 0) resolve(false)
      else reject(new Error(`the device ended with ${code ?? signal}`))
    })
  })
}

const mostKills = Number(process.env.TEST_KILLS ?? 5)

test(`${count} messages of a device that is killed`, needsServer, async () => {
  const [one, two] = await newAccounts(2)
  assert.ok(one && two)
  const chance = chanceOf(99)
  const bob = await openPhone(one, new MemoryStore(), { accounts: gullible(one) })
  const file = join(folder, "mortal")
  await life(two, file, 0)
  const convo = await bob.createConvo([two])
  const stop = new AbortController()
  const racing = race(bob, convo, stop.signal)
  let kills = 0
  // The first lives end at the steps of joining: fetch, keep, join, confirm.
  const early = [4, 6, 8, 10]
  for (; ; kills++) {
    const step = kills < mostKills ? (early[kills] ?? 1 + Math.floor(chance() * 4 * count)) : 0
    if (!(await life(two, file, step, convo, count, "mortal"))) break
  }
  stop.abort()
  await racing
  await check(bob, convo, "mortal", count)
  const store = await FileStore.open(file)
  const again = await openPhone(two, store, { accounts: gullible(two) })
  await check(again, convo, "mortal", count)
  console.log(`kill -9: ${count} messages, ${kills} kills: 0 lost, 0 doubled`)
  await Promise.all([bob.close(), again.close()])
  await store.close()
})
