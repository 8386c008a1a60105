// Signals and cursors: what members who are connected get, and nobody keeps.

import assert from "node:assert/strict"
import { test } from "node:test"
import { setTimeout } from "node:timers/promises"
import type { Socket } from "../src/events-socket.js"
import type { MemberCursor } from "../src/signals.js"
import { mostSignals } from "../src/signals.js"
import { MemoryStore } from "../src/store.js"
import type { Transport } from "../src/transport.js"
import { needsServer, newAccounts, transportOf } from "./support/dev.js"
import { bytesOf, openPhone, textsOf } from "./support/phone.js"

const text = (content: Uint8Array) => new TextDecoder().decode(content)

// overSocket is as through a PDS: it passes no streams on.
function overSocket(direct: Transport) {
  return { transport: { call: (call: Parameters<Transport["call"]>[0]) => direct.call(call) }, openSocket: (url: string) => new WebSocket(url) as Socket }
}

for (const kind of ["server-sent events", "a WebSocket"] as const) {
  const skip = kind === "a WebSocket" && typeof WebSocket === "undefined" && { skip: "this Node has no WebSocket" }
  test(`signals and cursors arrive over ${kind}`, { ...needsServer, ...skip, timeout: 60_000 }, async () => {
    const [alice, bob] = await newAccounts(2)
    assert.ok(alice && bob)
    const a = await openPhone(alice, new MemoryStore())
    const heard: [string, string][] = []
    const seen: MemberCursor[] = []
    let wake = () => {}
    const until = async (done: () => boolean) => {
      while (!done()) await new Promise<void>((resolve) => (wake = resolve))
    }
    let items = 0
    const b = await openPhone(bob, new MemoryStore(), {
      ...(kind === "a WebSocket" && overSocket(transportOf(bob))),
      events: {
        onSignal: (_, did, content) => { heard.push([did, text(content)]); wake() },
        onCursors: (_, cursors) => { seen.push(...cursors); wake() },
        onItems: (_, more) => { items += more.length; wake() },
      },
    })
    await b.replenish()
    const convo = await a.createConvo([bob])
    await b.join(convo)
    b.listen()
    await (await a.send(convo, bytesOf("are you there?"))).sent
    await until(() => items > 0)
    // Bob gets signals once his stream is live. A busy server drops some.
    while (heard.length === 0) {
      if (!await a.signal(convo, bytesOf("typing"))) await (await a.send(convo, bytesOf("hello?"))).sent
      await Promise.race([until(() => heard.length > 0), setTimeout(100)])
    }
    assert.deepEqual(heard[0], [alice, "typing"])

    await a.shareCursors("members")
    assert.deepEqual((await b.cursors(convo)).length, 0, "who does not share sees nobody")
    await b.shareCursors("members")
    await a.markDelivered(convo, 1)
    await until(() => seen.length > 0)
    assert.deepEqual(seen[0], { did: alice, read: 0, delivered: 1 })
    await a.markRead(convo, 1)
    const got = (await b.cursors(convo)).find(({ did }) => did === alice)
    assert.deepEqual(got, { did: alice, read: 1, delivered: 1 })

    await (await a.send(convo, bytesOf("I wrote this"))).sent
    await b.sync(convo)
    assert.deepEqual((await textsOf(b, convo)).slice(-1), ["I wrote this"], "the message after a signal is read")
    await Promise.all([a.close(), b.close()])
  })
}

test("a device that was away reads the message after many signals", { ...needsServer, timeout: 60_000 }, async () => {
  const [alice, bob] = await newAccounts(2)
  assert.ok(alice && bob)
  const [a, b] = [await openPhone(alice, new MemoryStore()), await openPhone(bob, new MemoryStore())]
  await b.replenish()
  const convo = await a.createConvo([bob])
  await b.join(convo)
  const sent = []
  for (let i = 0; i < mostSignals + 5; i++) sent.push(await a.signal(convo, bytesOf(`${i}`)))
  assert.equal(sent.at(-1), false, "only so many between two messages")
  await (await a.send(convo, bytesOf("hello"))).sent
  await b.sync(convo)
  assert.deepEqual(await textsOf(b, convo), ["hello"])
  await Promise.all([a.close(), b.close()])
})
