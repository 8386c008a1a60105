// Two people chat through a real PDS, which signs their tokens and passes their calls on.

import assert from "node:assert/strict"
import { test } from "node:test"
import { Api } from "../src/api.js"
import type { Client } from "../src/client.js"
import { systemClock } from "../src/clock.js"
import type { Did } from "../src/ids.js"
import { MemoryStore } from "../src/store.js"
import { PdsTransport } from "../src/transport.js"
import { dev } from "./support/dev.js"
import { Pds, pdsFolders } from "./support/pds.js"
import { bytesOf, openPhone, readsAll, textsOf } from "./support/phone.js"
import * as mls from "#lexicons"

test("people chat through a PDS", { ...(pdsFolders.length === 0 && { skip: "TEST_PDS is not set: check.sh sets it" }) }, async (t) => {
  const { did: service } = await dev<{ did: Did }>("GET", "/dev")
  for (const [i, folder] of pdsFolders.entries()) {
    await t.test(folder, async (t) => {
      const pds = await Pds.start(folder)
      t.after(() => pds.end())
      const [alice, bob] = [await pds.account(`alice${i}.test`), await pds.account(`bob${i}.test`)]
      const way = (agent: typeof alice.agent) => new PdsTransport(agent, `${service}#atproto_mls`)
      const hears: { client?: Client; onItems?: () => void; onJoined?: () => void } = {}
      const joined = new Promise<void>((resolve) => (hears.onJoined = resolve))
      const a = await openPhone(alice.did, new MemoryStore(), { transport: way(alice.agent) })
      const b = await openPhone(bob.did, new MemoryStore(), {
        transport: way(bob.agent), events: { onItems: () => hears.onItems?.(), onJoined: () => hears.onJoined?.() },
      })
      t.after(() => Promise.all([a.close(), b.close()]))
      hears.client = b
      await b.replenish()
      b.listen()
      const convo = await a.createConvo([bob.did], { name: "tea" })
      await joined
      await Promise.all(["one", "two", "three"].map((text) => a.send(convo, bytesOf(text))))
      await readsAll(hears, convo, 3)
      await (await b.send(convo, bytesOf("four"))).sent
      await Promise.all([a.sync(convo), b.sync(convo)])
      const named = await openPhone(alice.did, new MemoryStore(), {
        transport: way(alice.agent), services: { home: service, way: (did) => new PdsTransport(alice.agent, `${did}#atproto_mls`) },
      })
      t.after(() => named.close())
      await named.publishProfile(alice.agent)
      const api = new Api(way(bob.agent), systemClock, new AbortController().signal)
      const { deliveryService } = await api.query(mls.getDeliveryService.main, { did: alice.did })
      assert.equal(deliveryService, service, "the service finds the record at the PDS")
      const want = ["one", "two", "three", "four"]
      assert.deepEqual([await textsOf(a, convo), await textsOf(b, convo)], [want, want])
    })
  }
})
