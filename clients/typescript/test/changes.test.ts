// What commits did, as an app sees it: docs/clients/DEVICES.md.

import assert from "node:assert/strict"
import { test } from "node:test"
import type { CommitChange } from "../src/changes.js"
import type { Client } from "../src/client.js"
import type { ConvoId, Did } from "../src/ids.js"
import type { Item } from "../src/records.js"
import { MemoryStore, type Store } from "../src/store.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { Heard, joined, open } from "./support/heard.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

const long = { ...needsServer, timeout: 120_000 }

async function changesIn(client: Client, convo: ConvoId): Promise<CommitChange[]> {
  return (await client.items(convo)).flatMap(({ change }) => (change === undefined ? [] : [change]))
}

async function reopened(did: Did, client: Client, store: Store): Promise<Client> {
  await client.close()
  return openPhone(did, store)
}

test("D6: a new device of Alice's is told to Bob, with who added whom, and the same after a restart", long, async () => {
  const [a, b, c] = await newAccounts(3)
  assert.ok(a && b && c)
  const [alice, bob, carol] = [await open(a), await open(b), await open(c)]
  await bob.client.replenish()
  await carol.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  const tablet = await open(a)
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(convo))
  await alice.client.add(convo, [c])
  await bob.client.sync(convo)

  const [phoneId, tabletId, carolsId] = await Promise.all([alice, tablet, carol].map(({ client }) => client.deviceId()))
  const shorten = ({ by, added, removed, devices }: CommitChange) => ({
    by: by.deviceId, added, removed, devices: devices.map(({ change, did, deviceId }) => [change, did, deviceId]),
  })
  const expected = [
    { by: tabletId, added: [], removed: [], devices: [["entered", a, tabletId]] },
    { by: phoneId, added: [c], removed: [], devices: [["entered", c, carolsId]] },
  ]
  assert.deepEqual((await changesIn(bob.client, convo)).map(shorten), expected)
  const heard = bob.heard.all.flatMap(([name, , items]) => (name === "onItems" ? (items as Item[]) : []))
  assert.deepEqual(heard.map(({ change }) => change && shorten(change)), expected)
  const [before, after] = [await changesIn(bob.client, convo), await reopened(b, bob.client, bob.store)]
  assert.deepEqual(await changesIn(after, convo), before)
  await alice.client.sync(convo)
  await tablet.client.sync(convo)
  assert.deepEqual((await changesIn(alice.client, convo)).map(shorten), expected, "Alice reads her own commit like the others")
  assert.deepEqual((await changesIn(tablet.client, convo)).map(shorten), expected, "the tablet has its own entry")
  await Promise.all([alice.client, after, tablet.client, carol.client].map((client) => client.close()))
})

test("an update names its device, and nobody else", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  await alice.client.update(convo)
  await bob.client.sync(convo)
  const [change, ...more] = await changesIn(bob.client, convo)
  assert.deepEqual([change?.by.did, change?.added, change?.removed, change?.devices, more], [a, [], [], [], []])
  await Promise.all([alice, bob].map(({ client }) => client.close()))
})

test("D13: what was sent before one's own removal is read after it", long, async () => {
  const [a, b] = await newAccounts(2)
  assert.ok(a && b)
  const [alice, bob] = [await open(a), await open(b)]
  await bob.client.replenish()
  const convo = await alice.client.createConvo([b])
  await bob.client.join(convo)
  const away = await reopened(b, bob.client, bob.store)
  for (const text of ["one", "two"]) await (await alice.client.send(convo, bytesOf(text))).sent
  await alice.client.remove(convo, b)
  await (await alice.client.send(convo, bytesOf("not for Bob"))).sent
  await away.syncAll()
  await assert.rejects(away.sync(convo), /NotMember/)
  assert.deepEqual(await textsOf(away, convo), ["one", "two"])
  const last = (await changesIn(away, convo)).at(-1)
  assert.deepEqual([last?.by.did, last?.removed], [a, [b]])
  assert.equal((await away.convos())[0]?.left, true)
  assert.ok((await away.items(convo)).every(({ state }) => state === "read"))
  await Promise.all([alice.client, away].map((client) => client.close()))
})

// An app that shows the lines of a conversation.
class App {
  readonly lines: string[] = []

  constructor(
    private readonly nameOf: (did: Did) => string,
    private readonly own: Did,
  ) {}

  readonly show = (items: readonly Item[]) => {
    for (const item of items) this.lines.push(...this.linesOf(item))
  }

  private linesOf({ sender, content, change }: Item): string[] {
    if (content !== undefined) return [`${this.nameOf(sender as Did)}: ${new TextDecoder().decode(content)}`]
    if (change === undefined) return []
    const { by, added, removed, devices } = change
    const who = this.nameOf(by.did)
    const own = (did: Did) => (did === this.own ? "a device of yours" : `a device of ${this.nameOf(did)}`)
    const alone = devices.filter(({ did }) => !added.includes(did) && !removed.includes(did))
    return [
      ...added.map((did) => `· ${who} added ${this.nameOf(did)}`),
      ...removed.map((did) => `· ${who} removed ${this.nameOf(did)}`),
      ...alone.map(({ change: what, did }) => `· ${own(did)} ${{ entered: "entered", left: "was removed", keyChanged: "has another key" }[what]}`),
      ...(devices.length === 0 ? [`· ${who} renewed the keys`] : []),
    ]
  }
}

test("an evening, as Bob's app shows it: D5, D6", long, async (t) => {
  const [a, b, c] = await newAccounts(3)
  assert.ok(a && b && c)
  const people = new Map([[a, "Alice"], [b, "Bob"], [c, "Carol"]])
  const nameOf = (did: Did) => people.get(did) ?? did
  const app = new App(nameOf, b)
  const heard = new Heard()
  const store = new MemoryStore()
  const bobs = await openPhone(b, store, { events: { ...heard.handlers, onItems: (_, items) => { app.show(items); heard.hear("onItems") } } })
  const [alice, carol] = [await open(a), await open(c)]
  await bobs.replenish()
  await carol.client.replenish()
  const until = (line: string) => heard.until("onItems", () => app.lines.includes(line))
  const say = async (client: Client, convo: ConvoId, text: string) => (await client.send(convo, bytesOf(text))).sent

  const convo = await alice.client.createConvo([b])
  await bobs.join(convo)
  for (const client of [bobs, alice.client, carol.client]) client.listen()
  await say(alice.client, convo, "dinner?")
  await alice.client.add(convo, [c])
  await carol.heard.until("onJoined", joined(convo))
  await say(carol.client, convo, "I bring bread")
  const tablet = await open(a)
  tablet.client.listen()
  await tablet.heard.until("onJoined", joined(convo))
  await say(tablet.client, convo, "from the kitchen")
  await until("Alice: from the kitchen")
  await alice.client.removeDevice(await tablet.client.deviceId())
  await until("· a device of Alice was removed")
  await bobs.update(convo)
  await until("· Bob renewed the keys")
  await alice.client.remove(convo, c)
  await until("· Alice removed Carol")
  await say(bobs, convo, "good night")
  await until("Bob: good night")

  for (const line of app.lines) t.diagnostic(line)
  const evening = [
    "Alice: dinner?",
    "· Alice added Carol",
    "Carol: I bring bread",
    "· a device of Alice entered",
    "Alice: from the kitchen",
    "· a device of Alice was removed",
    "· Bob renewed the keys",
    "· Alice removed Carol",
    "Bob: good night",
  ]
  assert.deepEqual(app.lines, evening)
  const again = new App(nameOf, b)
  const after = await reopened(b, bobs, store)
  again.show(await after.items(convo))
  assert.deepEqual(again.lines, evening, "the same after a restart")
  await Promise.all([alice.client, carol.client, tablet.client, after].map((client) => client.close()))
})
