// The devices of one person: docs/clients/DEVICES.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { Client } from "../src/client.js"
import { Api } from "../src/api.js"
import { type Clock, systemClock } from "../src/clock.js"
import { ContraryError } from "../src/binding.js"
import { hex } from "../src/bytes.js"
import { errorName, OwnDeviceError, SignedOutError, XrpcError } from "../src/errors.js"
import type { ConvoId, Did } from "../src/ids.js"
import { didOf } from "../src/mls.js"
import { MemoryStore } from "../src/store.js"
import type { Transport } from "../src/transport.js"
import * as mls from "#lexicons"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { accountsOf } from "./support/everyone.js"
import { joined, open } from "./support/heard.js"
import { KillingStore } from "./support/killing.js"
import { bytesOf, hastyClock, textsOf } from "./support/phone.js"

const hour = 3_600_000
const long = { ...needsServer, timeout: 120_000 }

async function leavesOf(client: Client, convo: ConvoId, did: Did): Promise<number> {
  return (await client.group(convo)).members.filter(({ identity }) => didOf(identity) === did).length
}

const left = (did: Did) => (_: unknown, news: unknown) => {
  const { change, did: whose } = news as { change: string; did: Did }
  return change === "left" && whose === did
}

test("D5: a person's second device enters its convos by itself, those of before and those of after", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  const before = await alice.client.createConvo([b])
  await bob.client.join(before)
  const tablet = await open(a)
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(before))
  const after = await alice.client.createConvo([b])
  await tablet.heard.until("onJoined", joined(after))
  await (await tablet.client.send(before, bytesOf("from the tablet"))).sent
  for (const { client } of [alice, bob]) {
    await client.sync(before)
    assert.deepEqual(await textsOf(client, before), ["from the tablet"])
    assert.equal(await leavesOf(client, before, a), 2)
  }
  const { keyPackages } = (await alice.client.devices()).find(({ own }) => !own) ?? {}
  assert.equal(keyPackages, 0, "no KeyPackage of the tablet was needed")
  await Promise.all([alice, bob, tablet].map(({ client }) => client.close()))
})

test("with admitOwnDevices: false a device enters nothing by itself", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const alice = await open(a)
  const convo = await alice.client.createConvo([])
  const tablet = await open(a, { admitOwnDevices: false })
  tablet.client.listen()
  await tablet.heard.until("onConnect")
  await (await alice.client.send(convo, bytesOf("hello"))).sent
  await tablet.heard.until("onEvent", (event) => (event as { type: string }).type === "messageEvent")
  assert.deepEqual(await tablet.client.convos(), [])
  await tablet.client.rejoin(convo)
  assert.equal((await tablet.client.convos()).length, 1)
  await Promise.all([alice, tablet].map(({ client }) => client.close()))
})

test("to add or to remove oneself is refused with what to do instead", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const { client } = await open(a)
  const convo = await client.createConvo([])
  await assert.rejects(client.add(convo, [a]), (err: unknown) => err instanceof OwnDeviceError && err.code === "OwnDevice" && /listen\(\)/.test(err.message))
  await assert.rejects(client.remove(convo, a), (err: unknown) => err instanceof OwnDeviceError && /removeDevice/.test(err.message))
  await assert.rejects(client.removeDevice(await client.deviceId()), (err: unknown) => err instanceof OwnDeviceError && /signOut/.test(err.message))
  await client.close()
})

test("a device enters no group in which no listed device of its person is", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const alice = await open(a)
  const convo = await alice.client.createConvo([])
  await accountsOf(a).hide(a, (await alice.client.group(convo)).members[0]?.signatureKey ?? bytesOf(""))
  const tablet = await open(a)
  tablet.client.listen()
  await tablet.heard.until("onFailure", (err) => err instanceof ContraryError)
  assert.deepEqual(await tablet.client.convos(), [])
  assert.deepEqual(await tablet.client.outbox.refused(), [], "the app has not asked for it")
  await Promise.all([alice, tablet].map(({ client }) => client.close()))
})

test("D5: a dead device is removed everywhere", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a, { deviceName: "phone" }), await open(b)]
  await bob.client.replenish()
  const convos = [await alice.client.createConvo([b]), await alice.client.createConvo([])]
  const dead = await open(a, { deviceName: "tablet" })
  dead.client.listen()
  for (const convo of convos) await dead.heard.until("onJoined", joined(convo))
  await dead.client.replenish()
  const deviceId = await dead.client.deviceId()
  await dead.client.close()
  for (const convo of convos) await alice.client.sync(convo)

  const find = async () => (await alice.client.devices()).find((device) => device.deviceId === deviceId)
  const { key: _, ...tablet } = (await find()) ?? assert.fail("the tablet is a device")
  const sorted = { ...tablet, convos: [...tablet.convos].sort() }
  assert.deepEqual(sorted, { deviceId, own: false, listed: true, name: "tablet", keyPackages: 6, convos: [...convos].sort() })

  await alice.client.removeDevice(deviceId)
  await alice.client.removeDevice(deviceId) // again: nothing is left to do
  for (const convo of convos) {
    await alice.client.sync(convo)
    assert.equal(await leavesOf(alice.client, convo, a), 1)
  }
  assert.equal(await find(), undefined)
  assert.equal((await accountsOf(a).keys(a)).length, 1)
  const again = await open(a, {}, dead.store)
  assert.deepEqual(await again.heard.until("onSignedOut"), ["removed"])
  await assert.rejects(again.client.replenish(), SignedOutError)
  assert.equal((await accountsOf(a).keys(a)).length, 1, "it does not list itself again")
  await Promise.all([alice, bob, again].map(({ client }) => client.close()))
})

test("a removed device that is switched on hears of it, and does not come back", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const alice = await open(a)
  const convo = await alice.client.createConvo([])
  const tablet = await open(a)
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(convo))
  await alice.client.sync(convo)
  await alice.client.removeDevice(await tablet.client.deviceId())
  assert.deepEqual(await tablet.heard.until("onSignedOut"), ["removed"])
  await assert.rejects(tablet.client.rejoin(convo), SignedOutError)
  await tablet.client.signOut()
  assert.deepEqual(await tablet.store.list(""), [])
  await alice.client.sync(convo)
  assert.equal(await leavesOf(alice.client, convo, a), 1)
  await alice.client.close()
})

test("a listed device that was taken out of a group enters it again at its next start, whatever other convos do", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const alice = await open(a)
  const convo = await alice.client.createConvo([])
  const tablet = await open(a)
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(convo))
  const [key] = (await tablet.client.group(convo)).members.map(({ signatureKey }) => signatureKey).reverse()
  await alice.client.sync(convo)
  await (await alice.client.outbox.add(convo, "remove", { did: a, device: hex(key ?? bytesOf("")) })).settled
  await tablet.heard.until("onDevice", left(a))
  await tablet.client.close()
  const bad = await alice.client.createConvo([]) // the newest: it comes first
  const transport = transportOf(a)
  const failing: Transport = {
    call: async (call) => {
      if (call.method === mls.getGroupInfo.main.nsid && call.params?.get("convoId") === bad) throw new XrpcError(404, "GroupInfoNotFound", "there is none")
      return transport.call(call)
    },
  }
  const again = await open(a, { transport: failing }, tablet.store)
  await again.client.syncAll()
  await again.heard.until("onFailure", (err) => errorName(err) === "GroupInfoNotFound")
  await again.heard.until("onJoined", joined(convo))
  await alice.client.sync(convo)
  assert.equal(await leavesOf(alice.client, convo, a), 2)
  await Promise.all([alice, again].map(({ client }) => client.close()))
})

test("the removal of a device survives a crash at each write", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  for (let kill = 0, done = false; !done; kill++) {
    const store = new MemoryStore()
    const alice = await open(a, {}, store)
    const convo = await alice.client.createConvo([])
    await alice.client.close()
    const dead = await open(a)
    dead.client.listen()
    await dead.heard.until("onJoined", joined(convo))
    const deviceId = await dead.client.deviceId()
    await dead.client.close()

    let die = () => {}
    const died = new Promise<boolean>((resolve) => (die = () => resolve(false)))
    const mortal = new KillingStore(store, Number.POSITIVE_INFINITY, false, () => die())
    const dying = await open(a, {}, mortal)
    await dying.client.sync(convo)
    mortal.killAfter(kill)
    done = await Promise.race([died, dying.client.removeDevice(deviceId).then(() => !mortal.killed, () => false)])
    await dying.client.close()
    const next = await open(a, {}, store)
    await next.client.removeDevice(deviceId)
    await next.client.sync(convo)
    assert.equal(await leavesOf(next.client, convo, a), 1, `killed at write ${kill}`)
    assert.deepEqual(await store.list("removal/"), [])
    await next.client.signOut()
  }
})

test("signing out empties the store, and the person's other device removes the leaf", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const alice = await open(a)
  const convo = await alice.client.createConvo([])
  const tablet = await open(a)
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(convo))
  await tablet.client.replenish()
  alice.client.listen()
  await alice.client.sync(convo)
  await tablet.client.signOut()
  assert.deepEqual(await tablet.store.list(""), [])
  assert.deepEqual(await tablet.heard.until("onSignedOut"), ["done"])
  await alice.heard.until("onDevice", left(a))
  assert.equal(await leavesOf(alice.client, convo, a), 1)
  assert.equal((await alice.client.devices()).length, 1)
  await alice.client.close()
})

test("a sign-out survives a crash at each write", long, async () => {
  const [a] = await newAccounts(1)
  assert.ok(a)
  const alice = await open(a)
  const convo = await alice.client.createConvo([])
  alice.client.listen()
  for (let kill = 0, done = false; !done; kill++) {
    const store = new MemoryStore()
    const tablet = await open(a, {}, store)
    tablet.client.listen()
    await tablet.heard.until("onJoined", joined(convo))
    await tablet.client.close()
    let die = () => {}
    const died = new Promise<boolean>((resolve) => (die = () => resolve(false)))
    const mortal = new KillingStore(store, Number.POSITIVE_INFINITY, false, () => die())
    const dying = await open(a, {}, mortal)
    mortal.killAfter(kill)
    done = await Promise.race([died, dying.client.signOut().then(() => !mortal.killed, () => false)])
    await dying.client.close()
    if ((await store.list("signing-out")).length > 0) {
      const next = await open(a, {}, store)
      assert.deepEqual(await next.heard.until("onSignedOut"), ["done"])
    } else if (!done) await (await open(a, {}, store)).client.signOut()
    assert.deepEqual(await store.list(""), [], `killed at write ${kill}`)
    assert.equal((await accountsOf(a).keys(a)).length, 1)
  }
  await alice.client.close()
})

test("after the last device has signed out, other members remove its leaf", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  bob.client.listen()
  await bob.heard.until("onConnect")
  await alice.client.signOut()
  await bob.heard.until("onDevice", left(a))
  assert.equal(await leavesOf(bob.client, convo, a), 0)
  assert.equal(bob.heard.all.some(([name]) => name === "onFailure"), false)
  await bob.client.close()
})

test("a device whose record was deleted is removed by the others, without an app and without a start", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const hasty = hastyClock(50)
  let [passed, look] = [0, () => {}]
  const clock: Clock = {
    ...hasty,
    now: () => hasty.now() + passed,
    sleep: (ms, signal) => (ms !== hour ? hasty.sleep(ms, signal) : new Promise((resolve) => {
      look = resolve
      signal.addEventListener("abort", () => resolve())
    })),
  }
  const [alice, bob] = [await open(a, { clock }), await open(b)]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  const tablet = await open(b)
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(convo))
  await alice.client.sync(convo)
  await tablet.client.close()
  await bob.client.close()
  alice.client.listen()
  await alice.heard.until("onConnect")
  const [key] = (await alice.client.group(convo)).members.filter(({ identity }) => didOf(identity) === b).map(({ signatureKey }) => signatureKey)
  await accountsOf(b).hide(b, key ?? assert.fail())
  passed = 25 * hour
  look()
  await alice.heard.until("onDevice", left(b))
  assert.equal(await leavesOf(alice.client, convo, b), 1)
  await alice.client.close()
})

test("a person without any device in a convo is named, until somebody adds the person again", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  await alice.client.sync(convo)
  await Promise.all([alice, bob].map(({ client }) => client.close()))
  const [key] = await accountsOf(b).keys(b)
  await accountsOf(b).hide(b, key ?? assert.fail())

  const hasty = hastyClock(50)
  const later = await open(a, { clock: { ...hasty, now: () => hasty.now() + 25 * hour } }, alice.store)
  later.client.listen()
  assert.deepEqual(await later.heard.until("onWithoutDevice"), [convo, b])
  assert.deepEqual(await later.client.withoutDevice(convo), [b])
  const change = (await later.client.items(convo)).at(-1)?.change
  assert.deepEqual([change?.by.did, change?.removed], [a, [b]])
  const phone = await open(b)
  await phone.client.replenish()
  await later.client.add(convo, [b])
  await later.client.sync(convo)
  assert.deepEqual(await later.client.withoutDevice(convo), [])
  await Promise.all([later, phone].map(({ client }) => client.close()))
})

test("after a reset, a member who had no KeyPackages is named", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  const api = new Api(transportOf(b), systemClock, new AbortController().signal)
  await api.procedure(mls.withdrawKeyPackages.main, { deviceId: await bob.client.deviceId() })
  const successor = await alice.client.reset(convo, "other")
  assert.deepEqual(await alice.heard.until("onWithoutDevice"), [successor, b])
  await bob.client.syncAll()
  await bob.heard.until("onJoined", joined(successor))
  await alice.client.sync(successor)
  assert.deepEqual(await alice.client.withoutDevice(successor), [], "bob has entered by himself")
  await Promise.all([alice, bob].map(({ client }) => client.close()))
})
