// Commits that devices cannot process, and groups that are split: docs/clients/DISPUTES.md.

import assert from "node:assert/strict"
import { createHash } from "node:crypto"
import { test } from "node:test"
import { Api } from "../src/api.js"
import type { Client, ClientEvents, ClientOptions } from "../src/client.js"
import { type Clock, systemClock } from "../src/clock.js"
import type { ConvoId, Did } from "../src/ids.js"
import type { Dispute } from "../src/disputes.js"
import type { Mls } from "../src/mls.js"
import { TsMls } from "../src/mls-ts.js"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { KillingStore } from "./support/killing.js"
import { changed, refusingMls, spoilingMls } from "./support/misbehaving.js"
import { bytesOf, hastyClock, openPhone, suite, textsOf } from "./support/phone.js"
import * as mls from "#lexicons"

const options = { ...needsServer, timeout: 180_000 }

/** A device, and what its app hears of disputes. */
interface Device {
  readonly did: Did
  readonly client: Client
  readonly heard: Dispute[]
  /** Waits until the app has heard something. */
  hears(change: string): Promise<void>
}

async function open(did: Did, more: Partial<ClientOptions> = {}, store = new MemoryStore()): Promise<Device> {
  const heard: Dispute[] = []
  let wake = () => {}
  const client = await openPhone(did, store, {
    ...more,
    events: {
      ...more.events,
      onDispute: (_, dispute) => {
        heard.push(dispute)
        wake()
      },
    },
  })
  const hears = async (change: string) => {
    while (!heard.some((one) => one.change === change)) await new Promise<void>((resolve) => (wake = resolve))
  }
  return { did, client, heard, hears }
}

// group lets the first device invite the others, all of whom write, by which they accept.
async function group(devices: readonly Device[]): Promise<ConvoId> {
  const [first, ...others] = devices
  assert.ok(first)
  await Promise.all(others.map(({ client }) => client.replenish()))
  const convo = await first.client.createConvo(others.map(({ did }) => did))
  for (const { client } of others) {
    await client.join(convo)
    await (await client.send(convo, bytesOf("I am here"))).sent
  }
  for (const { client } of devices) await client.sync(convo)
  return convo
}

// assertOne checks that devices are in one group, and returns its epoch.
async function assertOne(devices: readonly Device[], convo: ConvoId): Promise<number> {
  for (const { client } of devices) await client.sync(convo)
  const [first, ...others] = await Promise.all(devices.map(({ client }) => client.group(convo)))
  for (const other of others) assert.deepEqual(other, first)
  return first?.epoch ?? 0
}

const close = (devices: readonly Device[]) => Promise.all(devices.map(({ client }) => client.close()))

const apiOf = (did: Did) => new Api(transportOf(did), systemClock, new AbortController().signal)

const newMls = (did: Did) => TsMls.create(did, suite)

const changesOf = ({ heard }: Device) => heard.map(({ change }) => change)

test("six devices, and a hidden commit that is garbage to half of them", options, async () => {
  const dids = await newAccounts(6)
  const [, bob] = dids
  assert.ok(bob)
  const clock = hastyClock(0.5) // patient with a slow machine
  const signers: string[] = []
  const devices = await Promise.all(dids.map(async (did) => {
    if (did === bob) return open(did, { mls: await spoilingMls(did), clock })
    const library = await newMls(did)
    const joinExternal: Mls["joinExternal"] = (groupInfo) => {
      signers.push(library.infoOf(groupInfo).signer)
      return library.joinExternal(groupInfo)
    }
    return open(did, { mls: changed(library, { joinExternal }), clock })
  }))
  const convo = await group(devices)
  const honest = devices.filter(({ did }) => did !== bob)
  for (const { client } of honest) client.listen()
  await devices[1]?.client.update(convo)
  const acknowledged = await Promise.all(honest.map(async ({ client }, i) => (await client.send(convo, bytesOf(`during ${i}`))).sent))
  const again = await Promise.all(honest.map(async ({ client }, i) => (await client.send(convo, bytesOf(`after ${i}`))).sent))
  await Promise.all(honest.map((device) => device.hears("ended")))
  const epoch = await assertOne(honest, convo)

  const stuck = honest.filter((device) => changesOf(device).includes("failed"))
  assert.ok(stuck.length >= 2 && stuck.length < honest.length, `${stuck.length} of ${honest.length} could not process it`)
  for (const device of honest) {
    const disputed = device.heard.find(({ change }) => change === "disputed")
    assert.equal(disputed?.committer, bob)
    assert.equal(changesOf(device).includes("returned"), stuck.includes(device))
    const items = await device.client.items(convo)
    const seqs = items.map(({ seq }) => seq)
    assert.deepEqual(seqs, seqs.map((_, i) => (seqs[0] ?? 0) + i), "no entry is left out")
    for (const { seq } of [...acknowledged, ...again]) assert.ok(seqs.includes(seq), `seq ${seq}`)
    const texts = await textsOf(device.client, convo)
    assert.ok(texts.includes("I am here"), "what was before the commit is kept")
    if (stuck.includes(device)) continue
    for (let i = 0; i < honest.length; i++) assert.ok(texts.includes(`during ${i}`) && texts.includes(`after ${i}`))
  }
  assert.ok(signers.length >= stuck.length && !signers.includes(bob), "nobody enters by the committer's GroupInfo")
  console.log(`disputes: ${stuck.length} of ${honest.length} devices were stuck, and all are in epoch ${epoch}: 0 lost`)
  await close(devices)
})

test("a device that alone cannot process a commit comes back alone", options, async () => {
  const [alice, bob, carol] = await newAccounts(3)
  assert.ok(alice && bob && carol)
  const refusing = refusingMls(await newMls(carol))
  refusing.refuses = false
  const devices = await Promise.all([open(alice), open(bob), open(carol, { mls: refusing })])
  const [a, b, c] = devices
  const convo = await group(devices)
  refusing.refuses = true
  await b.client.update(convo)
  await a.client.sync(convo)
  await (await a.client.send(convo, bytesOf("for those who are in"))).sent
  await c.client.sync(convo)
  refusing.refuses = false
  await c.client.recover(convo)
  await (await c.client.send(convo, bytesOf("I am back"))).sent
  await assertOne(devices, convo)
  const { epoch } = await a.client.group(convo)
  assert.deepEqual(c.heard, [
    { change: "failed", epoch: epoch - 1, committer: bob }, { change: "returned", epoch: epoch - 1, committer: bob },
  ])
  const items = await c.client.items(convo)
  const end = items.slice(-4).map(({ kind, state, own }) => ({ kind, state, own }))
  assert.deepEqual(end, [
    { kind: "commit", state: "unreadable", own: false },
    { kind: "application", state: "past", own: false },
    { kind: "commit", state: "read", own: true },
    { kind: "application", state: "read", own: true },
  ])
  assert.deepEqual((await textsOf(a.client, convo)).slice(-2), ["for those who are in", "I am back"])
  assert.deepEqual(await c.client.lostItems(convo), [])
  await close(devices)
})

// dispute lets two members report a commit that is in order.
async function dispute(liars: readonly Device[], convo: ConvoId, epoch: number): Promise<void> {
  for (const { did } of liars) {
    await apiOf(did).procedure(mls.reportCommit.main, { convoId: convo, epoch, reason: "other" })
  }
}

// endDispute lets a member say that it is in the present epoch.
async function endDispute(device: Device, convo: ConvoId): Promise<void> {
  await device.client.sync(convo)
  const { epoch, authenticator } = await device.client.group(convo)
  const authenticatorHash = createHash("sha256").update(authenticator).digest()
  await apiOf(device.did).procedure(mls.reportEpoch.main, { convoId: convo, epoch, authenticatorHash })
}

// A clock on which the 30 seconds never pass after which a device tries a commit again.
const withoutEnd: Clock = { ...systemClock, sleep: (ms, signal) => systemClock.sleep(ms < 30_000 ? ms : 2 ** 30, signal) }

for (const listens of [true, false]) {
  test(`a commit waits for the end of a dispute, ${listens ? "which an event says" : "for which the device looks"}`, options, async () => {
    const dids = await newAccounts(5)
    const held: string[] = []
    let connects = () => {}
    const connected = new Promise<void>((resolve) => (connects = resolve))
    const events: ClientEvents = { onHeld: (write, err) => void held.push(`${write.kind}: ${err.error}`), onConnect: () => connects() }
    const devices = await Promise.all(dids.map((did, i) =>
      open(did, { ...(i === 2 && { events }), ...(i === 2 && listens && { clock: withoutEnd }) })))
    const [, b, c, d, e] = devices
    assert.ok(b && c && d && e)
    const convo = await group(devices)
    if (listens) {
      c.client.listen()
      await connected
    }
    const { epoch } = await b.client.update(convo)
    await dispute([d, e], convo, epoch)
    if (listens) await c.hears("disputed")
    const updating = c.client.update(convo)
    const { id, sent } = await c.client.send(convo, bytesOf("not held"))
    assert.equal((await sent).id, id)
    assert.deepEqual([...new Set(held)], listens ? [] : ["update: ConvoDisputed"])
    assert.deepEqual(c.client.outbox.pending(convo).map(({ kind }) => kind), ["update"])
    await endDispute(d, convo)
    assert.equal((await updating).epoch, epoch + 1)
    if (listens) assert.deepEqual(changesOf(c), ["disputed", "ended"])
    assert.equal(await assertOne(devices, convo), epoch + 1)
    await close(devices)
  })
}

test("a liar alone changes nothing", options, async () => {
  const dids = await newAccounts(4)
  let reports = 0
  let wake = () => {}
  const devices = await Promise.all(dids.map((did) => {
    const transport = transportOf(did)
    const call: typeof transport.call = async (one) => {
      const answer = await transport.call(one)
      if (one.method === mls.reportEpoch.main.nsid) {
        reports++
        wake()
      }
      return answer
    }
    return open(did, { transport: { call, stream: transport.stream.bind(transport) } })
  }))
  const convo = await group(devices)
  const liar = devices.at(-1)
  const honest = devices.slice(0, -1)
  assert.ok(liar && honest[0])
  const { epoch } = await honest[0].client.update(convo)
  for (const { client } of honest) {
    await client.sync(convo)
    await client.markRead(convo, 1)
    client.listen()
  }
  const api = apiOf(liar.did)
  const reported = await api.procedure(mls.reportCommit.main, { convoId: convo, epoch, reason: "undecryptable" })
  assert.deepEqual(reported, { recorded: true, disputed: false })
  const lie = await api.procedure(mls.reportEpoch.main, { convoId: convo, epoch, authenticatorHash: new Uint8Array(32) })
  assert.deepEqual([lie.forked, lie.agreeing, lie.differing], [true, 1, 3], "the cursors have reported the epoch")
  await Promise.all(honest.map((device) => device.hears("forked")))
  while (reports < honest.length) await new Promise<void>((resolve) => (wake = resolve))
  await Promise.all(honest.map(async ({ client }) => (await client.send(convo, bytesOf("nothing new"))).sent))
  assert.equal(await assertOne(honest, convo), epoch)
  for (const device of honest) assert.deepEqual(changesOf(device), ["forked"])
  await close(devices)
})

test("a device in the smaller part of a fork enters the group again", options, async () => {
  const dids = await newAccounts(3)
  const [, , carol] = dids
  assert.ok(carol)
  const library = await newMls(carol)
  let split = false
  let enters = () => {}
  const entering = new Promise<void>((resolve) => (enters = resolve))
  const elsewhere = changed(library, {
    describe: (state: Uint8Array) => ({ ...library.describe(state), ...(split && { authenticator: new Uint8Array(32) }) }),
    joinExternal: (groupInfo: Uint8Array) => {
      split = false
      enters()
      return library.joinExternal(groupInfo)
    },
  })
  const devices = await Promise.all(dids.map((did) => open(did, did === carol ? { mls: elsewhere } : {})))
  const convo = await group(devices)
  const [a, b, c] = devices
  assert.ok(a && b && c)
  const epoch = await assertOne(devices, convo)
  split = true
  await a.client.markRead(convo, 1)
  await b.client.markRead(convo, 1)
  await c.client.markRead(convo, 1)
  await entering
  await (await c.client.send(convo, bytesOf("here again"))).sent
  assert.equal(await assertOne(devices, convo), epoch + 1)
  assert.deepEqual((await textsOf(a.client, convo)).slice(-1), ["here again"])
  await close(devices)
})

test("a device that is killed on its way back comes back in its next life", options, async () => {
  const [alice, bob, carol] = await newAccounts(3)
  assert.ok(alice && bob && carol)
  const store = new MemoryStore()
  const devices = await Promise.all([open(alice), open(bob), open(carol, {}, store)])
  const [a, b, c] = devices
  const convo = await group(devices)
  await c.client.close()
  const saved = await store.read("test/device")
  assert.ok(saved)
  let kills = 0
  for (let writes = 0; writes < 7; writes++) {
    for (const late of [false, true]) {
      await b.client.update(convo)
      const killing = new KillingStore(store, writes, late)
      let fails = () => {}
      const failed = new Promise<void>((resolve) => (fails = resolve))
      const dying = await openPhone(carol, killing, { mls: refusingMls(await TsMls.import(saved)), events: { onFailure: fails } })
      await Promise.race([failed, dying.sync(convo).then(() => dying.recover(convo)).catch(() => {})])
      if (killing.killed) kills++
      await dying.close()
      const text = `back from ${writes}, ${late}`
      const again = await open(carol, {}, store)
      await again.client.sync(convo)
      await (await again.client.send(convo, bytesOf(text))).sent
      await assertOne([a, b, again], convo)
      assert.deepEqual((await textsOf(a.client, convo)).slice(-1), [text])
      await again.client.close()
    }
  }
  assert.ok(kills >= 8, `${kills} kills: between all steps`)
  await close([a, b])
})
