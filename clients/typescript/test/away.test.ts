// Every PDS is away for an hour, and a device's record is deleted: what goes on, what waits, and who does what.

import assert from "node:assert/strict"
import { test, type TestContext } from "node:test"
import { same } from "../src/bytes.js"
import type { Client, ClientEvents } from "../src/client.js"
import type { ConvoId, Did } from "../src/ids.js"
import { TsMls } from "../src/mls-ts.js"
import { MemoryStore } from "../src/store.js"
import { clearFaults, needsServer, newAccounts, plan } from "./support/dev.js"
import { PassingClock } from "./support/passing.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"
import { CountedAccounts } from "./support/repository-accounts.js"

const options = { ...needsServer, timeout: 120_000 }
const [minute, hour] = [60_000, 3_600_000]

/** A person with one device, and what its app hears. */
class Person {
  readonly heard: string[] = []
  client!: Client
  private readonly waiting = new Set<() => void>()

  private constructor(
    readonly did: Did,
    readonly clock: PassingClock,
    readonly counted: CountedAccounts,
    private readonly store: MemoryStore,
  ) {}

  /** Opens a new device of a person, or the next life of one. */
  static async open(did: Did, clock: PassingClock, before?: Person): Promise<Person> {
    const person = new Person(did, clock, new CountedAccounts(did, clock), before?.store ?? new MemoryStore())
    person.client = await openPhone(did, person.store, {
      clock, accounts: person.counted.accounts, events: person.events(), fullStock: 24,
    })
    await person.client.replenish()
    person.client.listen()
    return person
  }

  private events(): ClientEvents {
    const hear = (what: string) => {
      this.heard.push(what)
      for (const look of this.waiting) look()
      this.waiting.clear()
    }
    return {
      onDevice: (convo, { change, did }) => hear(`${change} ${did} ${convo}`),
      onItems: (_, items) => hear(`${items.length} items`),
      onJoined: (convo) => hear(`in ${convo}`),
      onRetry: (write, _, err) => hear(`retry ${write.kind} ${err instanceof Error ? err.constructor.name : ""}`),
      onChange: () => hear("change"),
    }
  }

  /** The signature key of this device. */
  async key(): Promise<Uint8Array> {
    const device = await this.store.read("test/device")
    assert.ok(device)
    return (await TsMls.import(device)).signatureKey
  }

  /** Waits until something is so. It looks whenever the app hears something. */
  async until(look: () => boolean | Promise<boolean>): Promise<void> {
    for (;;) {
      const woken = new Promise<void>((resolve) => this.waiting.add(resolve))
      if (await look()) return
      await woken
    }
  }

  hears(what: string): Promise<void> {
    return this.until(() => this.heard.includes(what))
  }

  async says(convo: ConvoId, text: string): Promise<void> {
    await (await this.client.send(convo, bytesOf(text))).sent
  }

  reads(convo: ConvoId, text: string): Promise<void> {
    return this.until(async () => (await textsOf(this.client, convo)).includes(text))
  }
}

/** People who share a clock, and a convo of the first ones, who have all joined. */
async function scene(t: TestContext, count: number, inConvo: number): Promise<{ people: Person[]; convo: ConvoId; clock: PassingClock }> {
  const clock = new PassingClock()
  const people: Person[] = []
  t.after(async () => {
    await clearFaults()
    await Promise.all(people.map(({ client }) => client.close()))
  })
  for (const did of await newAccounts(count)) people.push(await Person.open(did, clock))
  const [alice, ...others] = people.slice(0, inConvo) as [Person, ...Person[]]
  const convo = await alice.client.createConvo(others.map(({ did }) => did))
  for (const one of others) await one.hears(`in ${convo}`)
  for (const one of others) await one.says(convo, "here")
  for (const one of people.slice(0, inConvo)) await one.client.sync(convo)
  return { people, convo, clock }
}

test("every PDS is away for an hour", options, async (t) => {
  const { people, convo, clock } = await scene(t, 5, 3)
  const [alice, bob, carol, dave, erin] = people as [Person, Person, Person, Person, Person]
  for (const { did } of people) await plan({ kind: "pdsAway", did, times: 0 })

  await t.test("goes on: messages among known devices", async () => {
    for (let passed = 0; passed < hour; passed += 10 * minute) {
      for (const one of [alice, bob, carol]) await one.says(convo, `after ${passed / minute} minutes, of ${one.did}`)
      clock.pass(10 * minute)
    }
    for (const one of [alice, bob, carol]) {
      await one.client.sync(convo)
      assert.equal((await textsOf(one.client, convo)).length, 2 + 18)
    }
  })
  await t.test("goes on: commits that renew keys and remove somebody", async () => {
    await bob.client.update(convo)
    await alice.client.remove(convo, carol.did)
    await bob.client.sync(convo)
    await bob.says(convo, "without Carol")
    await alice.client.sync(convo)
    assert.equal((await alice.client.group(convo)).members.length, 2)
  })
  await t.test("goes on: a known person is invited again, and joins", async () => {
    await alice.client.add(convo, [carol.did])
    await carol.until(async () => (await carol.client.group(convo)).members.length === 3)
    await bob.client.sync(convo)
    await carol.says(convo, "back again")
    await bob.client.sync(convo)
    assert.ok((await textsOf(bob.client, convo)).includes("back again"))
  })
  await t.test("goes on: a device that starts again", async () => {
    await bob.client.close()
    people[1] = await Person.open(bob.did, clock, bob)
    await people[1].says(convo, "after a restart")
  })
  const again = people[1] as Person
  await t.test("goes on: a device that enters its group again by external commit", async () => {
    await again.client.rejoin(convo)
    await again.says(convo, "after a rejoin")
  })

  let created: Promise<ConvoId> | undefined
  await t.test("waits: a convo with a person whom nobody knows", async () => {
    created = alice.client.createConvo([dave.did])
    await alice.hears("retry create UnknownDeviceError")
  })
  let sent: Promise<unknown> | undefined
  await t.test("waits: messages of a group that an unknown device has entered, and what that sends", async () => {
    const next = bobsAdd(again, erin, convo)
    await again.hears("retry add UnknownDeviceError")
    sent = next
  })

  await clearFaults()
  clock.pass(minute)
  await t.test("afterwards all that has waited is done, in its order", async () => {
    const convoWithDave = await created as ConvoId
    await dave.hears(`in ${convoWithDave}`)
    await alice.says(convoWithDave, "hello, Dave")
    await dave.reads(convoWithDave, "hello, Dave")
    await sent
    await erin.hears(`in ${convo}`)
    await erin.reads(convo, "hello, Erin")
  })
})

// bobsAdd invites somebody, and sends a message that only makes sense afterwards.
async function bobsAdd(bob: Person, whom: Person, convo: ConvoId): Promise<void> {
  await bob.client.add(convo, [whom.did])
  await bob.says(convo, "hello, Erin")
}

// deleted takes a device's record out of its account, in the account's own name. It returns how long it takes until
// the device's leaf is gone from a group, and who has removed it.
async function deleted(whom: Person, witness: Person, convo: ConvoId, passes: number): Promise<{ seconds: number; by: string | undefined }> {
  const { clock } = witness
  const leaf = await whom.key()
  await new CountedAccounts(whom.did, clock).accounts.unlist(leaf)
  const at = clock.now()
  clock.pass(passes)
  await witness.until(async () => !(await witness.client.group(convo)).members.some(({ signatureKey }) => same(signatureKey, leaf)))
  const seconds = Math.round((clock.now() - at) / 1000)
  const commits = (await witness.client.items(convo)).filter(({ kind }) => kind === "commit")
  return { seconds, by: commits.at(-1)?.sender }
}

test("a device's record is deleted: its person's other device removes it after an hour", options, async (t) => {
  const clock = new PassingClock()
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, phone, stolen] = [await Person.open(a, clock), await Person.open(b, clock), await Person.open(b, clock)]
  t.after(() => Promise.all([alice, phone, stolen].map(({ client }) => client.close())))
  const convo = await alice.client.createConvo([b])
  for (const one of [phone, stolen]) await one.hears(`in ${convo}`)
  await phone.client.sync(convo)
  await stolen.client.close()
  const { seconds, by } = await deleted(stolen, alice, convo, hour)
  t.diagnostic(`${seconds} s of the clients' clock, removed by another device of its person`)
  assert.equal(by, b)
  await alice.says(convo, "for the other device")
  await phone.reads(convo, "for the other device")
})

test("the record of a person's only device is deleted: who may remove people removes it after a day", options, async (t) => {
  const { people, convo } = await scene(t, 3, 3)
  const [alice, bob, carol] = people as [Person, Person, Person]
  await carol.client.close()
  const { seconds, by } = await deleted(carol, bob, convo, 25 * hour)
  t.diagnostic(`${seconds} s of the clients' clock, removed by the convo's creator`)
  assert.equal(by, alice.did)
  await bob.says(convo, "without Carol")
  await alice.reads(convo, "without Carol")
})
