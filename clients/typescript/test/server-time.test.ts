// Devices whose clocks are wrong: the client goes by the service's time.

import assert from "node:assert/strict"
import { type TestContext, test } from "node:test"
import { systemClock } from "../src/clock.js"
import { correctTree } from "../src/mls-ts-tree.js"
import { type ClockOffset, ServerTime } from "../src/server-time.js"
import { MemoryStore } from "../src/store.js"
import { needsServer, newAccounts } from "./support/dev.js"
import { bytesOf, openPhone, readsAll } from "./support/phone.js"

const minute = 60_000

// setClock sets the clock of this process's devices, so many milliseconds ahead.
function setClock(t: TestContext, ahead: number): void {
  const now = Date.now
  t.mock.method(Date, "now", () => now.call(Date) + ahead)
}

for (const ahead of [70 * minute, -70 * minute]) {
  test(`D8: a device whose clock is ${ahead / minute} min ahead publishes, creates, invites and is invited`, needsServer, async (t) => {
    const [alice, bob] = await newAccounts(2)
    assert.ok(alice && bob)
    const right = await openPhone(bob, new MemoryStore(), { clock: systemClock })
    await right.replenish()
    setClock(t, ahead)
    const heard: ClockOffset[] = []
    const hears: { client?: Awaited<ReturnType<typeof openPhone>>; onItems?: () => void } = {}
    const wrong = await openPhone(alice, new MemoryStore(), {
      clock: systemClock, events: { onClock: (error) => heard.push(error), onItems: () => hears.onItems?.() },
    })
    hears.client = wrong
    assert.equal(await wrong.replenish(), 6, "of this device's KeyPackages")
    assert.equal(heard.length, 1)
    assert.ok(Math.abs(heard[0]!.aheadMs - ahead) < minute, `it says ${heard[0]!.aheadMs}`)
    await wrong.createConvo([bob])
    const convo = await right.createConvo([alice])
    await (await right.send(convo, bytesOf("hello"))).sent
    await wrong.syncAll()
    await readsAll(hears, convo, 1)
    await Promise.all([right.close(), wrong.close()])
  })
}

test("D8: the app hears when the clock is off, when it is off differently, and when it is right again", () => {
  let now = Date.parse("2026-01-02T03:04:05Z")
  const date = now
  const heard: number[] = []
  const time = new ServerTime({ ...systemClock, now: () => now }, ({ aheadMs }) => heard.push(Math.round(aheadMs / minute) + 0))
  const answers = (ahead: number, took = 200) => {
    now = date + 500 + ahead - took / 2
    const sent = time.sending()
    now += took
    time.heard(date, sent)
    return time.now()
  }
  answers(30_000)
  assert.deepEqual(heard, [])
  assert.ok(Math.abs(answers(0) - date) < 2000)
  assert.ok(Math.abs(answers(70 * minute) - date) < 2000)
  answers(70 * minute + 20_000)
  assert.ok(Math.abs(answers(-70 * minute) - date) < 2000)
  answers(24 * 60 * minute, 20_000) // it took too long to say anything
  answers(-10_000)
  assert.deepEqual(heard, [70, -70, 0])
})

test("D8: another ts-mls than 1.6.4 is not corrected in silence", () => {
  assert.throws(() => correctTree("export const nothing = 1"), /other source/)
})
