// The month of a family: people and devices do what chance says, and after each day a model says what must be so.
//
// TEST_FAMILIES is how many families live, from seed TEST_FAMILY on. They are small, unless TEST_MONTH=1. The seed chooses
// the acts; how the devices meet is the machine's: a seed repeats what people did, and not each race.

import assert from "node:assert/strict"
import { test } from "node:test"
import { needsServer } from "./support/dev.js"
import { Family, type Scale } from "./support/family.js"
import { needsBinary, Server } from "./support/server.js"

const full: Scale = { people: 20, devices: 45, days: 30, acts: 40 }
const small: Scale = { people: 5, devices: 8, days: 3, acts: 20 }
const scale = process.env.TEST_MONTH ? full : small
const [first, families] = [Number(process.env.TEST_FAMILY ?? 1), Number(process.env.TEST_FAMILIES ?? 2)]

// A month is an hour here: what people may do in a day does not bound it.
const settings = { MLSD_QUOTA_INVITATIONS: "0", MLSD_RATE_DID: "100000/100000", MLSD_RATE_IP: "100000/100000", MLSD_LOG_LEVEL: "error" }

test("the month of a family", { ...needsServer, ...needsBinary }, async (t) => {
  const server = await Server.start(settings)
  try {
    for (let seed = first; seed < first + families; seed++) {
      await t.test(`seed ${seed}: ${scale.people} people, ${scale.devices} devices, ${scale.days} days`, async () => {
        const family = new Family(seed, scale, server)
        const begun = Date.now()
        try {
          await family.live()
        } catch (err) {
          assert.fail(`${(err as Error).message}\nagain: TEST_FAMILY=${seed} TEST_FAMILIES=1${process.env.TEST_MONTH ? " TEST_MONTH=1" : ""} node --test build/test/family.test.js`)
        } finally {
          console.log(`seed ${seed}: ${family.kills} kills, ${Math.round((Date.now() - begun) / 1000)} s; failures: ${family.heard()}`)
        }
      })
    }
  } finally {
    await server.end()
  }
})
