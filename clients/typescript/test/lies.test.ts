// A delivery service that lies. A device of an honest person must not encrypt anything for the
// liar, must not do what the liar wants in the person's name, and its app must hear of it: each
// test says it by what comes of the lie.

import assert from "node:assert/strict"
import { test } from "node:test"
import { TsMls } from "../src/mls-ts.js"
import { hex } from "../src/bytes.js"
import type { ConvoId } from "../src/ids.js"
import { names } from "../src/records.js"
import { needsServer } from "./support/dev.js"
import { accountsOf } from "./support/everyone.js"
import { Honest } from "./support/honest.js"
import {
  staleGroupInfo, strangerEnters, T1, T10, T11, T12, T1foreign, T2, T3, T4, T5, T6, T6closed, T7, T8, T9, welcomeOfAnother, withheld,
} from "./support/lies.js"
import { changed, deviceOf, Liar } from "./support/liar.js"
import type * as mls from "#lexicons"

/** What has come of a lie, apart from what was read and heard. */
interface Outcome {
  /** The device to which the lie was told. */
  readonly victim: Honest
  /**
   * What is not true, and the client takes or tells as true. It is looked for after the app has
   * heard of the lie.
   */
  readonly untrue?: () => Promise<string | undefined>
}

/** How long a test waits until the app hears of a lie, in milliseconds. */
const patience = 60_000

/**
 * Whether the app has heard that something is wrong: a finding, a refusal, or a question to its
 * person. It may hear it a little after the message is sent.
 */
async function heard(app: Honest): Promise<boolean> {
  if (app.warnings.length > 0) return true
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, patience)))
  await Promise.race([app.until(() => app.warnings.length > 0), late])
  clearTimeout(timer)
  return app.warnings.length > 0
}

/** One test of a lie. */
function lie(name: string, play: (liar: Liar) => Promise<Outcome>): void {
  test(name, { ...needsServer, timeout: 2 * patience }, async (t) => {
    const liar = new Liar()
    const { victim, untrue } = await play(liar)
    const isHeard = await heard(victim)
    const isUntrue = await untrue?.()
    await victim.client.close()
    await liar.idle()
    const outcome = { attackerRead: liar.read.length > 0, untrue: isUntrue, heard: isHeard }
    t.diagnostic(`${JSON.stringify(outcome)} ${victim.warnings.join("; ")}`)
    assert.deepEqual(outcome, { attackerRead: false, untrue: undefined, heard: true })
  })
}

/** Alice has made a convo with Bob, and perhaps with others, who have joined it. */
async function convoOf(alice: Honest, ...others: Honest[]): Promise<ConvoId> {
  const convo = await alice.client.createConvo(others.map(({ did }) => did))
  for (const one of others) await one.joins(convo)
  return convo
}

/** Alice and Bob, who have a convo. */
async function pair(liar: Liar): Promise<{ alice: Honest; bob: Honest; convo: ConvoId }> {
  const [alice, bob] = [await Honest.open(liar), await Honest.open(liar)]
  const convo = await convoOf(alice, bob)
  return { alice, bob, convo }
}

/** The device of somebody who helps the liar, and whose account lists it. */
async function helper(liar: Liar): Promise<{ mallory: Honest; device: TsMls }> {
  const mallory = await Honest.open(liar)
  const device = await mallory.record("test/device")
  assert.ok(device)
  return { mallory, device: await TsMls.import(device) }
}

// saidBy says whom a device takes for the sender of a text, if it is not the one who sent it.
async function saidBy(app: Honest, convo: ConvoId, sender: Honest, text: string): Promise<string | undefined> {
  const items = await app.client.items(convo)
  const item = items.find(({ content }) => content !== undefined && new TextDecoder().decode(content) === text)
  assert.ok(item)
  return item.sender === sender.did ? undefined : `"${text}" is of ${item.sender}`
}

const close = (...people: Honest[]) => Promise.all(people.map(({ client }) => client.close()))

lie("T1: the liar's KeyPackage stands in Bob's name", async (liar) => {
  const [alice, bob] = [await Honest.open(liar), await Honest.open(liar)]
  await T1(liar, bob.did)
  await alice.tries(async (client) => alice.says(await client.createConvo([bob.did]), "for Bob"))
  await close(bob)
  return { victim: alice }
})

lie("T1: Mallory's KeyPackage is handed out for Bob", async (liar) => {
  const [alice, bob, { mallory, device }] = [await Honest.open(liar), await Honest.open(liar), await helper(liar)]
  await T1foreign(liar, bob.did, device)
  await alice.tries(async (client) => alice.says(await client.createConvo([bob.did]), "for Bob"))
  await close(bob, mallory)
  return { victim: alice }
})

lie("T2: the liar enters as another device of Bob's", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  await alice.after(() => T2(liar, convo, bob.did), "commitEvent")
  await alice.says(convo, "for Bob")
  await close(bob)
  return { victim: alice }
})

lie("T3: a made-up Welcome replaces a group", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  await alice.after(() => T3(liar, convo, alice, bob.did), "welcomeEvent")
  await alice.says(convo, "for Bob")
  await close(bob)
  return { victim: alice }
})

lie("T4: an old Welcome comes again", async (liar) => {
  const [alice, bob, mallory] = [await Honest.open(liar), await Honest.open(liar, { fullStock: 0 }), await Honest.open(liar)]
  const convo = await alice.client.createConvo([bob.did, mallory.did])
  const again = T4(liar, convo, bob)
  await bob.joins(convo)
  await mallory.joins(convo)
  await liar.turn(mallory, convo)
  await alice.client.remove(convo, mallory.did)
  await alice.client.update(convo)
  await bob.client.sync(convo)
  await bob.after(again, "welcomeEvent")
  await bob.says(convo, "for Alice")
  await close(alice, mallory)
  return { victim: bob }
})

lie("T5: the GroupInfo of another group for a rejoin", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  await T5(liar, convo, alice, bob.did)
  await alice.tries((client) => client.rejoin(convo))
  await alice.says(convo, "for Bob")
  await close(bob)
  return { victim: alice }
})

lie("T6: a made-up successor", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  withheld(liar, convo, alice)
  const { done } = await alice.begins(convo, "for Bob")
  await alice.after(async () => T6(liar, convo, alice, await deviceOf(bob.did)), "resetEvent")
  await done
  await close(bob)
  return { victim: alice }
})

lie("T7: Bob has left, says the service", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  await alice.after(() => bob.says(convo, "here"), "messageEvent")
  return left(liar, alice, bob, convo)
})

lie("T7: Bob, who has joined and said nothing yet, has left, says the service", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  return left(liar, alice, bob, convo)
})

async function left(liar: Liar, alice: Honest, bob: Honest, convo: ConvoId): Promise<Outcome> {
  await alice.after(() => T7(liar, convo, alice, bob.did), "membershipEvent")
  await alice.says(convo, "for Bob")
  await close(bob)
  return {
    victim: alice,
    untrue: async () => {
      await alice.client.sync(convo)
      return (await alice.people(convo)).includes(bob.did) ? undefined : "Alice's device has removed Bob"
    },
  }
}

lie("T8: Bob's message is shown as Carol's", async (liar) => {
  const [alice, bob, carol] = [await Honest.open(liar), await Honest.open(liar), await Honest.open(liar)]
  const convo = await convoOf(alice, bob, carol)
  T8(liar, convo, alice, carol.did)
  await alice.after(() => bob.says(convo, "from Bob"), "messageEvent")
  await alice.says(convo, "for both")
  await close(bob, carol)
  return { victim: alice, untrue: () => saidBy(alice, convo, bob, "from Bob") }
})

lie("T10: what was acknowledged is shown as another's", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  await T10(liar, convo, alice, bob.did)
  await alice.says(convo, "from Alice")
  await alice.client.sync(convo)
  await alice.client.logChecks?.idle()
  await alice.says(convo, "for Bob")
  await close(bob)
  return { victim: alice, untrue: () => saidBy(alice, convo, alice, "from Alice") }
})

// A device that is shown no newer entries cannot tell that from a quiet convo: TRANSPARENCY.md says so. The entries come
// with the next one that is shown, because the log has no holes.
test("T11: the newest entries are withheld", { ...needsServer, timeout: 60_000 }, async () => {
  const liar = new Liar()
  const { alice, bob, convo } = await pair(liar)
  await bob.after(() => alice.says(convo, "Let us meet."), "messageEvent")
  await bob.client.logChecks?.idle()
  await T11(liar, convo, bob)
  await alice.says(convo, "Do not come!")
  bob.clock.pass(24 * 3_600_000)
  await bob.client.sync(convo)
  await bob.client.logChecks?.idle()
  assert.deepEqual(await bob.texts(convo), ["Let us meet."])
  assert.deepEqual(bob.warnings, [])
  assert.deepEqual(liar.read, [])
  await close(alice, bob)
})

// There is nothing to be found in this lie: so what the service says is told as its report, and that somebody has
// joined is told when MLS shows it.
test("T12: Carol has joined, says the service", { ...needsServer, timeout: 60_000 }, async () => {
  const liar = new Liar()
  const [alice, carol] = [await Honest.open(liar), await Honest.open(liar)]
  liar.silence(carol.did)
  const convo = await alice.client.createConvo([carol.did])
  const hasJoined = () => alice.heard.some(({ name, args }) => name === "onDevice" && (args[1] as { change: string }).change === "joined")
  await alice.after(() => T12(liar, convo, alice, carol.did), "arrivalEvent")
  await alice.says(convo, "for Carol")
  assert.ok(alice.heard.some(({ name, args: [, did, state] }) => name === "onArrived" && did === carol.did && state === "consumed"), "reported")
  assert.equal(hasJoined(), false)
  await close(alice, carol)
})

lie("a made-up successor, while the device starts", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  withheld(liar, convo, alice)
  await alice.client.send(convo, new TextEncoder().encode("for Bob"))
  await alice.client.close()
  await T6closed(liar, convo, alice, await deviceOf(bob.did))
  const again = await Honest.open(liar, { before: alice })
  await again.says(convo, "for Bob again")
  await close(bob)
  return { victim: again }
})

lie("a made-up Welcome, while the device is away", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  await alice.client.close()
  await T3(liar, convo, alice, bob.did)
  const again = await Honest.open(liar, { before: alice })
  await again.until(() => again.heard.some(({ name, args: [event] }) => name === "onEvent" && (event as { type: string }).type === "welcomeEvent"))
  await again.says(convo, "for Bob")
  await close(bob)
  return { victim: again }
})

lie("a made-up Welcome, and the device crashes before it joins", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  const crashed = alice.crashes(({ name, args: [, state] }) => name === "onWelcome" && state === "in_flight") // it is stored
  await T3(liar, convo, alice, bob.did)
  await crashed
  assert.ok(await alice.record(names.welcome(convo)))
  const again = await Honest.open(liar, { before: alice })
  await again.tries((client) => client.syncAll())
  await again.says(convo, "for Bob")
  await close(bob)
  return { victim: again }
})

lie("an old GroupInfo with somebody who was removed", async (liar) => {
  const [alice, bob, mallory] = [await Honest.open(liar), await Honest.open(liar), await Honest.open(liar)]
  const convo = await convoOf(alice, bob, mallory)
  await liar.turn(mallory, convo)
  const again = await staleGroupInfo(liar, convo, bob)
  await alice.client.remove(convo, mallory.did)
  await bob.client.sync(convo)
  again()
  await bob.tries((client) => client.rejoin(convo))
  await bob.says(convo, "for Alice")
  await close(alice, mallory)
  return { victim: bob }
})

lie("a made-up successor with a stranger, whose account lists her device", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  const { mallory, device } = await helper(liar)
  withheld(liar, convo, alice)
  const { done } = await alice.begins(convo, "for Bob")
  await alice.after(() => T6(liar, convo, alice, device, [bob.did]), "resetEvent")
  await done
  await close(bob, mallory)
  return { victim: alice }
})

lie("a stranger's KeyPackage for a reset by an honest member", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  const { mallory, device } = await helper(liar)
  await T1foreign(liar, bob.did, device)
  await alice.tries(async (client) => alice.says(await client.reset(convo, "other"), "for Bob"))
  await close(bob, mallory)
  return { victim: alice }
})

lie("a Welcome for another convo of the same people", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  const mallory = await Honest.open(liar)
  liar.silence(alice.did)
  const another = await bob.client.createConvo([alice.did, mallory.did])
  await mallory.joins(another)
  await liar.turn(mallory, another)
  await alice.after(() => welcomeOfAnother(liar, convo, alice, another), "welcomeEvent")
  await alice.says(convo, "for Bob alone")
  await close(bob, mallory)
  return { victim: alice }
})

lie("a stranger enters, whose account lists her device", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  const { mallory, device } = await helper(liar)
  await alice.after(() => strangerEnters(liar, convo, alice, device), "commitEvent")
  await alice.says(convo, "for Bob")
  await close(bob, mallory)
  return { victim: alice }
})

lie("Bob's stolen device enters again, which his account does not list any more", async (liar) => {
  const { alice, bob, convo } = await pair(liar)
  const stolen = await bob.record("test/device")
  assert.ok(stolen)
  await alice.says(convo, "for Bob, whose device Alice has looked up")
  const device = await TsMls.import(stolen)
  await bob.client.close()
  await accountsOf(bob.did).unlist(device.signatureKey)
  await alice.after(() => strangerEnters(liar, convo, alice, device), "commitEvent")
  await alice.says(convo, "for Bob")
  return { victim: alice }
})

// MLS cannot show a fork to those who are in one of its halves: people see it when they compare
// codes.
test("T9: two halves of a group have two codes", { ...needsServer, timeout: 2 * patience }, async () => {
  const liar = new Liar()
  const { alice, bob, convo } = await pair(liar)
  await T9(liar, convo, bob)
  await Promise.all([alice.client.update(convo), bob.client.update(convo)])
  await Promise.all([alice.client.sync(convo), bob.client.sync(convo)])
  await Promise.all([alice.says(convo, "here"), bob.says(convo, "there")])
  await Promise.all([alice.client.sync(convo), bob.client.sync(convo)])
  assert.deepEqual([await alice.texts(convo), await bob.texts(convo)], [["here"], ["there"]])
  const [one, other] = [await alice.client.group(convo), await bob.client.group(convo)]
  assert.deepEqual([one.epoch, other.epoch, one.groupId], [2, 2, other.groupId])
  assert.notEqual(hex(one.authenticator), hex(other.authenticator))
  assert.deepEqual(liar.read, [])
  await close(alice, bob)
})

test("a service that says the log is shorter than what it has is not asked without end", { ...needsServer, timeout: 2 * patience }, async () => {
  const liar = new Liar()
  const { alice, bob, convo } = await pair(liar)
  await alice.says(convo, "one")
  await bob.client.sync(convo)
  let [asked, lying] = [0, true]
  liar.tell(({ method, convo: of }, did, pass) => {
    if (method !== "getMessages" || of !== convo || did !== bob.did || !lying || ++asked > 1000) return undefined
    return changed<mls.getMessages.$OutputBody>(pass, (page) => ({ ...page, lastSeq: 0 }))
  })
  await assert.rejects(bob.client.sync(convo), /ends before seq/)
  assert.ok(asked < 20, `asked ${asked} times`)
  lying = false
  await alice.says(convo, "two")
  await bob.client.sync(convo)
  assert.deepEqual(await bob.texts(convo), ["one", "two"])
  await close(alice, bob)
})

test("of an honest service nobody hears that something is wrong", { ...needsServer, timeout: 2 * patience }, async () => {
  const liar = new Liar()
  const { alice, bob, convo } = await pair(liar)
  const carol = await Honest.open(liar)
  await alice.client.add(convo, [carol.did])
  await carol.joins(convo)
  await carol.says(convo, "here")
  await bob.client.update(convo)
  await bob.client.rejoin(convo)
  await alice.client.remove(convo, carol.did)
  await bob.client.close()
  const again = await Honest.open(liar, { before: bob })
  await again.says(convo, "back")
  const next = await alice.client.reset(convo, "other")
  await again.until(() => again.heard.some(({ name }) => name === "onMoved"))
  await again.says(next, "there")
  await alice.client.sync(next)
  assert.deepEqual(await alice.texts(next), ["there"])
  await close(alice, again, carol)
  assert.deepEqual([alice, bob, again, carol].map(({ warnings }) => warnings), [[], [], [], []])
  assert.deepEqual(liar.read, [])
})

test("the liar reads what is for a member who helps it", { ...needsServer, timeout: 2 * patience }, async () => {
  const liar = new Liar()
  const [alice, mallory] = [await Honest.open(liar), await Honest.open(liar)]
  const convo = await convoOf(alice, mallory)
  await liar.turn(mallory, convo)
  await alice.says(convo, "one")
  await alice.client.update(convo)
  await alice.says(convo, "two")
  await close(alice, mallory)
  await liar.idle()
  assert.deepEqual(liar.read, ["one", "two"])
})
